"""Python code as a target: `python:package.module:Class`, a policy (three methods) or a complete gateway."""

from __future__ import annotations

import os
from random import Random

from harness.balancer.core.loading import PYTHON, gateway_from, load_class
from harness.claims.features import Claims, Feature
from harness.claims.file import ClaimsFile
from harness.gateway.protocol import NowFunction
from harness.scenario.model import ClaimsError, World
from harness.targets.base import Adapter
from harness.targets.gateway_target import HASH_SEED, GatewayTarget


class PythonTarget(GatewayTarget):
    """A user's class. Claims come from its attribute `claims` (Claims, or a tuple of features) or from a file."""

    def __init__(self, spec: str, file: ClaimsFile | None = None) -> None:
        self._spec = spec if spec.startswith(PYTHON) else PYTHON + spec
        loaded = load_class(self._spec)
        self.name = file.name if file else self._spec
        self.version = file.version if file else str(getattr(loaded, "version", "unknown"))
        self.claims = file.claims if file else _claims_of(self._spec, getattr(loaded, "claims", None))
        gateway_from(self._spec, NowFunction(), Random(0))  # fails before any run if the class cannot be built

    def spec(self, off: frozenset[str]) -> str:
        """The class by name; a user's class has no switches."""
        return self._spec

    def repeat_prefix(self, world: World) -> tuple[str, ...]:
        """The seed of Python's string hashes; in the simulator that of the pytest process."""
        if world is not World.SIM:
            return ()
        seed = os.environ.get(HASH_SEED, "")
        return (f"{HASH_SEED}={seed if seed.isdecimal() else '0'}",)


def _claims_of(spec: str, claims: object) -> Claims:
    if isinstance(claims, Claims) and claims.features:
        return claims
    if isinstance(claims, tuple | list) and claims and all(isinstance(item, Feature) for item in claims):
        return Claims(features=tuple(claims))
    if isinstance(claims, Feature):
        raise ClaimsError(
            f"target {spec!r}: claims = {claims!r} is one claim; expected a tuple, with a comma: ({claims!r},)"
        )
    raise ClaimsError(
        f"target {spec!r} claims nothing: saw claims = {claims!r}; expected a class attribute such as"
        " claims = (Affinity(virtual_nodes=100),), or a claims file with [balancer] python = ..."
    )


ADAPTER = Adapter(PythonTarget, "a class of yours, a policy or a gateway", "MODULE:CLASS", required=True)
