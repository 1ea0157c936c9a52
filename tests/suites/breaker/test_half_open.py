"""Open and half-open breakers on hand-written histories."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from harness.claims.features import Backoff, Breaker, Claims
from harness.evidence.history import History
from harness.property.findings import Held, Within
from harness.property.verdict import Outcome
from harness.scenario.arrivals import Arrival
from harness.scenario.faults import FailingStatus, Hang
from harness.scenario.model import Ending, UnsupportedError
from suites.breaker.half_open import (
    abort_frees_slot,
    backoff_grows,
    backoff_jittered,
    failed_probe_reopens,
    ignores_late_failures,
    one_hung_probe,
    one_slow_probe,
    open_fails_fast,
    open_for_its_time,
    open_gets_nothing,
    others_are_answered,
    recovers_to_full_share,
)
from suites.breaker.scenarios import all_fail, one_fails, probes_linger
from tests.suites.breaker_histories import BREAKER, CLAIMS, Fate, Sick, behind, but, claiming, noisy, played
from tests.suites.histories import outcome

ONE = one_fails(CLAIMS)
ALL = all_fail(CLAIMS)
LINGER = probes_linger(CLAIMS)
FAILS = next(step for step in ONE.timeline if isinstance(step, FailingStatus))
FAILS_S, HEALED_S = FAILS.at_s, FAILS.at_s + (FAILS.for_s or 0.0)
AFTER_S = ONE.phase("after").start_s


def one_sick(*opens_s: float) -> tuple[History, Sick]:
    """gpu-0 fails and heals; its breaker is open for these times."""
    sick = Sick(0, FAILS_S, HEALED_S, opens_s or (0.5, 1.0, 1.4))
    return played(ONE, behind(3, sick)), sick


def with_one_at(at_s: float, fate: Fate) -> History:
    """The same, but the first request of gpu-0's keys from `at_s` on has this fate."""
    sick = Sick(0, FAILS_S, HEALED_S, (0.5, 1.0, 1.4))
    chosen: list[int] = []

    def is_it(arrival: Arrival) -> bool:
        if not chosen and arrival.at_s >= at_s and arrival.key % 3 == 0:
            chosen.append(arrival.number)
        return arrival.number in chosen

    return played(ONE, but(behind(3, sick), is_it, fate))


# --- open --------------------------------------------------------------------------------------------------


def test_an_open_breaker_that_lets_nothing_through() -> None:
    history, sick = one_sick()
    (found,) = open_gets_nothing(history, CLAIMS)
    assert isinstance(found, Held) and (found.ok, found.observed, found.bound) == (True, 0, 0)
    assert found.at_s == pytest.approx(sick.trips[0] + 0.001)
    assert found.until_s == pytest.approx(sick.trips[0] + 0.4)
    assert found.sample in (26, 27)  # a third of 200/s for 0.4 s


@pytest.mark.parametrize(("later_s", "ok"), [(0.05, False), (0.36, False), (0.41, True)])
def test_one_that_slips_through(later_s: float, ok: bool) -> None:
    trip_s = one_sick()[1].trips[0]
    (found,) = open_gets_nothing(with_one_at(trip_s + later_s, Fate(0)), CLAIMS)
    assert isinstance(found, Held) and found.ok is ok and found.observed == (0 if ok else 1)


def test_no_traffic_for_it_no_finding() -> None:
    history, sick = one_sick()
    requests = history.requests.copy()
    sent_s = requests["sent_s"]
    requests["key"][(sent_s > sick.trips[0]) & (sent_s < sick.trips[0] + 0.4)] = 1
    assert open_gets_nothing(replace(history, requests=requests), CLAIMS) == []


def test_no_failure_no_finding() -> None:
    healthy = played(ONE, behind(3))
    for check in (open_gets_nothing, ignores_late_failures, failed_probe_reopens, backoff_grows):
        assert check(healthy, CLAIMS) == []
    for check in (recovers_to_full_share, others_are_answered):
        assert check(healthy, CLAIMS) == []
    calm = played(ALL, behind(4))
    for check in (open_for_its_time, open_fails_fast, backoff_jittered):
        assert check(calm, CLAIMS) == []
    for check in (one_slow_probe, one_hung_probe, abort_frees_slot):
        assert check(played(LINGER, behind(4)), CLAIMS) == []


