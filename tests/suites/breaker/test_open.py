"""Properties of an open breaker on hand-written histories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.evidence.history import History
from harness.property.findings import Held, Within
from harness.property.verdict import Outcome
from harness.scenario.arrivals import Arrival
from harness.scenario.faults import Hang
from harness.scenario.model import Ending
from suites.breaker.open import ignores_late_failures, open_fails_fast, open_for_its_time, open_gets_nothing
from tests.suites.breaker_histories import (
    CLAIMS,
    FAILS_S,
    HEALED_S,
    ONE,
    Fate,
    FaultyBackend,
    behind,
    fleet,
    noisy,
    one_faulty,
    played,
    with_one_at,
)
from tests.suites.histories import outcome


def test_an_open_breaker_that_lets_nothing_through() -> None:
    history, faulty = one_faulty()
    (found,) = open_gets_nothing(history, CLAIMS)
    assert isinstance(found, Held) and (found.ok, found.observed, found.bound) == (True, 0, 0)
    assert found.at_s == pytest.approx(faulty.trips[0] + 0.001)
    assert found.until_s == pytest.approx(faulty.trips[0] + 0.4)
    assert found.sample in (26, 27)  # a third of 200/s for 0.4 s


@pytest.mark.parametrize(("later_s", "ok"), [(0.05, False), (0.36, False), (0.41, True)])
def test_a_request_during_the_open_time(later_s: float, ok: bool) -> None:
    trip_s = one_faulty()[1].trips[0]
    (found,) = open_gets_nothing(with_one_at(trip_s + later_s, Fate(0)), CLAIMS)
    assert isinstance(found, Held) and found.ok is ok and found.observed == (0 if ok else 1)


@pytest.mark.parametrize(("slack_s", "ok"), [(0.0, False), (0.06, True)])
def test_slack_allows_a_late_count(slack_s: float, ok: bool) -> None:
    """A request sent some 50 ms after the client's last failure."""
    trip_s = one_faulty()[1].trips[0]
    (found,) = open_gets_nothing(noisy(with_one_at(trip_s + 0.05, Fate(0)), slack_s), CLAIMS)
    assert isinstance(found, Held) and found.ok is ok


def test_without_requests_for_it_no_finding() -> None:
    history, faulty = one_faulty()
    requests = history.requests.copy()
    sent_s = requests["sent_s"]
    requests["key"][(sent_s > faulty.trips[0]) & (sent_s < faulty.trips[0] + 0.4)] = 1
    assert open_gets_nothing(replace(history, requests=requests), CLAIMS) == []


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
        assert 0.6 < item.high_s <= 0.6 + 0.02 + 0.006  # its requests arrive 20 ms apart
    assert outcome(open_for_its_time, history, CLAIMS) is expected


def test_a_backend_that_is_never_probed_again() -> None:
    found = open_for_its_time(fleet(99.0), CLAIMS)
    assert all(isinstance(item, Within) and item.observed_s > 1.5 and "no call followed" in item.note for item in found)
    assert outcome(open_for_its_time, fleet(99.0), CLAIMS) is Outcome.FAIL


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
    """Requests of gpu-0's keys hang from the first fault on and fail `ended_later_s` after the trip."""
    hang = next(step for step in ONE.timeline if isinstance(step, Hang))
    trip_s = one_faulty()[1].trips[0]
    faulty = FaultyBackend(0, FAILS_S, HEALED_S, opens_s)
    late = behind(3, faulty)

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
    assert ignores_late_failures(one_faulty()[0], CLAIMS) == []
    assert ignores_late_failures(with_stragglers(0.5, 1.0, 1.4, ended_later_s=0.41), CLAIMS) == []
