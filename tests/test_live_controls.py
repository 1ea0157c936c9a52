"""Planted faults are caught over real sockets too: a mutant for each core family, and an nginx without consistent hash.

Every property kills its mutant in the simulator; here one of each family does, with others beside it that must hold.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.judge import Judge
from harness.live.session import LiveSession
from harness.property.declare import catalogue
from harness.property.verdict import Outcome
from harness.scenario.model import World
from harness.targets.base import Target
from harness.targets.nginx import NginxTarget
from harness.targets.python import PythonTarget

pytestmark = pytest.mark.slow

PROPERTIES = {item.name: item for item in catalogue()}


@pytest.fixture(scope="module")
def session() -> Iterator[LiveSession]:
    with LiveSession() as shared:
        yield shared


CASES = [
    (
        PythonTarget("python:tests.mutants.policies:Modulo"),
        ("affinity.leave.only-departed-keys-move", "affinity.leave.share"),
        ("affinity.return.restores",),
    ),
    (PythonTarget("python:tests.mutants.policies:NeverEjects"), ("health.failover.within-bound",), ()),
    (
        PythonTarget("python:tests.mutants.breakers:TwoProbes"),
        ("breaker.half-open.one-slow-probe",),
        ("breaker.half-open.abort-frees-slot",),
    ),
    (
        PythonTarget("python:tests.mutants.retries:SameBackendAgain"),
        ("retry.backend.another",),
        ("retry.attempts.at-most",),
    ),
    (
        PythonTarget("python:tests.mutants.health_shares:GateInsteadOfWeight"),
        ("health-share.latency.by-its-weight",),
        (),
    ),
    (
        PythonTarget("python:tests.mutants.hedges:SameBackendAgain"),
        ("hedge.backend.another",),
        ("hedge.update.never", "hedge.overhead.within-share"),
    ),
    (
        PythonTarget("python:tests.harness.live.stalling_gateway:Stalls"),
        ("limits.refusals.told-at-once",),
        ("limits.rate.every-window",),
    ),
    (
        NginxTarget(consistent=False),
        ("affinity.leave.only-departed-keys-move", "affinity.leave.share"),
        (),
    ),
]


IDS = [
    "modulo",
    "never-ejects",
    "two-probes",
    "retries-where-it-failed",
    "gate-for-weight",
    "hedges-where-it-is-slow",
    "stalls-for-50-ms",
    "nginx-not-consistent",
]


TRIES = 3
"""Noise of the machine says nothing of the balancer, so a run that it made inconclusive is played anew."""


@pytest.mark.parametrize(("target", "fail", "hold"), CASES, ids=IDS)
def test_fault_is_caught_live(
    target: Target, fail: tuple[str, ...], hold: tuple[str, ...], session: LiveSession
) -> None:
    pending = dict.fromkeys(fail, Outcome.FAIL) | dict.fromkeys(hold, Outcome.PASS)
    reasons: dict[str, str] = {}
    for _ in range(TRIES):
        judge = Judge(target, 1, {World.LIVE: session.play})
        for name, expected in list(pending.items()):
            record = judge.judge(PROPERTIES[name], World.LIVE)
            reasons[name] = record.reason
            if record.outcome is Outcome.INCONCLUSIVE and "slack" in record.reason:
                continue
            assert record.outcome is expected, f"{name}: {record.reason}"
            if expected is Outcome.FAIL:
                assert record.observed is not None
                assert record.bound is not None
            del pending[name]
        if not pending:
            return
    noisy = "; ".join(f"{name}: {reasons[name]}" for name in pending)
    assert not any(name in fail for name in pending), f"never caught, {TRIES} times too noisy: {noisy}"
    pytest.skip(f"{TRIES} times too noisy: {noisy}")