def failing_fleet(*opens_s: tuple[float, ...]) -> History:
    """Four backends fail, each with its own open times."""
    fails_s = ALL.phase("failing").start_s
    sick = [Sick(number, fails_s, math.inf, opens) for number, opens in enumerate(opens_s)]
    return played(ALL, behind(4, *sick))


def fleet(first_s: float, second_s: float = 1.0) -> History:
    return failing_fleet(*[(first_s, second_s)] * 4)


@pytest.mark.parametrize(
    ("open_s", "expected"),
    [(0.3, Outcome.FAIL), (0.41, Outcome.PASS), (0.59, Outcome.PASS), (0.7, Outcome.FAIL)],
)
def test_open_for_its_time(open_s: float, expected: Outcome) -> None:
    history = fleet(open_s)
    found = open_for_its_time(history, CLAIMS)
    assert len(found) == 4
    for item in found:
        assert isinstance(item, Within) and item.low_s == pytest.approx(0.4)
        assert open_s <= item.observed_s <= open_s + 0.025
        assert 0.6 < item.high_s <= 0.6 + 0.02 + 0.006  # own requests come 20 ms apart
    assert outcome(open_for_its_time, history, CLAIMS) is expected


def test_a_backend_that_is_never_probed_again() -> None:
    found = open_for_its_time(fleet(99.0), CLAIMS)
    assert all(isinstance(item, Within) and item.observed_s > 1.5 and "nothing came" in item.note for item in found)
    assert outcome(open_for_its_time, fleet(99.0), CLAIMS) is Outcome.FAIL


def test_an_end_that_comes_too_soon_says_nothing() -> None:
    """The last open time had not to end before the load did."""
    history, _ = one_sick(0.5, 1.0, 99.0)
    assert len(backoff_grows(history, CLAIMS)) == 2
    requests = history.requests.copy()
    requests["sent_s"][requests["sent_s"] > FAILS_S + 2.5] = math.nan
    cut = replace(history, requests=requests)
    assert len(backoff_grows(cut, CLAIMS)) == 1


def test_rejections_within_milliseconds() -> None:
    history = fleet(0.5)
    (found,) = open_fails_fast(history, CLAIMS)
    assert isinstance(found, Within) and found.observed_s == pytest.approx(0.002)
    assert (found.low_s, found.high_s) == (0.0, 0.02)
    assert found.sample is not None and found.sample > 100
    rejected = history.requests["status"] == 503
    requests = history.requests.copy()
    requests["end_s"][rejected] += 0.017
    assert outcome(open_fails_fast, replace(history, requests=requests), CLAIMS) is Outcome.PASS
    requests["end_s"][rejected] += 0.002
    assert outcome(open_fails_fast, replace(history, requests=requests), CLAIMS) is Outcome.FAIL


def test_one_slow_rejection_decides_nothing() -> None:
    history = fleet(0.5)
    requests = history.requests.copy()
    requests["end_s"][requests["status"].argmax()] += 1.0
    assert outcome(open_fails_fast, replace(history, requests=requests), CLAIMS) is Outcome.PASS


# --- late failures -----------------------------------------------------------------------------------------


def with_stragglers(*opens_s: float, ended_later_s: float = 0.3) -> History:
    """Requests of gpu-0's keys hang from the first fault on, and fail so long after the trip."""
    hang = next(step for step in ONE.timeline if isinstance(step, Hang))
    trip_s = one_sick()[1].trips[0]
    sick = Sick(0, FAILS_S, HEALED_S, opens_s)
    late = behind(3, sick)

    def fate_of(arrival: Arrival) -> Fate:
        if hang.at_s <= arrival.at_s < FAILS_S and arrival.key % 3 == 0:
            return Fate(0, 0, took_s=trip_s + ended_later_s - arrival.at_s, ending=Ending.CUT)
        return late(arrival)

    return played(ONE, fate_of)


