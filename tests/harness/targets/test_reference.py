from pathlib import Path
from random import Random

import pytest
from pydantic import TypeAdapter

from harness.balancer.requests.limits import AdmissionSettings, BucketSettings
from harness.balancer.settings import CheckSettings, EjectionSettings, Settings, SlowStartSettings
from harness.claims.features import (
    FEATURES,
    Affinity,
    Breaker,
    Ejection,
    Failover,
    HealthChecks,
    HealthShare,
    Hedge,
    Limits,
    Retry,
)
from harness.gateway.protocol import Backend, MembershipChanged, NowFunction, Request, RequestArrived, Send, SetTimer
from harness.scenario.model import Kind, World
from harness.targets.base import LEAN_ENVIRONMENT, Deployment, Target
from harness.targets.reference import LIMITS, ReferenceTarget

BACKENDS = tuple(Backend(f"gpu-{number}", f"127.0.0.1:{9000 + number}") for number in range(4))


def test_its_process_starts_lean(tmp_path: Path) -> None:
    launch = ReferenceTarget().launch(Deployment(tmp_path, "127.0.0.1", 8000, 8001, ()))
    assert launch.environment.items() >= {**LEAN_ENVIRONMENT, "PYTHONHASHSEED": "0"}.items()


def settings_of(target: ReferenceTarget, off: frozenset[str] = frozenset()) -> Settings:
    return TypeAdapter(Settings).validate_json(target.spec(off).removeprefix("reference:"))


def test_gateway_builds_and_keeps_a_model_on_one_backend() -> None:
    gateway = ReferenceTarget().gateway(frozenset({"bounded_load"}), NowFunction(), Random(1))
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


SWITCHED = [
    "bounded_load",
    "breaker",
    "ejection",
    "health_checks",
    "health_share",
    "hedge",
    "limits",
    "retry",
    "sessions",
    "slow_start",
    "spread",
]


def test_every_switch_reaches_the_settings() -> None:
    target = ReferenceTarget(Settings(ejection=EjectionSettings(), limits=LIMITS, slow_start=SlowStartSettings(1.0)))
    assert sorted(target.switches) == SWITCHED
    for name in target.switches:
        without = settings_of(target, frozenset({name}))
        assert [other for other in SWITCHED if getattr(without, other) is None] == [name]


def test_claims_state_the_settings() -> None:
    ejection = EjectionSettings(failures=7, open_s=0.25, cap_share=1.0)
    target = ReferenceTarget(Settings(ejection=ejection, virtual_nodes=99))
    assert target.claims[Ejection] == Ejection(failures=7, open_s=0.25, statuses=(500, 502, 503, 504), cap_share=1.0)
    assert target.claims[Affinity].virtual_nodes == 99
    hedge, health = ReferenceTarget().claims[Hedge], ReferenceTarget().claims[HealthShare]
    assert (hedge.burst, hedge.load_threshold) == (10, 32.0)
    assert (health.free_connections, health.connection_span) == (100, 500)
    assert target.worlds == {World.SIM, World.LIVE}
    assert Ejection not in ReferenceTarget(Settings()).claims
    assert ReferenceTarget().claims[Ejection].cap_share == 0.5
    assert set(ReferenceTarget().claims.names) == set(FEATURES)
    bare = Settings(bounded_load=None, health_checks=None, breaker=None, health_share=None, hedge=None, retry=None)
    assert ReferenceTarget(bare).claims.names == ("affinity", "failover", "spread")


def test_scaled_stretches_settings_and_claims_alike() -> None:
    target = ReferenceTarget(Settings(health_checks=CheckSettings(interval_s=0.3)))
    scaled: Target = target.scaled(2.0)
    assert isinstance(scaled, ReferenceTarget)
    once, twice = settings_of(target), settings_of(scaled)
    assert once.health_checks is not None and twice.health_checks is not None
    assert once.breaker is not None and twice.breaker is not None
    assert twice.attempt_timeout_s == 2.0 * once.attempt_timeout_s
    assert (
        twice.health_checks.interval_s == 2.0 * once.health_checks.interval_s == scaled.claims[HealthChecks].interval_s
    )
    assert twice.breaker.open_s == 2.0 * once.breaker.open_s == scaled.claims[Breaker].open_s
    assert scaled.claims[Breaker].backoff.max_s == 2.0 * target.claims[Breaker].backoff.max_s
    assert twice.breaker.failures == once.breaker.failures
    assert scaled.claims[Retry].deadline_s == 2.0 * (target.claims[Retry].deadline_s or 0.0)
    assert scaled.claims[Failover].within_s == 2.0 * target.claims[Failover].within_s


@pytest.mark.parametrize(
    ("settings", "claim"),
    [
        (LIMITS, Limits(rate_per_s=100.0, burst=20, concurrency=8, queue=16, by_urgency=True)),
        (AdmissionSettings(BucketSettings(5.0, kind="leaky"), queue=3), Limits(5.0, burst=1, queue=3, by_urgency=True)),
        (AdmissionSettings(concurrency=3), Limits(rate_per_s=None, burst=1, concurrency=3)),
    ],
)
def test_limits_of_requests_are_claimed(settings: AdmissionSettings, claim: Limits) -> None:
    assert ReferenceTarget(Settings(limits=settings)).claims[Limits] == claim


def test_limits_of_model_tokens_alone_are_no_claim() -> None:
    assert Limits not in ReferenceTarget(Settings(limits=AdmissionSettings(tokens=BucketSettings(5.0)))).claims
    assert Limits not in ReferenceTarget(Settings()).claims
    assert ReferenceTarget().claims[Limits].rate_per_s == 100.0
