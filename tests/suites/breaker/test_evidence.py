"""The rules of breaker evidence, each just inside and just outside its bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from harness.claims.features import Affinity, Backoff, Claims
from harness.scenario.model import Ending
from suites.breaker.evidence import (
    ObservedCall,
    Trip,
    after,
    by_count,
    by_latency,
    by_rate,
    calls_of,
    closing_run,
    due_s,
    excess_s,
    load_end_s,
    longest_gap_s,
    longest_run,
    open_times,
    opening,
    own_keys,
    probing,
    silent_s,
    too_early,
    tripped,
)
from suites.breaker.scenarios import all_fail, one_fails
from tests.suites.breaker_histories import BREAKER, CLAIMS, Fate, FaultyBackend, behind, but, played

RATE_ONLY = replace(BREAKER, failures=None)


def call(at_s: float, end: str = "good", took_s: float = 0.002, delay_s: float = 0.001) -> ObservedCall:
    """A call sent at `at_s` that ended "good", "failed", "aborted" or "neutral"."""
    start_s = at_s + delay_s
    end_s = start_s + took_s
    return ObservedCall(0, at_s, start_s, end_s, end_s + delay_s, end == "good", end == "failed", end == "aborted")


def failing(count: int, start_s: float = 0.0, every_s: float = 0.01) -> list[ObservedCall]:
    return [call(start_s + number * every_s, "failed") for number in range(count)]


def mixed(good: int, failed: int, start_s: float) -> list[ObservedCall]:
    """Good calls, then failed ones, 10 ms apart."""
    ends = ["good"] * good + ["failed"] * failed
    return [call(start_s + number * 0.01, end) for number, end in enumerate(ends)]


def test_how_calls_end() -> None:
    """5xx and truncated answers are failures; 4xx and client aborts are neither failure nor success."""
    fates = {
        0: Fate(0),
        1: Fate(0, 500),
        2: Fate(0, 404),
        3: Fate(0, 200, ending=Ending.CUT),
        4: Fate(0, 0, ending=Ending.CLIENT_GONE),
        5: Fate(0, 503, ending=Ending.REFUSED),
    }
    history = played(one_fails(CLAIMS), lambda arrival: fates.get(arrival.number, Fate(1)))
    observed = [(item.request, item.good, item.failed, item.aborted) for item in calls_of(history, "gpu-0")]
    assert observed == [
        (0, True, False, False),
        (1, False, True, False),
        (2, False, False, False),
        (3, False, True, False),
        (4, False, False, True),
        (5, False, True, False),
    ]


def test_foreign_attempts_are_left_out() -> None:
    history = played(one_fails(CLAIMS), lambda arrival: Fate(0))
    history.attempts["request"][0] = -1
    assert len(calls_of(history, "gpu-0")) == len(history.requests) - 1


@pytest.mark.parametrize(("pause_s", "length"), [(0.199, 4), (0.2001, 2)])
def test_a_silence_is_half_of_the_shortest_open_time(pause_s: float, length: int) -> None:
    assert silent_s(BREAKER) == pytest.approx(0.2)
    calls = [call(0.0), call(0.1), call(0.1 + pause_s), call(0.2 + pause_s)]
    assert [len(part) for part in (opening(calls, BREAKER, 0.3)[0],)] == [length]


def test_the_load_ends_a_silence() -> None:
    calls = [call(0.0), call(0.1)]
    assert opening(calls, BREAKER, 0.25) == (calls, False)
    assert opening(calls, BREAKER, 0.35) == (calls, True)
    assert opening([], BREAKER, 1.0) == ([], False)


def test_gaps_reach_to_the_ends() -> None:
    assert longest_gap_s([call(0.5)], 0.0, 0.7) == pytest.approx(0.501)
    assert longest_gap_s([call(0.1), call(0.2)], 0.0, 1.0) == pytest.approx(0.799)
    assert longest_gap_s([], 1.0, 3.0) == 2.0


# --- failures in a row -------------------------------------------------------------------------------------


def test_the_count_is_reached_with_its_last_failure() -> None:
    calls = failing(7)
    assert by_count(calls[:4], BREAKER) is None
    trip = by_count(calls, BREAKER)
    assert trip == Trip(calls[4].end_s, calls[4].client_end_s)
    assert by_count(calls, RATE_ONLY) is None


def test_a_good_call_ends_a_run() -> None:
    calls = [*failing(4), call(0.05), *failing(4, 0.1)]
    assert by_count(calls, BREAKER) is None
    assert longest_run(calls) == 4
    assert longest_run([*failing(4), call(0.05, "neutral"), *failing(4, 0.1)]) == 8


def test_answers_in_flight_may_have_arrived_in_either_order() -> None:
    """The good answer left the backend after the failed one and before the latter's client had it: order unknown."""
    failed = call(0.0, "failed", took_s=0.002)
    good = call(0.0, "good", took_s=0.0025)
    assert closing_run([failed, good]) == ([failed], [])
    late = call(0.0, "good", took_s=0.01)
    assert closing_run([failed, late]) == ([], [])
    assert closing_run([call(-0.1), failed]) == ([failed], [failed])


