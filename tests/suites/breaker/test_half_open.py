"""Properties of a half-open breaker on hand-written histories."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from harness.claims.features import Breaker
from harness.evidence.history import History
from harness.property.findings import Held, Within
from harness.property.verdict import Outcome
from harness.scenario.arrivals import Arrival
from harness.scenario.model import Ending, UnsupportedError
from suites.breaker.half_open import abort_frees_slot, failed_probe_reopens, one_hung_probe, one_slow_probe
from suites.breaker.open import open_gets_nothing
from suites.breaker.scenarios import probes_linger
from tests.suites.breaker_histories import BREAKER, CLAIMS, Fate, claiming, one_faulty, played, with_one_at
from tests.suites.histories import outcome

LINGER = probes_linger(CLAIMS)


def test_one_failed_probe_is_enough() -> None:
    history, faulty = one_faulty()
    found = failed_probe_reopens(history, CLAIMS)
    assert [(item.ok, item.observed) for item in found if isinstance(item, Held)] == [(True, 0), (True, 0)]
    slipped = with_one_at(faulty.trips[1] + 0.05, Fate(0))
    assert outcome(failed_probe_reopens, slipped, CLAIMS) is Outcome.FAIL
    assert outcome(open_gets_nothing, slipped, CLAIMS) is Outcome.PASS


def test_a_probe_that_failed_just_before_the_end_yields_no_finding() -> None:
    history, faulty = one_faulty()
    requests = history.requests.copy()
    requests["sent_s"][requests["sent_s"] > faulty.trips[1] + 0.39] = math.nan
    assert failed_probe_reopens(replace(history, requests=requests), CLAIMS) == []


def lingering(backend: int, took_s: float, ending: Ending, pause_s: float, at_once: int = 1) -> History:
    """A backend fails and trips; then its probes take `took_s`, `at_once` in flight, each `pause_s` after the last."""
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
        if len(busy) >= at_once:
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
    two = lingering(0, 0.15, Ending.ANSWERED, pause_s=0.01, at_once=2)
    (found,) = one_slow_probe(two, CLAIMS)
    assert isinstance(found, Within) and found.observed_s == pytest.approx(0.13)  # the second comes 20 ms later
    assert outcome(one_slow_probe, two, CLAIMS) is Outcome.FAIL
    allowed = claiming(replace(BREAKER, probes=2))
    assert outcome(one_slow_probe, two, allowed) is Outcome.PASS


def test_short_probes_yield_no_finding() -> None:
    assert one_slow_probe(lingering(0, 0.074, Ending.ANSWERED, 0.01), CLAIMS) == []
    assert len(one_slow_probe(lingering(0, 0.076, Ending.ANSWERED, 0.01), CLAIMS)) == 1


def test_one_hung_probe_at_a_time() -> None:
    """The next probe may arrive once the client has aborted the last, shortly before the backend notices the abort."""
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
    assert 1.2 < first.high_s < 1.4  # an abort counted as a failure: the next open time
    assert outcome(abort_frees_slot, history, CLAIMS) is Outcome.PASS


def test_without_an_abort_no_slot_to_free() -> None:
    assert abort_frees_slot(lingering(1, 0.15, Ending.ANSWERED, pause_s=0.01), CLAIMS) == []


def test_a_slot_that_is_never_freed() -> None:
    history = lingering(1, 0.3, Ending.CLIENT_GONE, pause_s=99.0)
    (found,) = abort_frees_slot(history, CLAIMS)
    assert isinstance(found, Within) and found.observed_s > found.high_s and found.note == "never probed again"
    assert outcome(abort_frees_slot, history, CLAIMS) is Outcome.FAIL


def test_probes_must_fit_the_open_time() -> None:
    with pytest.raises(UnsupportedError, match="too short"):
        probes_linger(claiming(Breaker(failures=100, open_s=0.5)))
    with pytest.raises(UnsupportedError, match="neither"):
        probes_linger(claiming(Breaker(failures=None, slow_p99_s=1.0)))
