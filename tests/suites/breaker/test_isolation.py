"""The property of isolation on hand-written histories."""

from __future__ import annotations

from dataclasses import replace

from harness.property.findings import Held
from harness.property.verdict import Outcome
from suites.breaker.isolation import others_are_answered
from tests.suites.breaker_histories import CLAIMS, FAILS_S, one_faulty
from tests.suites.histories import outcome


def test_others_are_answered() -> None:
    history, faulty = one_faulty()
    (found,) = others_are_answered(history, CLAIMS)
    assert isinstance(found, Held) and found.ok and found.observed == 0
    other = int(((history.requests["sent_s"] > faulty.trips[0] + 0.01) & (history.requests["key"] % 3 == 1)).argmax())
    own = int(((history.requests["sent_s"] > faulty.trips[0] + 0.01) & (history.requests["key"] % 3 == 0)).argmax())
    requests = history.requests.copy()
    requests["status"][own] = 503
    assert outcome(others_are_answered, replace(history, requests=requests), CLAIMS) is Outcome.PASS
    requests["status"][other] = 503
    assert outcome(others_are_answered, replace(history, requests=requests), CLAIMS) is Outcome.FAIL


def test_losses_before_the_trip_are_not_blamed_on_the_breaker() -> None:
    history, _ = one_faulty()
    requests = history.requests.copy()
    requests["status"][requests["sent_s"] < FAILS_S] = 503
    assert outcome(others_are_answered, replace(history, requests=requests), CLAIMS) is Outcome.PASS
