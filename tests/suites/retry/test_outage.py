"""Budgets and outages on hand-written histories: exact at the bound, in every window."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.claims.features import Claims, Retry
from harness.evidence.history import History
from harness.property.declare import MakeScenario
from harness.property.findings import Held, Undecided, Within
from harness.property.verdict import Outcome
from harness.scenario.faults import OverCapacity
from harness.scenario.model import Scenario, UnsupportedError, World
from suites.retry.outage import (
    FULL,
    QUARTER,
    OutageSize,
    _allowed,
    budget_every_window,
    full_outage,
    outage_answers,
    outage_full_size,
    outage_recovers,
    quarter_outage,
)
from tests.suites.histories import outcome
from tests.suites.retry_histories import TriedRequest, Try, refusal, written

RETRY = Retry(attempts=3, statuses=(503,), budget_share=0.1, budget_floor=10, budget_window_s=1.0)
CLAIMS = Claims((RETRY,))
UNBUDGETED = Claims((replace(RETRY, budget_share=None),))
SCENARIO = quarter_outage(CLAIMS)
BEGAN_S = QUARTER.before_s
OVER_S = QUARTER.before_s + QUARTER.outage_s
END_S = SCENARIO.end_s


def spread(count: int, start_s: float, end_s: float) -> list[float]:
    """`count` times, evenly in [start_s, end_s)."""
    return [start_s + (end_s - start_s) * number / count for number in range(count)]


def failing(times_s: list[float], retried: int, wait_s: float = 0.02) -> list[TriedRequest]:
    """Requests that are refused at these times; the last `retried` of them are retried once and refused again."""
    return [
        TriedRequest(
            (refusal(at_s), refusal(at_s + wait_s)) if number >= len(times_s) - retried else (refusal(at_s),), 503
        )
        for number, at_s in enumerate(times_s)
    ]


# --- the scenarios ----------------------------------------------------------------------------------------


def capacities(scenario: Scenario) -> list[OverCapacity]:
    """All steps of an outage."""
    return [step for step in scenario.timeline if isinstance(step, OverCapacity)]


@pytest.mark.parametrize(("make", "size"), [(quarter_outage, QUARTER), (full_outage, FULL)])
def test_the_outage_is_one_of_capacity(make: MakeScenario, size: OutageSize) -> None:
    scenario = make(CLAIMS)
    rates = [(step.at_s, step.rate_per_s) for step in capacities(scenario)]
    assert rates == [
        (0.0, size.capacity_per_s),
        (size.before_s, size.outage_capacity_per_s),
        (size.before_s + size.outage_s, size.capacity_per_s),
    ]
    (stream,) = scenario.load.streams
    assert (stream.rate_per_s, stream.arrivals) == (size.rate_per_s, "poisson")


def test_the_published_figures_and_a_quarter_of_them() -> None:
    rates = [[size.rate_per_s, size.capacity_per_s, size.outage_capacity_per_s] for size in (FULL, QUARTER)]
    assert rates == [[1000.0, 1200.0, 120.0], [250.0, 300.0, 30.0]]
    assert FULL.outage_s == 10.0
    assert outage_full_size.worlds == frozenset({World.SIM})


@pytest.mark.parametrize(("share", "fresh", "whole"), [(0.29, 100, 29), (0.1, 99, 9), (0.1, 130, 13), (0.0, 7, 0)])
def test_shares_are_whole_and_exact(share: float, fresh: int, whole: int) -> None:
    assert _allowed(share, np.array([fresh])).tolist() == [whole]


def test_a_fixed_fleet_shares_the_capacity() -> None:
    scenario = quarter_outage(replace(CLAIMS, fixed_backends=4))
    assert scenario.backends == 4
    assert [step.rate_per_s for step in capacities(scenario)] == [75.0] * 4 + [7.5] * 4 + [75.0] * 4
    assert min(step.burst for step in capacities(scenario)) >= 1


def test_who_does_not_retry_503_has_no_such_outage() -> None:
    with pytest.raises(UnsupportedError, match="503"):
        quarter_outage(Claims((Retry(statuses=(502,)),)))


# --- budget -----------------------------------------------------------------------------------------------


def budget(requests: list[TriedRequest], slack_s: float = 0.0) -> list[Held]:
    """All findings about the budget."""
    found = budget_every_window(written(SCENARIO, requests, slack_s), CLAIMS)
    assert all(isinstance(item, Held) for item in found)
    return [item for item in found if isinstance(item, Held)]


def test_a_budget_that_is_used_up_and_one_retry_too_many() -> None:
    """A hundred fresh requests within a fifth of a second: a floor of ten, and ten for the requests."""
    (kept,) = budget(failing(spread(100, 2.0, 2.2), retried=20))
    assert (kept.ok, kept.observed, kept.bound) == (True, 20, 20)
    (broken,) = budget(failing(spread(100, 2.0, 2.2), retried=21))
    assert (broken.ok, broken.observed, broken.bound) == (False, 21, 20)
    assert not broken.exact


def test_fresh_requests_are_those_of_the_window() -> None:
    """A hundred fresh requests two seconds earlier earn nothing now, whatever the nominal rate."""
    early = [TriedRequest((Try(at_s),)) for at_s in spread(100, 0.5, 0.7)]
    (broken,) = budget(early + failing(spread(40, 2.7, 2.9), retried=15))
    assert (broken.ok, broken.observed, broken.bound) == (False, 15, 14)
    (kept,) = budget(early + failing(spread(40, 2.7, 2.9), retried=14))
    assert (kept.ok, kept.bound) == (True, 14)


def test_a_window_may_lie_across_full_seconds() -> None:
    """Twenty retries just before and twenty just after second 3: each second alone stays within its budget."""
    before = failing(spread(100, 2.7, 2.9), retried=20)
    after = failing(spread(100, 3.1, 3.3), retried=20)
    findings = budget(before + after)
    assert [item.ok for item in findings] == [False]
    assert (findings[0].observed, findings[0].bound) == (40, 30)


def test_each_stretch_of_a_window_is_an_occasion() -> None:
    findings = budget(
        [item for start_s in (1.0, 2.5, 4.0) for item in failing(spread(100, start_s, start_s + 0.2), 20)]
    )
    assert [(item.ok, item.observed) for item in findings] == [(True, 20)] * 3


def test_a_window_counts_what_reached_the_backends_in_it() -> None:
    """Twenty retries .96 s before another twenty: within the tolerance for a backend's late log; not at .94 s."""

    def both(apart_s: float) -> list[bool]:
        first = failing(spread(100, 2.0, 2.001), 20, wait_s=0.01)
        second = failing(spread(100, 2.0 + apart_s, 2.001 + apart_s), 20, wait_s=0.01)
        return [item.ok for item in budget(first + second)]

    assert set(both(0.96)) == {True}
    assert False in both(0.94)


