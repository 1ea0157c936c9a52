"""Integrity on hand-written histories: swapped answers, entries without a counterpart, answers without a number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.claims.features import Claims
from harness.evidence.history import History, StepSeen
from harness.property.findings import Held, undecided
from harness.property.verdict import Outcome
from harness.scenario.arrivals import draw
from harness.scenario.model import Echo, Ending
from suites.integrity import answer_belongs_to_request, rush, rush_nothing_lost
from suites.scenarios import steady
from tests.suites.histories import SEED, history_of, lost, outcome

CLAIMS = Claims()


def sound() -> History:
    """Every request has the answer of the backend with its attempt."""
    return history_of(steady(CLAIMS), lambda arrival: arrival.number % 4)


def figures(history: History) -> list[tuple[object, ...]]:
    """Figures of the two findings: answers that do not belong to their request, entries without a counterpart."""
    findings = answer_belongs_to_request(history, CLAIMS)
    assert len(findings) == 2
    assert all(isinstance(found, Held) and found.exact and found.bound == 0 for found in findings)
    return [(found.ok, found.observed, found.sample) for found in findings if isinstance(found, Held)]


def test_every_answer_is_its_requests_own() -> None:
    assert figures(sound()) == [(True, 0, 1000), (True, 0, 1000)]


def test_swapped_answers_fail_both_findings() -> None:
    """Two clients have each other's answer, so each answer names a backend without an attempt for its request."""
    history = sound()
    history.requests["echo"][[10, 11]] = Echo.OTHER
    history.requests["answered_by"][[10, 11]] = history.requests["answered_by"][[11, 10]]
    assert figures(history) == [(False, 2, 1000), (False, 2, 1000)]
    first = answer_belongs_to_request(history, CLAIMS)[0]
    assert isinstance(first, Held)
    assert first.note == "2 of 1000 answers belong to another request, 0 to none"


def test_one_answer_without_a_number_among_others_is_not_its_own() -> None:
    history = sound()
    history.requests["echo"][10] = Echo.NONE
    assert figures(history) == [(False, 1, 1000), (True, 0, 1000)]


def test_rejections_by_the_balancer_need_no_number() -> None:
    history = lost(sound(), range(100))
    history.requests["echo"][:100] = Echo.NONE
    history.requests["answered_by"][:100] = -1
    assert figures(history) == [(True, 0, 900), (True, 0, 900)]


def test_an_answer_that_no_backend_gave_is_an_orphan() -> None:
    whole = sound()
    assert figures(replace(whole, attempts=whole.attempts[1:])) == [(True, 0, 1000), (False, 1, 1000)]
    whole.attempts["ending"][5] = Ending.CLIENT_GONE
    assert figures(whole) == [(True, 0, 1000), (False, 1, 1000)]


def test_a_killed_process_may_not_have_recorded_its_last_answer() -> None:
    history = sound()
    history.attempts["ending"][5] = Ending.OPEN
    at = int(history.attempts["backend"][5])
    assert figures(history) == [(True, 0, 1000), (False, 1, 1000)]
    for kind, backend, orphans in (
        ("Kill", at, 0),
        ("Restart", at, 0),
        ("Kill", at + 1, 1),
        ("Down", at, 1),
    ):
        steps = (StepSeen(kind, backend, 1.0, 1.0, 2.0),)
        assert figures(replace(history, steps=steps)) == [(True, 0, 1000), (not orphans, orphans, 1000)]


def test_an_answer_that_another_backend_gave_is_an_orphan() -> None:
    history = sound()
    history.requests["answered_by"][10] = 3
    assert history.attempts["backend"][10] != 3
    assert figures(history) == [(True, 0, 1000), (False, 1, 1000)]


def test_attempts_of_no_request_are_orphans() -> None:
    whole = sound()
    unmatched = whole.attempts[:3].copy()
    unmatched["request"], unmatched["carriers"] = -1, 1
    doubled = replace(whole, attempts=np.concatenate([whole.attempts, unmatched]))
    assert figures(doubled) == [(True, 0, 1000), (False, 3, 1000)]


def test_where_no_backend_is_named_any_answered_attempt_will_do() -> None:
    history = sound()
    history.requests["answered_by"] = -1
    assert figures(history) == [(True, 0, 1000), (True, 0, 1000)]
    history.attempts["ending"][5] = Ending.CLIENT_GONE
    assert figures(history) == [(True, 0, 1000), (False, 1, 1000)]


def test_foreign_answers_count_even_if_truncated() -> None:
    history = sound()
    history.requests["echo"][7] = Echo.OTHER
    history.requests["status"][7] = 500
    assert figures(history)[0] == (False, 1, 999)


def test_few_answers_are_undecided() -> None:
    history = sound()
    history.requests["status"][499:] = 503
    assert outcome(answer_belongs_to_request, history, CLAIMS) is Outcome.INCONCLUSIVE


def test_foreign_attempts_back_no_answer() -> None:
    history = sound()
    history.attempts["request"][10], history.attempts["carriers"][10] = -1, 1
    # One entry without a counterpart on either side.
    assert figures(history) == [(True, 0, 1000), (False, 2, 1000)]


def test_an_abandoned_attempt_beside_the_answered_one_is_no_orphan() -> None:
    whole = sound()
    hedge = whole.attempts[:1].copy()
    hedge["backend"], hedge["ending"] = 1, Ending.CLIENT_GONE
    assert figures(replace(whole, attempts=np.concatenate([whole.attempts, hedge])))[1] == (True, 0, 1000)


def test_answers_without_any_number_are_undecided() -> None:
    history = sound()
    history.requests["echo"] = Echo.NONE
    assert answer_belongs_to_request(history, CLAIMS) == [
        undecided("the balancer rewrites answers: none repeats its request's number")
    ]
    assert outcome(answer_belongs_to_request, history, CLAIMS) is Outcome.INCONCLUSIVE


def test_no_answer_no_finding() -> None:
    assert answer_belongs_to_request(lost(sound(), range(1000)), CLAIMS) == []


def test_calls_of_the_balancers_own_are_no_orphans() -> None:
    history = sound()
    probe = history.attempts[:1].copy()
    probe["request"], probe["carriers"] = -1, 0
    assert figures(replace(history, attempts=np.concatenate([history.attempts, probe])))[1] == (True, 0, 1000)


# --- the rush ---------------------------------------------------------------------------------------------


def test_a_rush_has_streams_large_bodies_and_clients_that_give_up() -> None:
    arrivals = draw(rush(CLAIMS).load, SEED)
    at_its_height = [one for one in arrivals if 0.7 <= one.at_s < 1.1]
    assert len(at_its_height) > 0.4 * len(arrivals)
    assert 0.4 < sum(one.streams for one in arrivals) / len(arrivals) < 0.6
    assert max(one.payload_bytes for one in arrivals) > 20_000
    assert 5 < sum(one.patience_s < one.timeout_s for one in arrivals) < 0.1 * len(arrivals)
    assert not any(one.streams for one in draw(rush(Claims(protocol="kserve")).load, SEED))


def test_an_aborted_request_is_not_lost_and_any_other_is() -> None:
    history = history_of(rush(CLAIMS), lambda arrival: arrival.number % 4)
    patient = [one.number for one in draw(history.scenario.load, SEED) if one.patience_s >= one.timeout_s]
    aborted = sorted(set(range(len(history.requests))) - set(patient))
    assert outcome(rush_nothing_lost, lost(history, aborted), CLAIMS) is Outcome.PASS
    assert outcome(rush_nothing_lost, lost(history, patient[:1]), CLAIMS) is Outcome.FAIL
