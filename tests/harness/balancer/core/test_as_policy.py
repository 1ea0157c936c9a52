"""The reference as a policy: tickets settle oldest first, snapshots, and its verdicts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from harness.balancer.core.as_policy import ReferencePolicy, claims_as_policy
from harness.gateway.protocol import Backend, NowFunction, Request
from harness.judge import Judge
from harness.property.declare import catalogue
from harness.property.verdict import Outcome
from harness.scenario.model import Kind, World
from harness.sim.world import play
from harness.targets import resolve
from harness.targets.reference import SUITE_PROFILE

TARGET = "python:tests.harness.balancer.core.test_as_policy:Quick"
BACKENDS = tuple(Backend(f"gpu-{number}", f"127.0.0.1:{9000 + number}") for number in range(4))


class Quick(ReferencePolicy):
    """With the suites' short times."""

    settings = SUITE_PROFILE.without(frozenset({"health_checks", "hedge", "retry", "ejection", "limits"}))
    claims = claims_as_policy(settings)


class Bench:
    """The policy with four members and a clock."""

    def __init__(self) -> None:
        self.now = NowFunction()
        self.policy = Quick(self.now, Random(1))
        self.policy.update_backends(BACKENDS)
        self._requests = 0

    def pick(self, model: str = "", kind: Kind = Kind.UPDATE, session: str = "") -> str:
        self._requests += 1
        chosen = self.policy.pick(Request(self._requests, 1, kind, "POST", model, session))
        assert chosen is not None
        return chosen

    def home(self) -> str:
        """The backend of a model's requests."""
        home = self.pick("llama", Kind.INFERENCE)
        self.policy.report_result(home, 0.01, None)
        return home

    def fail(self, times: int) -> str:
        """Let `times` requests for a model fail at its backend."""
        home = self.home()
        for _ in range(times):
            assert self.pick("llama", Kind.INFERENCE) == home
            self.policy.report_result(home, 0.01, "status:500")
        return home


def test_a_model_stays_and_updates_spread() -> None:
    bench = Bench()
    assert len({bench.home() for _ in range(5)}) == 1
    assert min(Counter(bench.pick() for _ in range(40)).values()) >= 8


@pytest.mark.parametrize("error", [None, "status:500", "status:404", "refused", "reset", "timeout", "aborted"])
def test_every_way_out_gives_back_exactly_one(error: str | None) -> None:
    bench = Bench()
    first = bench.pick()
    for _ in range(3):
        bench.policy.report_result(first, 0.01, error)
    assert bench.policy.idle
    bench.policy.report_result("stranger", 0.01, None)
    assert bench.policy.idle


def test_the_oldest_ticket_is_settled() -> None:
    """A probe is in flight beside an older call: the next result settles that call, so the probe keeps its slot."""
    bench = Bench()
    home = bench.home()
    sent = Counter(bench.pick() for _ in range(32))
    assert sent[home] > 5
    for _ in range(5):
        bench.policy.report_result(home, 0.01, "status:500")
    bench.now.now_s = 1.0
    assert bench.pick("llama", Kind.INFERENCE) == home
    assert bench.pick("llama", Kind.INFERENCE) != home
    for _ in range(sent[home] - 5):
        bench.policy.report_result(home, 0.01, None)
        assert bench.pick("llama", Kind.INFERENCE) != home
    bench.policy.report_result(home, 0.01, None)
    assert bench.pick("llama", Kind.INFERENCE) == home


def test_failures_in_a_row_open_a_breaker_and_its_time_is_on_the_clock_of_the_world() -> None:
    bench = Bench()
    home = bench.fail(5)
    assert bench.pick("llama", Kind.INFERENCE) != home
    bench.now.now_s = 1.0  # longer than the first open time, 0.5 s and a fifth
    assert bench.pick("llama", Kind.INFERENCE) == home


@pytest.mark.parametrize(("latency_s", "opens"), [(0.01, False), (1.0, True)])
def test_the_latency_is_the_reported_one(latency_s: float, opens: bool) -> None:
    """The clock does not advance between pick and report, so only the reported latency can be slow."""
    bench = Bench()
    home = bench.home()
    for _ in range(30):
        if bench.pick("llama", Kind.INFERENCE) == home:
            bench.policy.report_result(home, latency_s, None)
    assert (bench.pick("llama", Kind.INFERENCE) != home) == opens


def test_who_is_not_ready_gets_nothing_until_it_is() -> None:
    bench = Bench()
    home = bench.home()
    bench.policy.update_backends([replace(item, ready=item.id != home) for item in BACKENDS])
    assert bench.home() != home
    assert home not in {bench.pick() for _ in range(40)}
    bench.policy.update_backends(BACKENDS)
    assert bench.home() == home
    bench.policy.update_backends([replace(item, ready=False) for item in BACKENDS])
    assert bench.policy.pick(Request(1, 1, Kind.UPDATE, "POST", "")) is None


def test_a_snapshot_keeps_what_is_known_and_a_return_forgets_it() -> None:
    bench = Bench()
    home = bench.fail(5)
    bench.policy.update_backends([replace(item, running=3, memory_total_mb=80_000.0) for item in BACKENDS])
    assert bench.home() != home
    bench.policy.update_backends([item for item in BACKENDS if item.id != home])
    bench.policy.update_backends(BACKENDS)
    assert bench.home() == home


def test_reported_load_counts() -> None:
    """A backend loaded by other clients gets less; figures that are all 0 are no report."""
    bench = Bench()
    busy = tuple(replace(item, memory_total_mb=80_000.0, running=50 if item.id == "gpu-0" else 0) for item in BACKENDS)
    bench.policy.update_backends(busy)
    assert "gpu-0" not in {bench.pick() for _ in range(40)}
    idle = Bench()
    idle.policy.update_backends([replace(item, running=50) for item in BACKENDS])
    assert len({idle.pick() for _ in range(40)}) == 4


def test_weights_of_the_list_count() -> None:
    bench = Bench()
    bench.policy.update_backends([replace(item, weight=0.0 if item.id == "gpu-0" else 1.0) for item in BACKENDS])
    assert "gpu-0" not in {bench.pick() for _ in range(40)}


def test_the_bare_gateway_with_the_reference_in_it_keeps_its_claims() -> None:
    judge = Judge(resolve(TARGET), 1, {World.SIM: play})
    families = ("spread", "breaker", "bounded-load", "membership", "integrity")
    outcomes = {
        item.name: judge.judge(item, World.SIM).outcome
        for item in catalogue()
        if item.family in families and item.name != "breaker.open.ignores-late-failures"
    }
    judged = {name: outcome for name, outcome in outcomes.items() if outcome is not Outcome.UNSUPPORTED}
    assert set(judged.values()) == {Outcome.PASS}
    assert len(judged) > 20