def test_late_failures_do_not_lengthen_the_open_time() -> None:
    history = with_stragglers(0.5, 1.0, 1.4)
    (found,) = ignores_late_failures(history, CLAIMS)
    assert isinstance(found, Within) and found.low_s == pytest.approx(0.4) and found.sample in (6, 7)
    assert 0.5 <= found.observed_s <= 0.52
    assert outcome(ignores_late_failures, history, CLAIMS) is Outcome.PASS
    longer = with_stragglers(0.8, 1.0, 1.4)
    assert outcome(ignores_late_failures, longer, CLAIMS) is Outcome.FAIL
    assert outcome(ignores_late_failures, noisy(longer, 0.081), CLAIMS) is Outcome.INCONCLUSIVE


def test_without_late_failures_it_is_not_tested() -> None:
    assert ignores_late_failures(one_sick()[0], CLAIMS) == []
    assert ignores_late_failures(with_stragglers(0.5, 1.0, 1.4, ended_later_s=0.41), CLAIMS) == []


# --- half-open ---------------------------------------------------------------------------------------------


def test_one_failed_probe_is_enough() -> None:
    history, sick = one_sick()
    found = failed_probe_reopens(history, CLAIMS)
    assert [(item.ok, item.observed) for item in found if isinstance(item, Held)] == [(True, 0), (True, 0)]
    slipped = with_one_at(sick.trips[1] + 0.05, Fate(0))
    assert outcome(failed_probe_reopens, slipped, CLAIMS) is Outcome.FAIL
    assert outcome(open_gets_nothing, slipped, CLAIMS) is Outcome.PASS


def test_a_probe_that_failed_just_before_the_end_says_nothing() -> None:
    history, sick = one_sick()
    requests = history.requests.copy()
    requests["sent_s"][requests["sent_s"] > sick.trips[1] + 0.39] = math.nan
    assert failed_probe_reopens(replace(history, requests=requests), CLAIMS) == []


def lingering(backend: int, took_s: float, ending: Ending, pause_s: float, crowd: int = 1) -> History:
    """A backend fails and trips; then its probes take long, `crowd` of them at once, `pause_s` after each other."""
    fails_s = LINGER.phase("before").end_s
    trip: list[float] = []
    busy: list[float] = []
    good: list[float] = []

    def fate_of(arrival: Arrival) -> Fate:
        number = arrival.key % 4
        if number != backend or arrival.at_s < fails_s:
            return Fate(number)
        if len(trip) < 5:
            trip.append(arrival.at_s + 0.003)
            return Fate(number, 500)
        if arrival.at_s < trip[-1] + 0.5:
            return Fate((number + 1) % 4 if (number + 1) % 4 != backend else number)
        if sum(end_s < arrival.at_s for end_s in good) >= 2:
            return Fate(number)
        busy[:] = [end_s for end_s in busy if arrival.at_s < end_s + pause_s]
        if len(busy) >= crowd:
            return Fate((number + 1) % 4)
        busy.append(arrival.at_s + 0.001 + took_s)
        good.extend(busy[-1:] if ending is Ending.ANSWERED else [])
        return Fate(number, 200 if ending is Ending.ANSWERED else 0, took_s, ending)

    return played(LINGER, fate_of)


def test_one_slow_probe_at_a_time() -> None:
    history = lingering(0, 0.15, Ending.ANSWERED, pause_s=0.01)
    (found,) = one_slow_probe(history, CLAIMS)
    assert isinstance(found, Within) and (found.observed_s, found.low_s, found.high_s) == (0.0, 0.0, 0.02)
    assert found.sample == 2
    assert one_hung_probe(history, CLAIMS) == []
    two = lingering(0, 0.15, Ending.ANSWERED, pause_s=0.01, crowd=2)
    (found,) = one_slow_probe(two, CLAIMS)
    assert isinstance(found, Within) and found.observed_s == pytest.approx(0.13)  # the second comes 20 ms later
    assert outcome(one_slow_probe, two, CLAIMS) is Outcome.FAIL
    allowed = claiming(replace(BREAKER, probes=2))
    assert outcome(one_slow_probe, two, allowed) is Outcome.PASS