def test_slack_widens_the_window_and_too_much_of_it_leaves_it_open() -> None:
    first = failing(spread(100, 2.0, 2.001), 20, wait_s=0.01)
    second = failing(spread(100, 2.94, 2.941), 20, wait_s=0.01)
    assert [item.ok for item in budget(first + second, slack_s=0.02)] == [True]
    over = written(SCENARIO, failing(spread(100, 2.0, 2.2), retried=30), slack_s=0.21)
    assert outcome(budget_every_window, over, CLAIMS) is Outcome.INCONCLUSIVE


def test_few_failures_do_not_put_a_budget_to_the_test() -> None:
    """As many failures as allowed retries are inconclusive; with more, the budget was used up or exceeded."""

    def rescued(count: int) -> list[TriedRequest]:
        return [TriedRequest((refusal(at_s), Try(at_s + 0.02))) for at_s in spread(count, 2.0, 2.2)]

    assert budget(rescued(11)) == []
    (broken,) = budget(rescued(12))
    assert (broken.ok, broken.observed, broken.bound) == (False, 12, 11)
    assert budget([TriedRequest((Try(at_s),)) for at_s in spread(100, 2.0, 2.2)]) == []
    with pytest.raises(UnsupportedError, match="no budget"):
        budget_every_window(written(SCENARIO, []), UNBUDGETED)


# --- answers ----------------------------------------------------------------------------------------------


def answering(count: int) -> History:
    """`count` requests of the outage are answered, and one just before and one just after it."""
    inside = spread(count, BEGAN_S, OVER_S)
    refused = spread(100, BEGAN_S + 0.001, OVER_S)
    answered = [TriedRequest((Try(at_s),)) for at_s in [BEGAN_S - 0.001, *inside, OVER_S]]
    return written(SCENARIO, [*answered, *failing(refused, retried=0)])


