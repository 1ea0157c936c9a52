import json
from random import Random

import pytest

from harness.balancer.gateway import Settings
from harness.balancer.protocol import Backend, MembershipChanged, NowFunction, Request, RequestArrived, Send, SetTimer
from harness.claims import Affinity, Ejection, Failover, HealthChecks
from harness.model import Kind, World
from harness.target import Target
from harness.targets.reference import ReferenceTarget

BACKENDS = tuple(Backend(f"gpu-{number}", f"127.0.0.1:{9000 + number}") for number in range(4))


def told(target: ReferenceTarget, off: frozenset[str] = frozenset()) -> Settings:
    return Settings(**json.loads(target.spec(off).removeprefix("reference:")))


def test_gateway_builds_and_keeps_a_model_on_one_backend() -> None:
    gateway = ReferenceTarget().gateway(frozenset(), NowFunction(), Random(1))
    gateway.handle(MembershipChanged(BACKENDS), 0.0)
    picked = set()
    for number in range(5):
        actions = gateway.handle(RequestArrived(Request(number, 1, Kind.INFERENCE, "POST", "llama")), 0.0)
        picked |= {action.backend_id for action in actions if isinstance(action, Send)}
    assert len(picked) == 1


@pytest.mark.parametrize(("off", "polls"), [(frozenset(), True), (frozenset({"health_checks"}), False)])
def test_switched_off_health_checks_poll_nothing(off: frozenset[str], polls: bool) -> None:
    gateway = ReferenceTarget().gateway(off, NowFunction(), Random(1))
    actions = gateway.handle(MembershipChanged(BACKENDS), 0.0)
    assert any(isinstance(action, SetTimer) for action in actions) == polls


def test_every_switch_reaches_the_settings() -> None:
    target = ReferenceTarget()
    assert target.switches == {"ejection", "health_checks"}
    assert (told(target).ejection, told(target).health_checks) == (True, True)
    for name in target.switches:
        without = told(target, frozenset({name}))
        assert (without.ejection, without.health_checks) == (name != "ejection", name != "health_checks")


def test_claims_state_the_settings() -> None:
    target = ReferenceTarget(Settings(ejection_failures=7, ejection_open_s=0.25, virtual_nodes=99))
    assert target.claims[Ejection] == Ejection(failures=7, open_s=0.25)
    assert target.claims[Affinity].virtual_nodes == 99
    assert target.worlds == {World.SIM, World.LIVE}


def test_scaled_stretches_settings_and_claims_alike() -> None:
    target = ReferenceTarget()
    longer: Target = target.scaled(2.0)
    assert isinstance(longer, ReferenceTarget)
    for name in ("attempt_timeout_s", "ejection_open_s", "check_interval_s", "check_timeout_s"):
        assert getattr(told(longer), name) == 2.0 * getattr(told(target), name)
    assert told(longer).ejection_failures == told(target).ejection_failures
    assert longer.claims[Ejection].open_s == told(longer).ejection_open_s
    assert longer.claims[HealthChecks].interval_s == told(longer).check_interval_s
    assert longer.claims[Failover].within_s == 2.0 * target.claims[Failover].within_s
    assert target.claims == ReferenceTarget().claims
