"""The property of repeated requests on hand-written histories."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.claims.features import Affinity, Claims
from harness.evidence.history import History
from harness.property.findings import undecided
from harness.property.verdict import Outcome
from harness.scenario.arrivals import Arrival
from suites.affinity.repeat import repeat_same_backend
from suites.scenarios import steady
from tests.suites.histories import history_of, only, outcome, unreached

CLAIMS = Claims((Affinity(),))


def fourth(arrival: Arrival) -> int:
    """Key k belongs to backend k modulo 4."""
    return arrival.key % 4


def test_equal_keys_go_to_equal_backends() -> None:
    found = only(repeat_same_backend, history_of(steady(CLAIMS), fourth), CLAIMS)
    assert (found.ok, found.observed, found.bound, found.sample, found.exact) == (True, 0, 0, 250, True)


def test_a_key_on_two_backends_breaks_it() -> None:
    history = history_of(steady(CLAIMS), fourth)
    history.attempts["backend"][999] = (fourth_of(history, 999) + 1) % 4
    found = only(repeat_same_backend, history, CLAIMS)
    assert (found.ok, found.observed, found.bound, found.sample) == (False, 1, 0, 250)
    assert found.note == "1 of 250 keys went to more than one backend"


def fourth_of(history: History, number: int) -> int:
    """The backend that request `number` went to."""
    return int(history.requests["key"][number]) % 4


def test_only_the_first_attempt_of_a_request_counts() -> None:
    history = history_of(steady(CLAIMS), fourth)
    retry = history.attempts[:1].copy()
    retry["backend"] = (retry["backend"] + 1) % 4
    retry["start_s"] = 9.0
    history = replace(history, attempts=np.concatenate([history.attempts, retry]))
    assert only(repeat_same_backend, history, CLAIMS).ok


def test_no_attempt_no_finding() -> None:
    assert repeat_same_backend(history_of(steady(CLAIMS), lambda arrival: None), CLAIMS) == []


def test_repeats_of_too_few_requests_are_undecided() -> None:
    whole = history_of(steady(CLAIMS), fourth)
    assert repeat_same_backend(unreached(whole, 499), CLAIMS) == [
        undecided("only 499 of 1000 requests reached a backend")
    ]
    assert outcome(repeat_same_backend, unreached(whole, 499), CLAIMS) is Outcome.INCONCLUSIVE
    assert outcome(repeat_same_backend, unreached(whole, 500), CLAIMS) is Outcome.PASS
