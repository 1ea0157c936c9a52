"""A backend that leaves with an open breaker and returns, on hand-written histories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.claims.features import Breaker, Claims
from harness.evidence.history import History
from harness.property.verdict import Outcome
from harness.scenario.arrivals import Arrival
from harness.scenario.faults import FailingStatus, Join, Leave
from harness.scenario.model import UnsupportedError
from suites.breaker.membership import leaves_while_open, return_starts_clean
from tests.suites.breaker_histories import BREAKER, CLAIMS, Fate, FateOf, FaultyBackend, behind, claiming, noisy, played
from tests.suites.histories import only, outcome

SCENARIO = leaves_while_open(CLAIMS)
FAILING, LEAVING, JOINING = SCENARIO.timeline
HEALED_S = FAILING.at_s + (FAILING.for_s or 0.0) if isinstance(FAILING, FailingStatus) else 0.0


def returning(inherits: bool, away: bool = True, failures: int = 5, first: int = 0) -> FateOf:
    """gpu-0 fails behind a breaker that is open for half a second; it is `away` between its leave and its return.

    If it `inherits`, that breaker stays open after its return; else it gets its requests, except the first `first`.
    """
    faulty = behind(3, FaultyBackend(0, FAILING.at_s, HEALED_S, (0.5,), failures))
    returned: list[int] = []

    def fate_of(arrival: Arrival) -> Fate:
        back = arrival.at_s > JOINING.at_s
        if arrival.key % 3 or not (back or away) or (back and inherits) or arrival.at_s < LEAVING.at_s:
            return faulty(arrival)
        if not back:
            return Fate(1)
        returned.append(arrival.number)
        return Fate(0) if len(returned) > first else Fate(1)

    return fate_of


def clean(failures: int = 5) -> History:
    """gpu-0 returns with a closed breaker."""
    return played(SCENARIO, returning(False, failures=failures))


def test_a_clean_start() -> None:
    found = only(return_starts_clean, clean(), CLAIMS)
    assert found.ok and found.observed == found.bound == found.sample and 10 <= int(found.sample or 0) <= 20
    assert found.at_s == JOINING.at_s and not found.exact
    # Five failures of a third of 200/s, the shortest open time after the last of them.
    assert FAILING.at_s + 0.4 < (found.until_s or 0.0) < FAILING.at_s + 0.4 + 0.1


@pytest.mark.parametrize(("inherits", "first"), [(True, 0), (False, 2)])
def test_an_open_breaker_after_the_return(inherits: bool, first: int) -> None:
    """All requests of the returned backend, or the first two, go elsewhere."""
    found = only(return_starts_clean, played(SCENARIO, returning(inherits, first=first)), CLAIMS)
    assert not found.ok and (found.observed == 0) is inherits


def test_without_affinity_some_request_must_get_there() -> None:
    """At least forty requests are needed for a verdict."""
    claims = Claims((BREAKER,))
    found = only(return_starts_clean, clean(), claims)
    assert found.ok and found.bound == 1 and int(found.sample or 0) >= 40
    assert not only(return_starts_clean, played(SCENARIO, returning(True)), claims).ok
    late = shifted(clean(), 0.1)
    assert outcome(return_starts_clean, late, claims) is Outcome.INCONCLUSIVE


def shifted(history: History, later_s: float) -> History:
    """The same, but the return took effect `later_s` seconds later."""
    join = replace(history.steps[2], effective_s=history.steps[2].effective_s + later_s)
    return replace(history, steps=(*history.steps[:2], join))


def test_a_return_after_the_open_time_is_undecided() -> None:
    assert outcome(return_starts_clean, shifted(clean(), 0.3), CLAIMS) is Outcome.INCONCLUSIVE
    assert outcome(return_starts_clean, shifted(clean(), 0.1), CLAIMS) is Outcome.PASS


def test_a_leave_with_a_closed_breaker_yields_no_finding() -> None:
    assert return_starts_clean(clean(failures=99), CLAIMS) == []
    assert return_starts_clean(played(SCENARIO, behind(3)), CLAIMS) == []
    assert return_starts_clean(replace(clean(), steps=clean().steps[:1]), CLAIMS) == []


def test_a_breaker_that_trips_too_early_is_judged_as_well() -> None:
    """After three failures the backend is silent until it leaves."""
    assert only(return_starts_clean, clean(failures=3), CLAIMS).ok


def test_noise_leaves_it_undecided() -> None:
    """A fifth of the shortest open time of 0.4 s."""
    assert outcome(return_starts_clean, noisy(clean(), 0.09), CLAIMS) is Outcome.INCONCLUSIVE
    assert outcome(return_starts_clean, noisy(clean(), 0.07), CLAIMS) is Outcome.PASS


def test_it_leaves_when_its_breaker_is_open_and_is_back_in_time() -> None:
    assert [type(step) for step in SCENARIO.timeline] == [FailingStatus, Leave, Join]
    assert FAILING.at_s < HEALED_S < LEAVING.at_s < JOINING.at_s < FAILING.at_s + 0.3
    assert SCENARIO.end_s < 1.5
    with pytest.raises(UnsupportedError, match="too short to leave and return"):
        leaves_while_open(claiming(Breaker(open_s=0.15)))
    with pytest.raises(UnsupportedError, match="cannot change membership"):
        leaves_while_open(replace(CLAIMS, can_join=False))