def compared(count: int, baseline: int = 100) -> History:
    """The same history with another run as its baseline."""
    return answering(count).with_baselines({"round_robin": answering(baseline)})


@pytest.mark.parametrize(("count", "kept"), [(140, True), (100, True), (95, True), (94, False), (0, False)])
def test_not_fewer_answers_than_without_retries(count: int, kept: bool) -> None:
    (found,) = outage_answers(compared(count), CLAIMS)
    assert isinstance(found, Held)
    assert (found.ok, found.observed, found.bound, found.sample) == (kept, count, 95.0, 100)


def test_without_any_answer_there_is_nothing_to_compare() -> None:
    assert outage_answers(compared(5, baseline=0), CLAIMS) == []


# --- recovery ---------------------------------------------------------------------------------------------


def recovering(again: list[float]) -> History:
    """A hundred fresh requests a second after an outage, and retries at these times after its end."""
    fresh = [TriedRequest((Try(at_s),)) for at_s in spread(int(100 * (END_S - OVER_S)), OVER_S, END_S)]
    late = [TriedRequest((refusal(OVER_S - 0.01), Try(OVER_S + at_s)), sent_s=OVER_S - 0.01) for at_s in again]
    return written(SCENARIO, fresh + late)


def recovery(history: History) -> Within:
    """The only finding about recovery."""
    (found,) = outage_recovers(history, CLAIMS)
    assert isinstance(found, Within)
    return found


def test_nothing_comes_back() -> None:
    found = recovery(recovering([0.5]))
    assert (found.observed_s, found.low_s, found.high_s) == (0.0, 0.0, 4.0)
    assert outcome(outage_recovers, recovering([0.5]), CLAIMS) is Outcome.PASS


def test_six_retries_in_a_second_are_not_normal_and_five_are() -> None:
    assert recovery(recovering([4.15] * 5)).observed_s == 0.0
    found = recovery(recovering([4.15] * 6))
    assert found.observed_s == pytest.approx(4.2)
    assert outcome(outage_recovers, recovering([4.15] * 6), CLAIMS) is Outcome.FAIL


def test_recovery_counts_from_the_last_window_that_is_not_normal() -> None:
    assert recovery(recovering([1.95] * 30)).observed_s == pytest.approx(2.0)
    assert outcome(outage_recovers, recovering([1.95] * 30), CLAIMS) is Outcome.PASS
    assert outcome(outage_recovers, recovering([3.95] * 30), CLAIMS) is Outcome.PASS
    assert outcome(outage_recovers, recovering([4.05] * 30), CLAIMS) is Outcome.FAIL


def test_without_failures_there_was_no_outage_to_recover_from() -> None:
    assert outage_recovers(recovering([]), CLAIMS) == []


def test_an_outage_that_ended_too_late_leaves_it_open() -> None:
    history = recovering([0.5])
    late = tuple(replace(step, effective_s=step.effective_s + 0.3 * (step.asked_s > 3.0)) for step in history.steps)
    (found,) = outage_recovers(replace(history, steps=late), CLAIMS)
    assert isinstance(found, Undecided)


# --- full size --------------------------------------------------------------------------------------------


def test_the_full_size_judges_peak_answers_and_recovery() -> None:
    scenario = full_outage(CLAIMS)
    began_s, over_s = FULL.before_s, FULL.before_s + FULL.outage_s
    answered = [TriedRequest((Try(at_s),)) for at_s in spread(100, began_s, over_s)]

    def whole(retried: int) -> History:
        history = written(scenario, answered + failing(spread(200, 5.0, 5.5), retried))
        return history.with_baselines({"round_robin": history})

    peak, answers, recovered = outage_full_size(whole(10), CLAIMS)
    assert isinstance(peak, Held) and isinstance(answers, Held) and isinstance(recovered, Within)
    assert (peak.ok, answers.ok, answers.observed, recovered.observed_s) == (True, True, 100, 0.0)
    peak, *_ = outage_full_size(whole(32), CLAIMS)
    assert isinstance(peak, Held) and not peak.ok
    # A tenth of a second of the 200, a second of the 100 with both its ends, and all retries.
    assert (peak.observed, peak.bound) == (40 + 11 + 32, 40 + 11 + 5 + 10)
    assert len(outage_full_size(whole(32), UNBUDGETED)) == 2
