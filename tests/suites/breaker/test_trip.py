"""Properties of trips on hand-written histories."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from harness.claims.features import Breaker, Claims
from harness.evidence.history import History
from harness.property.findings import Finding, Held, Within
from harness.property.verdict import Outcome
from harness.scenario.arrivals import Arrival
from harness.scenario.faults import FailingStatus, OverCapacity, Slow
from harness.scenario.model import UnsupportedError
from suites.breaker.scenarios import all_fail, one_slow, share_fails
from suites.breaker.trip import (
    stays_closed_below_latency,
    stays_closed_below_rate,
    stays_closed_on_client_errors,
    trips_at_count,
    trips_at_latency,
    trips_at_rate,
)
from tests.suites.breaker_histories import BREAKER, CLAIMS, Fate, FateOf, FaultyBackend, behind, claiming, noisy, played
from tests.suites.histories import outcome

COUNT_ONLY = claiming(replace(BREAKER, error_rate=None))


def facts(findings: list[Finding]) -> list[tuple[bool, object, object]]:
    return [(found.ok, found.observed, found.bound) for found in findings if isinstance(found, Held)]


def times(findings: list[Finding]) -> list[float]:
    return [found.observed_s for found in findings if isinstance(found, Within)]


# --- at its count ------------------------------------------------------------------------------------------


def failing_fleet(failures: int = 5, claims: Claims = CLAIMS) -> History:
    """Four backends fail from the same moment; each trips after `failures` failures."""
    scenario = all_fail(claims)
    fails_s = scenario.phase("failing").start_s
    faulty = [FaultyBackend(number, fails_s, math.inf, (0.5, 1.0), failures) for number in range(4)]
    return played(scenario, behind(4, *faulty))


def test_exactly_the_count() -> None:
    found = trips_at_count(failing_fleet(), CLAIMS)
    assert facts(found) == [(True, 5, 5)] * 4
    assert times(found) == [0.0] * 4
    assert {(item.low_s, item.high_s) for item in found if isinstance(item, Within)} == {(0.0, 0.005)}
    assert outcome(trips_at_count, failing_fleet(), CLAIMS) is Outcome.PASS


def test_one_failure_too_few() -> None:
    found = trips_at_count(failing_fleet(4), CLAIMS)
    assert facts(found) == [(False, 4, 5)] * 4
    assert times(found) == []
    assert outcome(trips_at_count, failing_fleet(4), CLAIMS) is Outcome.FAIL


def test_one_failure_too_many() -> None:
    """The sixth request is sent up to 20 ms after the fifth, whose client had its answer after 4 ms."""
    found = trips_at_count(failing_fleet(6), CLAIMS)
    assert [ok for ok, _, _ in facts(found)] == [True] * 4
    assert max(times(found)) == pytest.approx(0.016)
    assert outcome(trips_at_count, failing_fleet(6), CLAIMS) is Outcome.FAIL


def test_a_breaker_that_never_trips() -> None:
    history = failing_fleet(10**6)
    assert min(times(trips_at_count(history, CLAIMS))) > 1.0
    assert outcome(trips_at_count, history, COUNT_ONLY) is Outcome.FAIL


def test_slack_forgives_what_it_may_have_caused() -> None:
    """16 ms against 5 ms and a slack of 12 ms; 81 ms of slack are more than a fifth of the shortest open time."""
    assert outcome(trips_at_count, noisy(failing_fleet(6), 0.012), CLAIMS) is Outcome.PASS
    assert outcome(trips_at_count, noisy(failing_fleet(6), 0.010), CLAIMS) is Outcome.FAIL
    assert outcome(trips_at_count, noisy(failing_fleet(), 0.081), CLAIMS) is Outcome.INCONCLUSIVE


def test_a_fleet_that_never_fails_is_vacuous() -> None:
    assert trips_at_count(played(all_fail(CLAIMS), behind(4)), CLAIMS) == []


def test_a_few_failures_without_a_silence_yield_no_finding() -> None:
    """The load ends before the fifth failure."""
    scenario = all_fail(CLAIMS)
    faulty = FaultyBackend(0, scenario.end_s - 0.06, math.inf, (0.5,))
    assert trips_at_count(played(scenario, behind(4, faulty)), CLAIMS) == []


def test_a_rate_that_is_reached_first_is_no_violation_of_the_count() -> None:
    """Claimed are forty failures in a row and half of twenty calls; the rate is reached long before the count."""
    claims = claiming(replace(BREAKER, failures=40))
    history = failing_fleet(30, claims)
    assert trips_at_count(history, claims) == []


def test_without_a_count_unsupported() -> None:
    claims = claiming(replace(BREAKER, failures=None))
    with pytest.raises(UnsupportedError, match="does not count"):
        trips_at_count(failing_fleet(), claims)


# --- at its rate -------------------------------------------------------------------------------------------


def shares(claims: Claims = CLAIMS, mild: str = "fggg", severe: str = "fffg", until: int | None = None) -> History:
    """One key, whose backend fails by these patterns; it is silent from severe request number `until` on."""
    scenario = share_fails(claims)
    severe_s = scenario.phase("severe").start_s
    first = next(number for number in range(10**6) if scenario.load.streams[0].start_s + number / 40 >= severe_s)

    def fate_of(arrival: Arrival) -> Fate:
        since = arrival.number - first
        if until is not None and since >= until:
            return Fate(1)
        pattern = mild if since < 0 else severe
        return Fate(0, 500 if pattern[since % len(pattern)] == "f" else 200)

    return played(scenario, fate_of)


def reached_at() -> int:
    """Number of requests of the severe phase sent until the rate was certain; a client has its answer after 4 ms."""
    history = shares()
    (found,) = trips_at_rate(history, CLAIMS)
    assert isinstance(found, Within)
    sent_s = history.requests["sent_s"]
    severe_s = history.scenario.phase("severe").start_s
    return int(((sent_s >= severe_s) & (sent_s < found.at_s - 0.003)).sum())


def test_the_computed_call_reaches_the_rate() -> None:
    """A window of 80 calls with 20 failures. Each four severe calls add two failures: 41 of 82 after 42 or 43 calls."""
    assert reached_at() == 43


def test_trips_when_the_rate_is_reached() -> None:
    history = shares(until=reached_at())
    (found,) = trips_at_rate(history, CLAIMS)
    assert isinstance(found, Within) and (found.observed_s, found.high_s) == (0.0, 0.005)
    assert outcome(trips_at_rate, history, CLAIMS) is Outcome.PASS
    assert outcome(stays_closed_below_rate, history, CLAIMS) is Outcome.PASS


def test_one_call_later_is_too_late() -> None:
    """Requests are 25 ms apart, and a client has its answer after 4 ms."""
    history = shares(until=reached_at() + 1)
    (found,) = trips_at_rate(history, CLAIMS)
    assert isinstance(found, Within) and found.observed_s == pytest.approx(0.021)
    assert outcome(trips_at_rate, history, CLAIMS) is Outcome.FAIL


def test_never_tripping_is_too_late() -> None:
    assert outcome(trips_at_rate, shares(), CLAIMS) is Outcome.FAIL


def test_up_to_four_calls_sooner_is_in_time() -> None:
    """Two calls may lie beyond either edge of the window, so the rate may have been reached, which is enough."""
    history = shares(until=reached_at() - 3)
    assert times(trips_at_rate(history, CLAIMS)) == [0.0]
    assert outcome(stays_closed_below_rate, history, CLAIMS) is Outcome.PASS


def test_silence_below_the_rate() -> None:
    history = shares(until=8)
    (found,) = stays_closed_below_rate(history, CLAIMS)
    assert isinstance(found, Held) and not found.ok and found.bound == 0.5
    assert 0.25 < float(str(found.observed)) < 0.4
    assert trips_at_rate(history, CLAIMS) == []


def test_silence_below_the_minimum() -> None:
    """All of the first four fail; twenty calls are the minimum."""
    history = played(share_fails(CLAIMS), lambda arrival: Fate(0, 500) if arrival.number < 3 else Fate(1))
    (found,) = stays_closed_below_rate(history, CLAIMS)
    assert isinstance(found, Held) and (found.ok, found.observed, found.sample) == (False, 1.0, 3)


def test_a_run_that_may_have_tripped_it_leaves_both_undecided() -> None:
    """Four failures in a row may have been five with one more answer in flight."""
    history = shares(mild="ffffgggg", until=0)
    assert outcome(trips_at_rate, history, CLAIMS) is Outcome.INCONCLUSIVE
    rare = shares(mild="ffffgggggggggggg", until=0)
    assert outcome(stays_closed_below_rate, rare, CLAIMS) is Outcome.INCONCLUSIVE
    assert outcome(stays_closed_below_rate, rare, claiming(replace(BREAKER, failures=6))) is Outcome.FAIL


def test_no_failures_no_trip() -> None:
    history = shares(mild="g", severe="g")
    assert trips_at_rate(history, CLAIMS) == []
    assert outcome(stays_closed_below_rate, history, CLAIMS) is Outcome.PASS


def test_fewer_calls_than_the_minimum_yield_no_finding() -> None:
    many = claiming(replace(BREAKER, minimum_calls=1000))
    assert stays_closed_below_rate(shares(mild="g", severe="g"), many) == []
    assert stays_closed_below_latency(slow_fleet(), many) == []


def test_an_unused_fleet_is_vacuous() -> None:
    history = played(share_fails(CLAIMS), lambda arrival: Fate(None))
    assert trips_at_rate(history, CLAIMS) == []
    assert stays_closed_below_rate(history, CLAIMS) == []


def test_the_pattern_of_the_scenario() -> None:
    """Three of four calls fail: above half, and two short of five in a row. Before that, half of half fails."""
    scenario = share_fails(CLAIMS)
    rates = [step.rate_per_s for step in scenario.timeline if isinstance(step, OverCapacity)]
    assert rates == pytest.approx([30.0, 30.0, 40 / 3.3, 40 / 3.3])
    assert [step.first for step in scenario.timeline if isinstance(step, FailingStatus)] == [2, 2]
    keyless = share_fails(Claims((BREAKER,)))
    assert keyless.load.streams[0].rate_per_s == 80.0
    with pytest.raises(UnsupportedError, match="in a row"):
        share_fails(claiming(replace(BREAKER, failures=4)))
    with pytest.raises(UnsupportedError, match="share"):
        share_fails(COUNT_ONLY)


# --- at its latency ----------------------------------------------------------------------------------------


def slow_fleet(severe_s: float = 0.375, mild_s: float = 0.125, other: FateOf | None = None) -> History:
    """gpu-0 and gpu-1 are slow, gpu-2 answers 404; nothing trips."""
    scenario = one_slow(CLAIMS)
    begin_s = scenario.phase("slow").start_s

    def fate_of(arrival: Arrival) -> Fate:
        number = arrival.key % 3
        if arrival.at_s < begin_s:
            return Fate(number)
        return (Fate(0, took_s=severe_s), Fate(1, took_s=mild_s), Fate(2, 404))[number]

    return played(scenario, other or fate_of)


def without_after(history: History, backend: int, at_s: float) -> History:
    """The same, but nothing reaches the backend from `at_s` on."""
    attempts = history.attempts
    gone = (attempts["backend"] == backend) & (attempts["start_s"] >= at_s)
    return replace(history, attempts=attempts[~gone])


def test_a_slow_backend_that_keeps_its_traffic() -> None:
    history = slow_fleet()
    (found,) = trips_at_latency(history, CLAIMS)
    assert isinstance(found, Within) and found.observed_s > 0.4
    assert outcome(trips_at_latency, history, CLAIMS) is Outcome.FAIL


def test_a_slow_backend_that_loses_its_traffic_in_time() -> None:
    (late,) = trips_at_latency(slow_fleet(), CLAIMS)
    assert isinstance(late, Within)
    history = without_after(slow_fleet(), 0, late.at_s)
    (found,) = trips_at_latency(history, CLAIMS)
    assert isinstance(found, Within) and found.observed_s == 0.0
    sooner = without_after(slow_fleet(), 0, late.at_s - 0.3)
    assert outcome(trips_at_latency, sooner, CLAIMS) is Outcome.PASS


def test_latency_within_the_bound_is_no_reason() -> None:
    assert trips_at_latency(slow_fleet(severe_s=0.24), CLAIMS) == []
    assert outcome(stays_closed_below_latency, slow_fleet(), CLAIMS) is Outcome.PASS
    tripped = without_after(slow_fleet(), 1, 1.5)
    assert outcome(stays_closed_below_latency, tripped, CLAIMS) is Outcome.FAIL
    (found,) = stays_closed_below_latency(tripped, CLAIMS)
    assert isinstance(found, Within) and found.high_s == pytest.approx(0.2) and found.observed_s > 0.8


def test_a_call_above_the_bound_leaves_it_undecided() -> None:
    """The client waits for the service time plus two network delays."""
    assert outcome(stays_closed_below_latency, slow_fleet(mild_s=0.247), CLAIMS) is Outcome.PASS
    assert outcome(stays_closed_below_latency, slow_fleet(mild_s=0.249), CLAIMS) is Outcome.INCONCLUSIVE


def test_client_errors() -> None:
    assert outcome(stays_closed_on_client_errors, slow_fleet(), CLAIMS) is Outcome.PASS
    (found,) = stays_closed_on_client_errors(slow_fleet(), CLAIMS)
    assert isinstance(found, Within) and found.observed_s < 0.03
    begin_s = one_slow(CLAIMS).phase("slow").start_s
    tripped = without_after(slow_fleet(), 2, begin_s + 0.1)
    assert outcome(stays_closed_on_client_errors, tripped, CLAIMS) is Outcome.FAIL
    assert stays_closed_on_client_errors(replace(slow_fleet(), steps=()), CLAIMS) == []


def test_too_few_client_errors_yield_no_finding() -> None:
    """Four client errors, then good answers."""
    history = slow_fleet()
    rejected = history.attempts["status"] == 404
    keep = rejected.cumsum() <= 4
    history.attempts["status"][rejected & ~keep] = 200
    assert stays_closed_on_client_errors(history, CLAIMS) == []


def test_how_slow_the_slow_are() -> None:
    scenario = one_slow(CLAIMS)
    factors = {step.backend: step.factor for step in scenario.timeline if isinstance(step, Slow)}
    assert factors == pytest.approx({"gpu-0": 150.0, "gpu-1": 50.0})
    with pytest.raises(UnsupportedError, match="latency"):
        one_slow(claiming(Breaker(slow_p99_s=None)))