# --- rates and latencies -----------------------------------------------------------------------------------


def test_the_rate_is_certain_two_calls_late_and_possible_two_early() -> None:
    """From 2 s on, the whole window lies within the run: 20 good calls, then failures; 20 of 40 is half."""
    calls = mixed(20, 40, 2.0)
    certain, possible = by_rate(calls, RATE_ONLY), by_rate(calls, RATE_ONLY, certain=False)
    assert certain is calls[20 + 22 - 1]
    assert possible is calls[20 + 18 - 1]
    assert by_rate(calls, replace(RATE_ONLY, error_rate=None)) is None


def test_the_minimum_counts() -> None:
    calls = mixed(0, 30, 2.0)
    assert by_rate(calls, RATE_ONLY) is calls[21]
    assert by_rate(calls, RATE_ONLY, certain=False) is calls[17]


def test_no_rate_is_certain_while_the_window_began_before_the_run() -> None:
    calls = mixed(0, 250, 0.0)
    certain = by_rate(calls, RATE_ONLY)
    assert certain is not None and certain.end_s == pytest.approx(2.003)
    possible = by_rate(calls, RATE_ONLY, certain=False)
    assert possible is calls[17]


def test_the_window_slides() -> None:
    """Old good calls leave the window after 2 s, which leaves 30 failures."""
    calls = [*mixed(100, 0, 0.0), *mixed(0, 30, 4.0)]
    assert by_rate(calls, RATE_ONLY) is calls[121]


def test_a_twentieth_of_slow_calls_is_certain_and_one_is_possible() -> None:
    slow = [call(2.0 + number * 0.01, took_s=0.3) for number in range(5)]
    quick = [call(2.2 + number * 0.001) for number in range(60)]
    calls = [*quick, *slow]
    assert by_latency(calls, BREAKER) is slow[3]  # 4 of 64; 3 of 63 are below a twentieth
    assert by_latency(calls, BREAKER, certain=False) is slow[0]
    assert by_latency(calls, replace(BREAKER, slow_p99_s=0.31)) is None
    assert by_latency(calls, replace(BREAKER, slow_p99_s=None)) is None
    assert by_latency([*quick[:16], slow[0]], BREAKER, certain=False) is None
    assert by_latency([*quick[:17], slow[0]], BREAKER, certain=False) is slow[0]


# --- trips and open times ----------------------------------------------------------------------------------


def test_the_first_trip_is_the_claimed_one_or_the_silence() -> None:
    scenario = one_fails(CLAIMS)
    for failures in (3, 5):
        faulty = FaultyBackend(0, scenario.phase("before").end_s, math.inf, (0.5, 1.0), failures)
        history = played(scenario, behind(3, faulty))
        trip = tripped(history, calls_of(history, "gpu-0"), BREAKER)
        assert trip is not None and trip.earliest_s == pytest.approx(faulty.trips[0])
        assert trip.latest_s - trip.earliest_s == pytest.approx(0.001)
    later = FaultyBackend(0, scenario.phase("before").end_s, math.inf, (0.5, 1.0), 9)
    history = played(scenario, behind(3, later))
    trip = tripped(history, calls_of(history, "gpu-0"), BREAKER)
    assert trip is not None and trip.earliest_s < later.trips[0] - 0.05
    fails_s = scenario.phase("before").end_s
    brief = played(scenario, behind(3, FaultyBackend(0, fails_s, fails_s + 0.05, (0.5,))))
    assert tripped(brief, calls_of(brief, "gpu-0"), BREAKER) is None
    healthy = played(scenario, behind(3))
    assert tripped(healthy, calls_of(healthy, "gpu-0"), BREAKER) is None


@pytest.mark.parametrize(("failures", "position"), [(10, 29), (30, 41), (None, 41)])
def test_the_reason_that_comes_first_counts(failures: int | None, position: int) -> None:
    """20 good calls, then failures: the rate is certain with the 22nd failure."""
    calls = mixed(20, 40, 2.0)
    history = played(one_fails(CLAIMS), behind(3))
    trip = tripped(history, calls, replace(BREAKER, failures=failures))
    assert trip == Trip(calls[position].end_s, calls[position].client_end_s)