def test_probes_too_short_for_company_say_nothing() -> None:
    assert one_slow_probe(lingering(0, 0.074, Ending.ANSWERED, 0.01), CLAIMS) == []
    assert len(one_slow_probe(lingering(0, 0.076, Ending.ANSWERED, 0.01), CLAIMS)) == 1


def test_one_hung_probe_at_a_time() -> None:
    """The next may come when its client has given the one before it up, a little before the backend hears of that."""
    history = lingering(1, 0.3, Ending.CLIENT_GONE, pause_s=0.005)
    assert outcome(one_hung_probe, history, CLAIMS) is Outcome.PASS
    assert one_slow_probe(history, CLAIMS) == []
    early = lingering(1, 0.3, Ending.CLIENT_GONE, pause_s=-0.02)
    assert outcome(one_hung_probe, early, CLAIMS) is Outcome.PASS
    beside = lingering(1, 0.3, Ending.CLIENT_GONE, pause_s=-0.06)
    assert outcome(one_hung_probe, beside, CLAIMS) is Outcome.FAIL


def test_an_abort_frees_the_slot() -> None:
    history = lingering(1, 0.3, Ending.CLIENT_GONE, pause_s=0.01)
    found = abort_frees_slot(history, CLAIMS)
    assert len(found) >= 3
    first = found[0]
    assert isinstance(first, Within) and first.observed_s < 0.04
    assert 1.2 < first.high_s < 1.4  # an abort that is taken for a failure: the next open time
    assert outcome(abort_frees_slot, history, CLAIMS) is Outcome.PASS


def test_without_an_abort_no_slot_to_free() -> None:
    assert abort_frees_slot(lingering(1, 0.15, Ending.ANSWERED, pause_s=0.01), CLAIMS) == []


def test_a_slot_that_is_never_freed() -> None:
    history = lingering(1, 0.3, Ending.CLIENT_GONE, pause_s=99.0)
    (found,) = abort_frees_slot(history, CLAIMS)
    assert isinstance(found, Within) and found.observed_s > found.high_s and found.note == "never probed again"
    assert outcome(abort_frees_slot, history, CLAIMS) is Outcome.FAIL


# --- backoff -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opens_s", "expected"),
    [
        ((0.5, 1.0, 1.4), Outcome.PASS),
        ((0.5, 0.81, 1.21), Outcome.PASS),
        ((0.5, 0.75, 1.4), Outcome.FAIL),  # 0.8 is the least
        ((0.5, 1.3, 1.4), Outcome.FAIL),  # 1.2 the most, plus a wait of 15 ms
        ((0.5, 1.0, 2.0), Outcome.FAIL),  # above the cap
        ((0.5, 0.5, 0.5), Outcome.FAIL),
    ],
)
def test_each_open_time_in_its_band(opens_s: tuple[float, ...], expected: Outcome) -> None:
    history, _ = one_sick(*opens_s)
    assert outcome(backoff_grows, history, CLAIMS) is expected


def test_figures_of_the_backoff() -> None:
    second, third = backoff_grows(one_sick()[0], CLAIMS)
    assert isinstance(second, Within) and isinstance(third, Within)
    assert second.low_s == pytest.approx(0.8) and 1.2 < second.high_s < 1.23
    assert third.low_s == pytest.approx(1.2) and 1.5 < third.high_s < 1.53
    assert 1.0 <= second.observed_s < 1.02 and 1.4 <= third.observed_s < 1.42


def test_without_growth_or_jitter_unsupported() -> None:
    steady = claiming(replace(BREAKER, backoff=Backoff(1.0, 60.0, 0.0)))
    with pytest.raises(UnsupportedError, match="no backoff"):
        backoff_grows(one_sick()[0], steady)
    with pytest.raises(UnsupportedError, match="no jitter"):
        backoff_jittered(fleet(0.5), steady)


