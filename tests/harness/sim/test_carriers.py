"""The simulator puts the affinity key at the load's key carrier, as the live world does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.balancer.picking.ring import HashRing
from harness.claims.features import Affinity, Claims
from harness.gateway.protocol import Backend, Request
from harness.judge import Judge
from harness.property.declare import catalogue
from harness.property.verdict import Outcome
from harness.scenario.model import HarnessError, Keys, Method, World
from harness.sim.world import play
from harness.targets.python import PythonTarget
from tests.harness.sim.rig import bare, run, scenario, stream

PROPERTIES = {item.name: item for item in catalogue()}
AFFINITY = ("affinity.repeat.same-backend", "affinity.leave.only-departed-keys-move", "affinity.leave.share")


class ByModel:
    """Hashes the model."""

    claims = (Affinity(),)

    def __init__(self) -> None:
        self._ring = HashRing(150)

    def update_backends(self, backends: Sequence[Backend]) -> None:
        self._ring.set_members([backend.id for backend in backends])

    def report_result(self, backend_id: str, latency_s: float, error: str | None) -> None:
        """Results are ignored."""

    def pick(self, request: Request) -> str | None:
        return self._ring.owner(self.key(request))

    def key(self, request: Request) -> str:
        """The hashed attribute of a request."""
        return request.model


class BySession(ByModel):
    """Hashes the session."""

    def key(self, request: Request) -> str:
        return request.session


class ByKey(ByModel):
    """Hashes the key at the claimed carrier."""

    def key(self, request: Request) -> str:
        return request.key


def outcomes(policy: type[ByModel], carrier: str) -> set[Outcome]:
    """Outcomes of some affinity properties, for a policy that claims this carrier."""
    target = PythonTarget(f"python:{__name__}:{policy.__name__}")
    target.claims = Claims((Affinity(key=carrier),))
    judge = Judge(target, 1, {World.SIM: play})
    return {judge.judge(PROPERTIES[name], World.SIM).outcome for name in AFFINITY}


@pytest.mark.parametrize(
    ("carrier", "right", "wrong"),
    [
        ("header:x-model-id", ByModel, BySession),
        ("json:model", ByModel, BySession),
        ("session", BySession, ByModel),
        ("header:x-tenant", ByKey, ByModel),
        ("cookie:sid", ByKey, BySession),
        ("json:user.id", ByKey, ByModel),
        ("prompt-prefix:40", ByKey, ByModel),
    ],
)
def test_a_policy_must_hash_what_carries_the_key(carrier: str, right: type[ByModel], wrong: type[ByModel]) -> None:
    assert outcomes(right, carrier) == {Outcome.PASS}
    assert Outcome.FAIL in outcomes(wrong, carrier)
    assert outcomes(ByKey, carrier) == {Outcome.PASS}, "the key is there whatever its carrier"


def test_a_request_that_cannot_be_said_is_our_error() -> None:
    """A GET has no body for the key; the live load process refuses the same."""
    what = scenario(load=stream(keys=Keys(1), methods=(Method.GET,)), carrier="json:user.id")
    with pytest.raises(HarnessError, match="a GET has no body"):
        run(bare(), what)