def test_failures_that_came_long_after_the_silence_did_not_cause_it() -> None:
    """Three failures, then a silence, during which two earlier hung calls fail."""
    hung = [call(0.0, "failed", took_s=0.5), call(0.01, "failed", took_s=0.5)]
    calls = [*hung, *failing(3, 0.1), call(0.9)]
    history = played(one_fails(CLAIMS), behind(3))
    trip = tripped(history, calls, BREAKER)
    assert trip == Trip(calls[4].end_s, calls[4].client_end_s)


def test_a_call_counts_as_later_once_the_trip_is_known_and_counted() -> None:
    trip = Trip(1.0, 1.001)
    calls = [call(1.0), call(1.0059), call(1.0061), call(1.3989), call(1.3991)]
    assert after(calls, trip) == calls[2:]
    assert too_early(calls, trip, BREAKER) == calls[2:4]


def test_open_times_follow_from_failed_probes() -> None:
    calls = [call(1.0, "failed"), call(1.5, "failed"), call(2.6, "good"), call(2.7, "failed")]
    found = open_times(calls, Trip(calls[0].end_s, calls[0].client_end_s))
    assert [(item.turn, item.following) for item in found] == [(0, calls[1]), (1, calls[2])]
    assert found[1].trip == Trip(calls[1].end_s, calls[1].client_end_s)
    assert [item.following for item in open_times(calls[:2], found[0].trip)] == [calls[1], None]


def test_requests_due_at_a_backend() -> None:
    """Keys 0, 3, 6, ... of a hundred belong to gpu-0, one request every 5 ms."""
    history = played(one_fails(CLAIMS), behind(3))
    own = own_keys(history, "gpu-0", 0.5)
    assert own == frozenset(range(0, 100, 3))
    assert due_s(history, CLAIMS, own, 0.0) == pytest.approx(0.015)
    assert due_s(history, CLAIMS, own, 0.4951) == pytest.approx(0.5)  # key 0 again, after key 99
    assert due_s(history, CLAIMS, own, load_end_s(history)) == math.inf
    keyless = Claims((BREAKER,))
    assert due_s(history, keyless, own, 0.0) == pytest.approx(40 * 0.005)
    assert due_s(history, keyless, own, load_end_s(history) - 39 * 0.005) == math.inf


def test_probing_ends_with_the_last_good_probe() -> None:
    trip = Trip(0.0, 0.001)
    calls = [call(0.5, took_s=0.1), call(0.55), call(0.65, took_s=0.1), call(0.7), call(0.8)]
    probes, closed_s = probing(calls, trip, BREAKER)
    assert closed_s == calls[0].end_s
    assert probes == calls[:2]
    doubtful = [call(0.5), call(0.6, "failed"), call(1.5), call(1.6), call(1.7)]
    probes, closed_s = probing(doubtful, trip, BREAKER)
    assert (probes, closed_s) == (doubtful[:4], doubtful[3].end_s)
    assert probing(doubtful[:3], trip, BREAKER) == (doubtful[:3], math.inf)


def test_time_with_too_many_calls_in_flight() -> None:
    calls = [call(0.0, took_s=0.3), call(0.1, took_s=0.1), call(0.15, took_s=0.3)]
    assert excess_s(calls, 1, 9.0) == pytest.approx(0.2)
    assert excess_s(calls, 2, 9.0) == pytest.approx(0.05)
    assert excess_s(calls, 3, 9.0) == 0.0
    assert excess_s(calls, 1, 0.2) == pytest.approx(0.099)
    assert excess_s([call(0.0, took_s=0.1), call(0.1, took_s=0.1)], 1, 9.0) == pytest.approx(0.0)
    never = [call(0.0, took_s=math.nan), call(0.1, took_s=math.nan)]
    assert excess_s(never, 1, 2.0) == pytest.approx(1.899)


def test_scenarios_last_as_long_as_their_claims() -> None:
    assert one_fails(CLAIMS).end_s < 6.5
    slow = Claims((Affinity(), replace(BREAKER, open_s=5.0, backoff=Backoff(1.0, 60.0, 0.0))))
    scenario = all_fail(slow)
    assert scenario.end_s > 10.0 and scenario.intervals_s == (5.0,)
    assert scenario.load.streams[0].rate_per_s == 50.0
    chosen = but(behind(3), lambda arrival: arrival.number == 0, Fate(None))
    assert played(one_fails(CLAIMS), chosen).requests["status"][0] == 503
