"""How many backends a command brings up: as many as it is told, or as the target's file names."""

from __future__ import annotations

from harness.scenario.model import ClaimsError
from harness.targets.base import Target

USUAL = 4


def fleet_size(target: Target, given: int | None) -> int:
    """The number of backends; `given` is --backends, None if it was left out.

    ClaimsError if it was given and is another number than that of the addresses which the target's file names.
    """
    named = target.claims.fixed_backends
    if named is None:
        return USUAL if given is None else given
    if given not in (None, named):
        raise ClaimsError(f"--backends {given}: {target.name} names {named} addresses; leave --backends out")
    return named
