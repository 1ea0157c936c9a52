"""The number of backends that a command starts: given by --backends, or by the target's file."""

from __future__ import annotations

from harness.scenario.model import ClaimsError
from harness.targets.base import Target

DEFAULT_SIZE = 4


def fleet_size(target: Target, given: int | None) -> int:
    """The number of backends; `given` is --backends, None if not given.

    ClaimsError if it differs from the number of addresses in the target's file.
    """
    named = target.claims.fixed_backends
    if named is None:
        return DEFAULT_SIZE if given is None else given
    if given not in (None, named):
        raise ClaimsError(f"--backends {given}: {target.name} names {named} addresses; leave --backends out")
    return named
