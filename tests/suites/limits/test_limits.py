"""Limits on hand-written histories: which requests are admitted when, and how the others are answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from harness.claims.features import Claims, Limits
from harness.evidence.history import History
from harness.judge import Judge, decide
from harness.property.declare import catalogue
from harness.property.findings import Held, Within, undecided
from harness.property.verdict import Outcome
from harness.scenario.arrivals import Arrival, draw
from harness.scenario.model import Failure, UnsupportedError
from harness.targets.reference import ReferenceTarget
from suites.limits.limits import (
    concurrency_never_more,
    rate_every_window,
    rate_let_in,
    refusals_told_at_once,
    urgency_critical_first,
)
from suites.limits.scenarios import CRITICAL, CRITICALS, HOT, NORMAL, crowd, hot_second
from suites.margins import TRAVEL_S
from tests.suites.histories import SEED, history_of, only, outcome

CLAIMS = Claims((Limits(rate_per_s=100.0, burst=20, concurrency=8, queue=16, by_urgency=True),))
LATE_S = 0.001


def hot(admit: Callable[[Arrival, int], bool], status: int = 429, answered_after_s: float = LATE_S) -> History:
    """A hot second in which the others are rejected; `admit` gets an arrival and the number admitted before."""
    count = 0

    def place_of(arrival: Arrival) -> int | None:
        nonlocal count
        if not admit(arrival, count):
            return None
        count += 1
        return arrival.number % 4

    history = history_of(hot_second(CLAIMS), place_of)
    requests = history.requests.copy()
    rejected = requests["status"] == 502
    requests["status"][rejected] = status
    requests["end_s"][rejected] = requests["sent_s"][rejected] + answered_after_s
    return replace(history, requests=requests)


def by_bucket(rate_per_s: float = 100.0, burst: float = 20.0) -> Callable[[Arrival, int], bool]:
    """Admit like a token bucket."""
    level, then_s = burst, 0.0

    def admit(arrival: Arrival, count: int) -> bool:
        nonlocal level, then_s
        level, then_s = min(burst, level + rate_per_s * (arrival.at_s - then_s)), arrival.at_s
        if level < 1:
            return False
        level -= 1
        return True

    return admit


def by_the_clock(arrival: Arrival, count: int) -> bool:
    """Admit the first hundred of every full second."""
    return True if arrival.stream == 0 else _in_second(arrival) < 100


def _in_second(arrival: Arrival) -> int:
    arrivals = draw(hot_second(CLAIMS).load, SEED)
    return sum(int(other.at_s) == int(arrival.at_s) and other.number < arrival.number for other in arrivals)


# --- rate -------------------------------------------------------------------------------------------------


def test_a_bucket_keeps_its_rate_in_every_window() -> None:
    found = only(rate_every_window, hot(by_bucket()), CLAIMS)
    assert found.ok
    assert isinstance(found.observed, int) and isinstance(found.bound, int) and found.observed <= found.bound
    assert "20 and 100/s" in found.note


@pytest.mark.parametrize("bucket", [by_bucket(burst=22.0), by_bucket(rate_per_s=130.0)], ids=["burst", "rate"])
def test_a_bucket_that_is_too_large_is_seen(bucket: Callable[[Arrival, int], bool]) -> None:
    assert only(rate_every_window, hot(bucket), CLAIMS).ok is False


def test_two_allowances_around_a_full_second_are_seen() -> None:
    found = only(rate_every_window, hot(by_the_clock), CLAIMS)
    assert found.ok is False
    assert isinstance(found.observed, int) and found.observed > 150
    assert found.until_s is not None and found.at_s < 1.0 < found.until_s


def test_slack_widens_a_window() -> None:
    history = hot(by_bucket(burst=22.0))
    noisy = replace(history, slack_s=np.full(3, 0.002))
    assert only(rate_every_window, noisy, CLAIMS).ok
    worse = replace(hot(by_bucket(burst=30.0)), slack_s=np.full(3, 0.002))
    assert only(rate_every_window, worse, CLAIMS).ok is False
    assert TRAVEL_S * 100 >= 1


def test_a_load_within_the_limits_proves_nothing() -> None:
    roomy = Claims((Limits(rate_per_s=100.0, burst=5000),))
    assert rate_every_window(hot(by_bucket()), roomy) == []
    assert rate_every_window(hot(lambda arrival, count: False), CLAIMS) == []
    assert rate_every_window(hot(by_bucket()), Claims((Limits(rate_per_s=None, concurrency=3),))) == []
    assert rate_let_in(hot(by_bucket()), Claims((Limits(rate_per_s=None, concurrency=3),))) == []


def test_what_the_rate_allows_is_let_in() -> None:
    calm, rush = rate_let_in(hot(by_bucket()), CLAIMS)
    assert isinstance(calm, Held) and isinstance(rush, Held)
    assert (calm.ok, calm.observed, calm.sample) == (True, 30, 30)
    assert rush.ok and isinstance(rush.observed, int) and 110 <= rush.observed <= 130


@pytest.mark.parametrize(
    ("admit", "broken"),
    [
        (by_bucket(), []),
        (by_bucket(rate_per_s=60.0), ["hot"]),
        (lambda arrival, count: count < 30, ["hot"]),
        (lambda arrival, count: arrival.number % 2 == 0, ["calm"]),
    ],
    ids=["as claimed", "lower rate", "nothing when hot", "every second one"],
)
def test_too_little_is_seen(admit: Callable[[Arrival, int], bool], broken: list[str]) -> None:
    findings = rate_let_in(hot(admit), CLAIMS)
    assert [item.note[: item.note.index(":")] for item in findings if isinstance(item, Held) and not item.ok] == broken


def test_a_burst_of_one_lets_less_in() -> None:
    """A bucket that holds a single request earns no tokens while it is full."""
    singly = Claims((Limits(rate_per_s=100.0, burst=1),))
    history = hot(by_bucket(burst=1.0))
    assert outcome(rate_let_in, history, singly) is Outcome.PASS
    assert outcome(rate_let_in, history, CLAIMS) is Outcome.FAIL


# --- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "ok"), [(429, True), (503, True), (500, False), (200, False)])
def test_a_refusal_is_told_by_its_status(status: int, ok: bool) -> None:
    finding = refusals_told_at_once(hot(by_bucket(), status), CLAIMS)[0]
    assert isinstance(finding, Held)
    assert finding.ok is ok


def test_a_connection_that_is_closed_tells_nothing() -> None:
    history = hot(by_bucket())
    requests = history.requests.copy()
    rejected = np.flatnonzero(requests["status"] == 429)
    requests["failure"][rejected[:3]] = Failure.CLOSED
    finding = refusals_told_at_once(replace(history, requests=requests), CLAIMS)[0]
    assert isinstance(finding, Held)
    assert (finding.ok, finding.observed, finding.sample) == (False, 3, len(rejected))


@pytest.mark.parametrize(("answered_after_s", "expected"), [(0.019, Outcome.PASS), (0.021, Outcome.FAIL)])
def test_refusals_come_within_milliseconds(answered_after_s: float, expected: Outcome) -> None:
    history = hot(by_bucket(), answered_after_s=answered_after_s)
    quick = refusals_told_at_once(history, CLAIMS)[1]
    assert isinstance(quick, Within)
    assert quick.observed_s == pytest.approx(answered_after_s)
    assert decide([quick], history).outcome is expected


def test_a_few_refusals_have_no_quantile_and_none_are_no_evidence() -> None:
    assert len(refusals_told_at_once(hot(lambda arrival, count: arrival.number >= 35), CLAIMS)) == 1
    assert refusals_told_at_once(hot(lambda arrival, count: True), CLAIMS) == []


# --- a crowd ----------------------------------------------------------------------------------------------


def crowded(critical_waits_s: float | None, normal_waits_s: float = 0.5, service_s: float = 0.01) -> History:
    """All normal requests wait for this long, and so do critical ones; None: critical ones are rejected at once."""
    history = history_of(crowd(CLAIMS), lambda arrival: arrival.number % 4)
    requests, attempts = history.requests.copy(), history.attempts.copy()
    critical = history.in_stream(CRITICAL)[attempts["request"]]
    attempts["start_s"] += np.where(critical, critical_waits_s or 0.0, normal_waits_s)
    attempts["end_s"] = attempts["start_s"] + service_s
    requests["end_s"][attempts["request"]] = attempts["end_s"]
    if critical_waits_s is None:
        rejected = history.in_stream(CRITICAL)
        requests["status"][rejected] = 503
        requests["end_s"][rejected] = requests["sent_s"][rejected] + 0.001
        attempts = attempts[~critical]
    return replace(history, requests=requests, attempts=attempts[np.argsort(attempts["start_s"], kind="stable")])


def test_critical_first() -> None:
    findings = urgency_critical_first(crowded(0.001), CLAIMS)
    assert len(findings) == CRITICALS
    assert all(isinstance(found, Held) and found.ok for found in findings)


def test_a_critical_one_that_waits_in_turn_is_seen() -> None:
    assert outcome(urgency_critical_first, crowded(0.5), CLAIMS) is Outcome.FAIL


def test_a_critical_one_that_is_turned_away_while_normal_ones_wait_is_seen() -> None:
    findings = urgency_critical_first(crowded(None), CLAIMS)
    assert all(isinstance(found, Held) and not found.ok for found in findings)
    assert "rejected with 503 while" in findings[0].note  # type: ignore[union-attr]


@pytest.mark.parametrize("waits_s", [0.001, None], ids=["let in", "rejected"])
def test_where_no_normal_one_waits_nothing_is_put_to_the_test(waits_s: float | None) -> None:
    assert urgency_critical_first(crowded(waits_s, normal_waits_s=0.001), CLAIMS) == []


def test_urgency_counts_only_where_that_is_claimed() -> None:
    assert urgency_critical_first(crowded(0.5), Claims((Limits(concurrency=8, queue=16),))) == []


@pytest.mark.parametrize(("service_s", "most"), [(0.124, 8), (0.126, 9)])
def test_no_more_at_a_time_than_claimed(service_s: float, most: int) -> None:
    """A normal request every 1/64 s, so that the ninth arrives an eighth of a second after the first."""
    history = crowded(0.5, service_s=service_s)
    normal = history.attempts[history.in_stream(NORMAL)[history.attempts["request"]]]
    found = only(concurrency_never_more, replace(history, attempts=normal), CLAIMS)
    assert (found.ok, found.observed, found.bound) == (most <= 8, most, 8)


def test_slack_allows_for_ends_that_are_seen_late() -> None:
    history = crowded(0.5, service_s=0.112)
    normal = history.attempts[history.in_stream(NORMAL)[history.attempts["request"]]]
    noisy = replace(history, attempts=normal, slack_s=np.full(6, 0.002))
    assert only(concurrency_never_more, noisy, CLAIMS).ok


def test_a_sliver_of_a_crowd_proves_nothing() -> None:
    history = crowded(0.5)
    few = replace(history, attempts=history.attempts[:31])
    (found,) = concurrency_never_more(few, CLAIMS)
    assert only(concurrency_never_more, replace(history, attempts=history.attempts[:32]), CLAIMS).sample == 32
    assert found == undecided(found.why)  # type: ignore[union-attr]
    assert concurrency_never_more(crowded(0.5), Claims((Limits(),))) == []


# --- scenarios --------------------------------------------------------------------------------------------


def test_a_hot_second_asks_for_three_times_the_rate() -> None:
    scenario = hot_second(CLAIMS)
    stream = scenario.load.streams[scenario.load.index(HOT)]
    assert (stream.rate_per_s, stream.requests) == (300.0, 300)
    slow = hot_second(Claims((Limits(rate_per_s=10.0, burst=20),)))
    phase = slow.phase(HOT)
    assert phase.end_s - phase.start_s == pytest.approx(3.0)


def test_a_crowd_is_refused_for_its_number_and_not_for_its_rate() -> None:
    scenario = crowd(CLAIMS)
    offered_per_s = sum(stream.rate_per_s for stream in scenario.load.streams)
    assert offered_per_s == pytest.approx(80.0)
    assert scenario.server.decode_step_s * scenario.load.streams[0].output_tokens == pytest.approx(0.2)
    lone = crowd(Claims((Limits(rate_per_s=None, concurrency=4, queue=4),)))
    assert sum(stream.rate_per_s for stream in lone.load.streams) == pytest.approx(40.0)


@pytest.mark.parametrize(
    ("limits", "scenario", "finding"),
    [
        (Limits(rate_per_s=None, concurrency=8), hot_second, "no rate is claimed"),
        (Limits(rate_per_s=5000.0), hot_second, "too many or too few to send"),
        (Limits(rate_per_s=1.0, burst=100), hot_second, "too many or too few to send"),
        (Limits(concurrency=8), crowd, "no concurrency is claimed, or no queue"),
        (Limits(queue=8), crowd, "no concurrency is claimed, or no queue"),
        (Limits(rate_per_s=None, concurrency=8, queue=10_000), crowd, "take too long to fill"),
        (Limits(rate_per_s=1.0, concurrency=8, queue=8), crowd, "take too long to fill"),
    ],
)
def test_what_cannot_be_put_to_the_test(limits: Limits, scenario: Callable[[Claims], object], finding: str) -> None:
    with pytest.raises(UnsupportedError, match=finding):
        scenario(Claims((limits,)))


def test_limits_are_off_in_all_that_is_not_about_them() -> None:
    judge = Judge(ReferenceTarget(), 1, {})
    for item in catalogue():
        assert ("limits" in judge.scenario_of(item).off) == (item.family != "limits")
