"""The judge on hand-written histories: each outcome, shared runs, the repeat at twice the time scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pytest

from harness.claims.features import Affinity, Breaker, Claims, Failover, Hedge, Limits, Retry
from harness.evidence.history import History, StepSeen, empty_requests
from harness.gateway.protocol import Gateway, NowFunction
from harness.judge import Judge, Play
from harness.property.declare import Property, declare
from harness.property.findings import Finding, Findings, held, sampled, undecided, within
from harness.property.verdict import Outcome, Record
from harness.scenario.fast_dataclass import scale_durations
from harness.scenario.faults import Join, Kill, Leave
from harness.scenario.model import (
    ClaimsError,
    DiedError,
    Failure,
    HarnessError,
    Keys,
    Load,
    Scenario,
    Stream,
    TargetError,
    UnsupportedError,
    World,
)
from harness.targets.base import SimTarget, Target

STREAM = Stream("traffic", start_s=0.0, rate_per_s=10.0, requests=20, keys=Keys(4))
SCENARIO = Scenario("steady", backends=2, load=Load((STREAM,)), intervals_s=(1.0,))
CLAIMS = Claims((Affinity(), Failover(within_s=1.0)))


@dataclass
class FakeTarget(SimTarget):
    """A target that is never run."""

    claims: Claims = CLAIMS
    switches: frozenset[str] = frozenset()
    fixed: bool = False
    name: str = "fake"
    version: str = "1"

    def gateway(self, off: frozenset[str], now: NowFunction, generator: Random) -> Gateway:
        raise AssertionError("a fake target is never run")

    def scaled(self, factor: float) -> FakeTarget | None:
        return None if self.fixed else replace(self, claims=scale_durations(self.claims, factor))


def history_of(scenario: Scenario = SCENARIO, slack_s: float = 0.0, **rest: object) -> History:
    """A run of `scenario` in which every request was answered."""
    count = sum(stream.requests for stream in scenario.load.streams)
    requests = empty_requests(count)
    requests["intended_s"] = requests["sent_s"] = np.arange(count) / 10.0
    requests["end_s"] = requests["sent_s"] + 0.01
    requests["status"], requests["failure"] = 200, Failure.NONE
    return replace(History(scenario, 1, requests, slack_s=np.full(3, slack_s)), **rest)  # type: ignore[arg-type]


class FakeWorld:
    """Plays with a function and counts the calls."""

    def __init__(self, run: Callable[[Scenario], History] = history_of) -> None:
        self.run = run
        self.calls: list[tuple[Target, Scenario, int]] = []

    def __call__(self, target: Target, scenario: Scenario, seed: int) -> History:
        self.calls.append((target, scenario, seed))
        return self.run(scenario)


def promise(
    findings: Sequence[Finding] | Callable[[History, Claims], Findings],
    name: str = "a.b.c",
    scenario: Callable[[Claims], Scenario] = lambda claims: SCENARIO,
    **rest: Any,
) -> Property:
    """A property whose check yields `findings`."""

    def check(history: History, claims: Claims) -> Findings:
        """A promise."""
        yield from findings(history, claims) if callable(findings) else findings

    return declare(name, scenario=scenario, **rest)(check)


def judged(item: Property, play: Play | None = None, world: World = World.LIVE, target: Target | None = None) -> Record:
    """The record of `item` on one run."""
    played = play or FakeWorld()
    return Judge(target or FakeTarget(), 7, {World.SIM: played, World.LIVE: played}).judge(item, world)


GOOD = held(True, at_s=0.1, observed=1, bound=2, sample=9, note="all well")
BAD = held(False, at_s=0.2, observed=3, bound=2, sample=8, note="one too many")


# --- outcomes ---------------------------------------------------------------------------------------------


def test_pass() -> None:
    record = judged(promise([GOOD, GOOD]))
    assert (record.outcome, record.reason) == (Outcome.PASS, "all well")
    assert (record.observed, record.bound, record.sample, record.alpha) == (1, 2, 9, 0.0)
    assert (record.target, record.version, record.world, record.seed) == ("fake", "1", World.LIVE, 7)
    assert (record.scenario, record.history) == (SCENARIO.digest(), history_of().digest())
    assert len(record.findings) == 2


def test_fail_shows_the_first_broken_finding() -> None:
    record = judged(promise([GOOD, BAD, replace(BAD, observed=9)]))
    assert (record.reason, record.observed, record.sample) == ("2 of 3 findings broken: one too many", 3, 8)


@pytest.mark.parametrize(
    "finding",
    [
        held(np.bool_(False), at_s=0.0, observed=3, bound=2),  # type: ignore[arg-type]
        within(np.float64(2.0), 0.0, 1.0, at_s=0.0),
        within(float("nan"), 0.0, 1.0, at_s=0.0),
    ],
)
def test_fail_in_numbers_of_numpy(finding: Finding) -> None:
    assert judged(promise([finding])).outcome is Outcome.FAIL


def test_fail_beats_undecided() -> None:
    assert judged(promise([undecided("dark")] * 9 + [BAD])).outcome is Outcome.FAIL


def raising(error: Exception) -> Callable[..., Any]:
    """A check, a scenario or a world that raises."""

    def crash(*given: object) -> Any:
        raise error

    return crash


@pytest.mark.parametrize(
    "run", [lambda scenario: history_of(died="exit status 1"), raising(DiedError("exit status 1"))]
)
def test_the_balancers_end_is_a_fail(run: Callable[[Scenario], History]) -> None:
    record = judged(promise([GOOD]), FakeWorld(run))
    assert (record.outcome, record.reason) == (Outcome.FAIL, "the balancer failed during the run: exit status 1")


def test_vacuous_without_findings() -> None:
    record = judged(promise([]))
    assert (record.outcome, record.observed) == (Outcome.VACUOUS, None)
    assert "no finding" in record.reason


def test_vacuous_without_traffic() -> None:
    record = judged(promise([GOOD]), FakeWorld(lambda scenario: History(scenario, 1, empty_requests(20))))
    assert record.outcome is Outcome.VACUOUS
    assert "no traffic" in record.reason


FAULTY = replace(SCENARIO, timeline=(Kill("gpu-1", at_s=0.5),))


@pytest.mark.parametrize(
    ("scenario", "steps", "message"),
    [
        (FAULTY, (StepSeen("Kill", 1, 0.5, float("nan")),), "never took effect: Kill of gpu-1 at 0.5 s"),
        (FAULTY, (), "1 faults and changes requested, 0 carried out"),
        (
            replace(SCENARIO, timeline=(Leave("gpu-1", 0.5), Join("gpu-1", 1.0))),
            (StepSeen("Leave", 1, 0.5, 0.6), StepSeen("Join", 1, 1.0, float("nan"))),
            "never took effect: Join of gpu-1 at 1.0 s",
        ),
    ],
)
def test_vacuous_if_a_step_never_took_effect(scenario: Scenario, steps: tuple[StepSeen, ...], message: str) -> None:
    record = judged(
        promise([GOOD], scenario=lambda claims: scenario), FakeWorld(lambda played: history_of(played, steps=steps))
    )
    assert (record.outcome, record.reason) == (Outcome.VACUOUS, message)


def test_a_fault_that_took_effect_is_judged() -> None:
    play = FakeWorld(lambda played: history_of(played, steps=(StepSeen("Kill", 1, 0.5, 0.51),)))
    assert judged(promise([GOOD], scenario=lambda claims: FAULTY), play).outcome is Outcome.PASS


def test_inconclusive_below_four_fifths_decided() -> None:
    assert judged(promise([GOOD] * 4 + [undecided("dark")])).outcome is Outcome.PASS
    record = judged(promise([GOOD] * 3 + [undecided("dark", at_s=0.3)]))
    assert (record.outcome, record.reason) == (Outcome.INCONCLUSIVE, "1 of 4 findings undecided: dark")
    assert record.first_try is not None


def test_inconclusive_by_an_unfinished_sample() -> None:
    short = sampled([False] * 5, conform=(0.0, 0.01), violate=(None, 0.05), at_s=0.0)
    record = judged(promise([GOOD] * 9 + [short]))
    assert record.outcome is Outcome.INCONCLUSIVE
    assert "5 samples do not decide" in record.reason
    assert record.first_try is not None


def test_samples_are_cut_where_they_decide() -> None:
    kept = judged(promise([sampled([False] * 5000, conform=(0.0, 0.01), violate=(None, 0.05), at_s=0.0)]))
    assert (kept.outcome, kept.observed, kept.alpha) == (Outcome.PASS, 0.0, 1e-4)
    assert kept.sample is not None
    assert kept.sample < 5000
    broken = judged(promise([sampled([True] * 5000, conform=(0.0, 0.01), violate=(None, 0.05), at_s=0.0)]))
    assert (broken.outcome, broken.observed) == (Outcome.FAIL, 1.0)


@pytest.mark.parametrize(
    ("item", "target", "reason"),
    [
        (promise([GOOD], needs=(Breaker, Affinity)), FakeTarget(), "not claimed: breaker"),
        (replace(promise([GOOD]), worlds=frozenset({World.SIM})), FakeTarget(), "made for sim only"),
        (promise([GOOD], scenario=raising(UnsupportedError("needs 3 backends"))), FakeTarget(), "needs 3 backends"),
        (
            promise([GOOD], without=(Retry, Hedge)),
            FakeTarget(Claims((Retry(), Hedge())), switches=frozenset({"hedge"})),
            "masked by retry, which cannot be switched off",
        ),
        (promise([GOOD]), FakeTarget(Claims((Limits(),))), "masked by limits, which cannot be switched off"),
    ],
)
def test_unsupported(item: Property, target: Target, reason: str) -> None:
    play = FakeWorld()
    record = judged(item, play, target=target)
    assert (record.outcome, record.reason) == (Outcome.UNSUPPORTED, reason)
    assert play.calls == []


def test_unsupported_by_the_world() -> None:
    record = judged(promise([GOOD]), FakeWorld(raising(UnsupportedError("a reset does not pass the fault proxy"))))
    assert (record.outcome, record.reason) == (Outcome.UNSUPPORTED, "a reset does not pass the fault proxy")


def test_unsupported_without_correlation() -> None:
    play = FakeWorld(lambda scenario: history_of(scenario, correlated=False))
    assert judged(promise([GOOD]), play).outcome is Outcome.UNSUPPORTED
    assert judged(promise([GOOD], attempts=False), play).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (promise(raising(ZeroDivisionError("0"))), "the check crashed: ZeroDivisionError: 0 (raise error)"),
        (promise([sampled([True], conform=(0.5, 0.6), violate=(0.55, None), at_s=0.0)]), "the check crashed: ValueErr"),
        (promise([GOOD], scenario=raising(KeyError("x"))), "the scenario crashed: KeyError: 'x' (raise error)"),
        (promise([GOOD], baselines=("magic",)), "a baseline crashed: KeyError"),
    ],
)
def test_error_by_a_crash(item: Property, reason: str) -> None:
    record = judged(item)
    assert record.outcome is Outcome.ERROR
    assert record.reason.startswith(reason)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (HarnessError("the load process died"), "the load process died"),
        (RuntimeError("oops"), "the live world crashed: RuntimeError: oops (raise error)"),
    ],
)
def test_error_by_the_world(error: Exception, reason: str) -> None:
    play = FakeWorld(raising(error))
    judge = Judge(FakeTarget(), 7, {World.LIVE: play})
    for name in ("a.b.c", "d.e.f"):
        record = judge.judge(promise([GOOD], name), World.LIVE)
        assert (record.outcome, record.reason) == (Outcome.ERROR, reason)
    assert len(play.calls) == 1, "a run that went wrong is not tried again"


@pytest.mark.parametrize("error", [TargetError("nginx: configuration refused"), ClaimsError("no such class")])
def test_nothing_can_be_judged(error: Exception) -> None:
    with pytest.raises(type(error)):
        judged(promise([GOOD]), FakeWorld(raising(error)))


# --- runs -------------------------------------------------------------------------------------------------


def test_equal_scenarios_share_a_run() -> None:
    play = FakeWorld()
    judge = Judge(FakeTarget(), 7, {World.SIM: play, World.LIVE: play})
    for name in ("a.b.c", "d.e.f"):
        judge.judge(promise([GOOD], name), World.SIM)
    assert len(play.calls) == 1
    judge.judge(promise([GOOD], scenario=lambda claims: replace(SCENARIO, backends=3)), World.SIM)
    judge.judge(promise([GOOD]), World.LIVE)
    assert len(play.calls) == 3
    assert {seed for _, _, seed in play.calls} == {7}


def test_features_off_are_part_of_the_scenario() -> None:
    play = FakeWorld()
    target = FakeTarget(Claims((Retry(), Hedge())), switches=frozenset({"retry"}))
    judge = Judge(target, 7, {World.SIM: play})
    judge.judge(promise([GOOD]), World.SIM)
    judge.judge(promise([GOOD], without=(Retry,), off=(Hedge,)), World.SIM)
    assert [scenario.off for _, scenario, _ in play.calls] == [frozenset(), frozenset({"retry"})]


def test_baselines_are_attached() -> None:
    def compared(history: History, claims: Claims) -> Findings:
        yield held(len(history.baseline("round_robin").attempts) == 20, at_s=0.0, observed=0, bound=0)

    assert judged(promise(compared, baselines=("round_robin",))).outcome is Outcome.PASS


# --- slack ------------------------------------------------------------------------------------------------


def noisy_once(scenario: Scenario) -> History:
    """Slack of 0.3 s with a shortest interval of 1 s; sufficient once that interval is 2 s."""
    return history_of(scenario, slack_s=0.3)


def test_an_inconclusive_run_is_repeated_at_twice_the_time_scale() -> None:
    play = FakeWorld(noisy_once)
    record = judged(promise([GOOD]), play)
    assert (record.outcome, record.time_scale, record.slack_s) == (Outcome.PASS, 2.0, 0.3)
    assert record.first_try is not None
    assert (record.first_try.outcome, record.first_try.time_scale) == (Outcome.INCONCLUSIVE, 1.0)
    assert record.first_try.reason == (
        "1 of 1 findings undecided: slack 300.0 ms, at most 200.0 ms can be trusted here"
    )
    (_, first, _), (longer, second, _) = play.calls
    assert second == scale_durations(first, 2.0)
    assert longer.claims[Failover].within_s == 2.0


def test_the_check_sees_the_longer_claims() -> None:
    observed: list[float] = []

    def check(history: History, claims: Claims) -> Findings:
        observed.append(claims[Failover].within_s)
        yield GOOD

    judged(promise(check), FakeWorld(noisy_once))
    assert observed == [1.0, 2.0]


def test_repeated_once_only() -> None:
    record = judged(promise([GOOD]), FakeWorld(lambda scenario: history_of(scenario, slack_s=9.0)))
    assert (record.outcome, record.time_scale) == (Outcome.INCONCLUSIVE, 2.0)


@pytest.mark.parametrize(
    ("findings", "world", "target"),
    [
        pytest.param([GOOD], World.LIVE, FakeTarget(fixed=True), id="fixed settings"),
        pytest.param([GOOD], World.SIM, FakeTarget(), id="sim"),
    ],
)
def test_not_repeated(findings: list[Finding], world: World, target: Target) -> None:
    play = FakeWorld(noisy_once)
    record = judged(promise(findings), play, world, target)
    assert (record.outcome, record.first_try, len(play.calls)) == (Outcome.INCONCLUSIVE, None, 1)


def test_only_noisy_seconds_are_undecided() -> None:
    noise = np.array([0.0, 0.5, 0.0])
    noisy = FakeWorld(lambda scenario: replace(history_of(scenario), slack_s=noise))
    record = judged(promise([replace(BAD, at_s=1.2), *[replace(GOOD, at_s=0.5)] * 5]), noisy)
    assert (record.outcome, [row.ok for row in record.findings].count(None)) == (Outcome.PASS, 1)
    spanning = promise([replace(BAD, at_s=0.5, until_s=2.5)])
    assert judged(spanning, noisy, target=FakeTarget(fixed=True)).outcome is Outcome.INCONCLUSIVE


def test_exact_findings_are_never_undecided() -> None:
    loud = FakeWorld(lambda scenario: history_of(scenario, slack_s=9.0))
    assert judged(promise([replace(GOOD, exact=True)]), loud).outcome is Outcome.PASS
    assert judged(promise([replace(BAD, exact=True)]), loud).outcome is Outcome.FAIL


def test_a_scenario_without_intervals_has_no_noisy_seconds() -> None:
    item = promise([BAD], scenario=lambda claims: replace(SCENARIO, intervals_s=()))
    assert judged(item, FakeWorld(lambda scenario: history_of(scenario, slack_s=9.0))).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("observed_s", "outcome"),
    [(0.86, Outcome.PASS), (0.84, Outcome.FAIL), (2.14, Outcome.PASS), (2.16, Outcome.FAIL)],
)
def test_times_are_widened_by_the_slack(observed_s: float, outcome: Outcome) -> None:
    slow = FakeWorld(lambda scenario: history_of(scenario, slack_s=0.15))
    record = judged(promise([within(observed_s, 1.0, 2.0, at_s=0.0)]), slow)
    assert (record.outcome, record.bound) == (outcome, (1.0, 2.0))