def test_open_times_without_jitter() -> None:
    """Eight of them: chance leaves all within 6.3 % once in ten thousand; a wait for a request spreads them a bit."""
    (found,) = backoff_jittered(fleet(0.48), CLAIMS)
    assert isinstance(found, Held) and found.sample == 8 and not found.ok
    assert found.bound == pytest.approx(0.2 * 1e-4 ** (1 / 8)) and found.alpha == 1e-4
    spread = failing_fleet((0.45, 1.0), (0.5, 1.0), (0.5, 0.9), (0.5, 1.0))
    (found,) = backoff_jittered(spread, CLAIMS)
    assert isinstance(found, Held) and found.ok and float(str(found.observed)) > 0.0633


def test_open_times_at_the_cap_say_nothing_of_the_jitter() -> None:
    """The second may be 1.2 s by its jitter; a cap of 1.1 s cuts that off."""
    capped = claiming(replace(BREAKER, backoff=Backoff(2.0, 1.1, 0.2)))
    (found,) = backoff_jittered(fleet(0.45), capped)
    assert isinstance(found, Held) and found.sample == 4


# --- recovery and isolation --------------------------------------------------------------------------------


def test_full_share_after_recovery() -> None:
    (found,) = recovers_to_full_share(one_sick()[0], CLAIMS)
    assert isinstance(found, Held) and (found.ok, found.observed, found.bound) == (True, 0, 0)
    assert found.at_s == AFTER_S and found.sample in (40, 41)
    late = with_one_at(AFTER_S + 0.1, Fate(1))
    assert outcome(recovers_to_full_share, late, CLAIMS) is Outcome.FAIL
    before = with_one_at(AFTER_S - 0.02, Fate(1))
    assert outcome(recovers_to_full_share, before, CLAIMS) is Outcome.PASS
    assert outcome(recovers_to_full_share, noisy(late, 0.081), CLAIMS) is Outcome.INCONCLUSIVE


def test_a_share_without_affinity() -> None:
    """Too few requests for the sequential test: nothing is decided, and a backend that gets none is caught."""
    keyless = Claims((BREAKER,))
    never, _ = one_sick(0.5, 1.0, 99.0)
    assert outcome(recovers_to_full_share, never, keyless) is Outcome.FAIL
    assert outcome(recovers_to_full_share, one_sick()[0], keyless) is not Outcome.FAIL


def test_others_are_answered() -> None:
    history, sick = one_sick()
    (found,) = others_are_answered(history, CLAIMS)
    assert isinstance(found, Held) and found.ok and found.observed == 0
    other = int(((history.requests["sent_s"] > sick.trips[0] + 0.01) & (history.requests["key"] % 3 == 1)).argmax())
    own = int(((history.requests["sent_s"] > sick.trips[0] + 0.01) & (history.requests["key"] % 3 == 0)).argmax())
    requests = history.requests.copy()
    requests["status"][own] = 503
    assert outcome(others_are_answered, replace(history, requests=requests), CLAIMS) is Outcome.PASS
    requests["status"][other] = 503
    assert outcome(others_are_answered, replace(history, requests=requests), CLAIMS) is Outcome.FAIL


def test_losses_before_the_trip_are_not_blamed_on_the_breaker() -> None:
    history, _ = one_sick()
    requests = history.requests.copy()
    requests["status"][requests["sent_s"] < FAILS_S] = 503
    assert outcome(others_are_answered, replace(history, requests=requests), CLAIMS) is Outcome.PASS


def test_probes_must_fit_the_open_time() -> None:
    with pytest.raises(UnsupportedError, match="too short"):
        probes_linger(claiming(Breaker(failures=100, open_s=0.5)))
    with pytest.raises(UnsupportedError, match="neither"):
        probes_linger(claiming(Breaker(failures=None, slow_p99_s=1.0)))
