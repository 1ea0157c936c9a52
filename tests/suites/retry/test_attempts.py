"""Retries on hand-written histories: how often, at which backend, and which failures are not retried."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.claims.features import Claims, Retry
from harness.property.declare import Property
from harness.property.findings import Held, Within
from harness.property.verdict import Outcome
from harness.scenario.faults import CutOff, FailingStatus, Hang
from harness.scenario.model import Failure, Kind, Method, UnsupportedError
from suites.retry.attempts import (
    attempts_at_most,
    backend_another,
    failures,
    first_byte_never,
    retried_status,
    retry_after_honoured,
    status_only_claimed,
    update_at_most_once,
)
from tests.suites.histories import outcome
from tests.suites.retry_histories import TriedRequest, Try, broken_off, drop, refusal, written

CLAIMS = Claims((Retry(attempts=3, statuses=(502, 503, 504)),))
PLAIN = Claims((Retry(attempts=3),))
SCENARIO = failures(CLAIMS)


def judged(item: Property, *requests: TriedRequest, claims: Claims = CLAIMS) -> list[Held]:
    """All findings of a check, which are facts."""
    found = item(written(SCENARIO, requests), claims)
    assert all(isinstance(finding, Held) for finding in found)
    return [finding for finding in found if isinstance(finding, Held)]


def facts(found: list[Held]) -> list[tuple[bool, object, object, int | None]]:
    """Verdict, observed value, bound and sample of findings."""
    return [(item.ok, item.observed, item.bound, item.sample) for item in found]


# --- the scenario -----------------------------------------------------------------------------------------


def test_the_scenario_follows_the_claims() -> None:
    names = [phase.name for phase in SCENARIO.phases]
    assert names == [
        "one refuses",
        "one drops",
        "one breaks off",
        *(f"all say {code}" for code in (400, 404, 429, 500)),
        "all drop",
        "all refuse",
        "all ask to wait",
    ]
    statuses = {step.status for step in SCENARIO.timeline if isinstance(step, FailingStatus)}
    assert statuses == {400, 404, 429, 500, 503}
    assert {step.retry_after_s for step in SCENARIO.timeline if isinstance(step, FailingStatus)} == {None, 1.0}
    assert {type(step) for step in SCENARIO.timeline} == {FailingStatus, Hang, CutOff}
    assert [stream.name for stream in SCENARIO.load.streams] == ["traffic", "few", "updates"]
    assert SCENARIO.end_s <= 6.0


def test_stretches_of_the_scenario_do_not_meet() -> None:
    for before, after in zip(SCENARIO.phases, SCENARIO.phases[1:], strict=False):
        assert before.end_s < after.start_s


def test_without_a_retried_status_only_connections_fail() -> None:
    scenario = failures(PLAIN)
    assert "one refuses" not in [phase.name for phase in scenario.phases]
    assert retried_status(PLAIN) is None
    assert retried_status(Claims((Retry(statuses=(429, 502)),))) == 429


def test_claimed_statuses_are_not_among_those_left_alone() -> None:
    scenario = failures(Claims((Retry(statuses=(429, 500, 503)),)))
    said = [phase.name for phase in scenario.phases if phase.name.startswith("all say")]
    assert said == ["all say 400", "all say 404", "all say 409", "all say 501"]


def test_openai_has_neither_get_nor_updates() -> None:
    scenario = failures(replace(CLAIMS, protocol="openai"))
    assert [stream.name for stream in scenario.load.streams] == ["traffic", "few"]
    assert {stream.methods for stream in scenario.load.streams} == {(Method.POST,)}


# --- attempts ---------------------------------------------------------------------------------------------


def all_refused(attempts: int, method: Method = Method.POST) -> TriedRequest:
    """A request whose attempts all fail."""
    return TriedRequest(tuple(refusal(4.6 + 0.01 * turn, turn % 3) for turn in range(attempts)), 503, method=method)


def test_the_claimed_number_of_attempts_holds_and_one_more_breaks_it() -> None:
    assert facts(judged(attempts_at_most, all_refused(3))) == [(True, 3, 3, 1)]
    found = judged(attempts_at_most, all_refused(3), all_refused(4), all_refused(3, Method.GET))
    assert facts(found) == [(False, 4, 3, 2), (True, 3, 3, 1)]
    assert [item.note.split(":")[0] for item in found] == ["POST", "GET"]
    assert all(item.exact for item in found)


def test_a_dropped_last_attempt_counts_apart() -> None:
    dropped_last = TriedRequest((drop(3.3, 0), drop(3.4, 1), drop(3.5, 2), Try(3.6, 0)))
    (found,) = judged(attempts_at_most, dropped_last)
    assert (found.ok, found.observed) == (False, 4) and "dropped" in found.note


def test_requests_with_attempts_to_spare_prove_nothing() -> None:
    assert judged(attempts_at_most, all_refused(2)) == []
    rescued = TriedRequest((refusal(4.6), refusal(4.61, 1), Try(4.62, 2)))
    assert judged(attempts_at_most, rescued) == []
    assert outcome(attempts_at_most, written(SCENARIO, [rescued]), CLAIMS) is Outcome.VACUOUS
    update = replace(all_refused(4), kind=Kind.UPDATE)
    assert judged(attempts_at_most, update) == []


# --- statuses ---------------------------------------------------------------------------------------------


def test_an_unclaimed_status_passes_through() -> None:
    found = judged(
        status_only_claimed, TriedRequest((refusal(1.75, 0, 400),), 400), TriedRequest((refusal(2.65, 1, 500),), 500)
    )
    assert facts(found) == [(True, 0, 0, 1), (True, 0, 0, 1)]
    assert [item.note[:3] for item in found] == ["400", "500"]
    assert not found[0].exact, "a balancer that was kept from reading an answer may take it for a timeout"


def test_an_unclaimed_status_that_is_tried_again_or_rewritten() -> None:
    again = TriedRequest((refusal(1.75, 0, 400), Try(1.8, 1)), 400)
    assert facts(judged(status_only_claimed, again)) == [(False, 1, 0, 1)]
    rewritten = TriedRequest((refusal(1.75, 0, 404),), 502)
    assert facts(judged(status_only_claimed, rewritten)) == [(False, 1, 0, 1)]


def test_claimed_statuses_and_updates_are_not_judged_by_it() -> None:
    assert judged(status_only_claimed, TriedRequest((refusal(0.6), Try(0.65, 1)))) == []
    assert judged(status_only_claimed, TriedRequest((refusal(1.75, 0, 400), Try(1.8, 1)), 200, Kind.UPDATE)) == []
    claims = Claims((Retry(attempts=3, statuses=(400,)),))
    assert judged(status_only_claimed, TriedRequest((refusal(1.75, 0, 400), Try(1.8, 1))), claims=claims) == []


# --- another backend --------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [refusal(0.6, 0), drop(1.1, 0)])
def test_a_retry_elsewhere_holds_and_one_at_the_same_backend_breaks_it(first: Try) -> None:
    elsewhere = TriedRequest((first, Try(first.start_s + 0.2, 1)))
    back = TriedRequest((first, Try(first.start_s + 0.2, 0)))
    assert facts(judged(backend_another, elsewhere)) == [(True, 0, 0, 1)]
    assert facts(judged(backend_another, elsewhere, back)) == [(False, 1, 0, 2)]


def test_only_while_a_single_backend_fails() -> None:
    """While all backends fail, a backend that was already tried may be the best choice."""
    assert judged(backend_another, TriedRequest((refusal(4.7), Try(4.8, 0)))) == []
    assert judged(backend_another, TriedRequest((refusal(0.49), Try(0.6, 0)))) == []
    assert facts(judged(backend_another, TriedRequest((refusal(0.5), Try(0.6, 0))))) == [(False, 1, 0, 1)]
    assert judged(backend_another, TriedRequest((refusal(0.6),), 503)) == [], "not tried again"


def test_noise_leaves_it_undecided() -> None:
    back = [TriedRequest((refusal(0.6), Try(0.7, 0)))]
    assert outcome(backend_another, written(SCENARIO, back, slack_s=0.19), CLAIMS) is Outcome.FAIL
    assert outcome(backend_another, written(SCENARIO, back, slack_s=0.21), CLAIMS) is Outcome.INCONCLUSIVE


# --- updates ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "name"),
    [(refusal(0.6), "answered with an error"), (drop(1.1), "dropped"), (broken_off(1.4), "answer broken off")],
)
def test_an_update_that_is_repeated(first: Try, name: str) -> None:
    once = TriedRequest((first,), 502, Kind.UPDATE)
    twice = TriedRequest((first, Try(first.start_s + 0.1, 1)), 200, Kind.UPDATE)
    (found,) = judged(update_at_most_once, once)
    assert facts([found]) == [(True, 0, 0, 1)] and found.note.startswith(name) and found.exact
    assert facts(judged(update_at_most_once, once, twice)) == [(False, 1, 0, 2)]


def test_updates_that_went_well_and_inference_prove_nothing() -> None:
    assert judged(update_at_most_once, TriedRequest((Try(0.6),), kind=Kind.UPDATE)) == []
    assert judged(update_at_most_once, TriedRequest((refusal(0.6), Try(0.7, 1)))) == []


# --- first byte -------------------------------------------------------------------------------------------


def test_a_broken_answer_is_seen_broken_once() -> None:
    broken = TriedRequest((broken_off(1.4),), 200, failure=Failure.TRUNCATED)
    assert facts(judged(first_byte_never, broken)) == [(True, 0, 0, 1), (True, 0, 0, 1)]


def test_a_broken_answer_that_is_begun_again_or_looks_whole() -> None:
    again = TriedRequest((broken_off(1.4), Try(1.5, 1)), 200, failure=Failure.TRUNCATED)
    assert facts(judged(first_byte_never, again)) == [(False, 1, 0, 1), (True, 0, 0, 1)]
    whole = TriedRequest((broken_off(1.4),))
    assert facts(judged(first_byte_never, whole)) == [(True, 0, 0, 1), (False, 1, 0, 1)]
    own_error = TriedRequest((broken_off(1.4),), 502)
    assert facts(judged(first_byte_never, own_error)) == [(True, 0, 0, 1), (True, 0, 0, 1)]


def test_what_was_dropped_before_its_first_byte_may_be_tried_again() -> None:
    assert judged(first_byte_never, TriedRequest((drop(1.1), Try(1.2, 1)))) == []
    assert judged(first_byte_never, TriedRequest((broken_off(1.4), Try(1.5, 1)), kind=Kind.UPDATE)) == []


# --- Retry-After ------------------------------------------------------------------------------------------


def waited(wait_s: float) -> list[TriedRequest]:
    """A request whose retry reaches its backend this long after the answer with Retry-After."""
    first = Try(5.7, 0, 503, end_s=5.7)
    return [TriedRequest((first, Try(5.7 + wait_s, 1)))]


@pytest.mark.parametrize(("wait_s", "expected"), [(1.001, Outcome.PASS), (0.999, Outcome.FAIL)])
def test_a_retry_waits_as_long_as_it_was_asked_to(wait_s: float, expected: Outcome) -> None:
    history = written(SCENARIO, waited(wait_s))
    (found,) = retry_after_honoured(history, CLAIMS)
    assert isinstance(found, Within)
    assert found.observed_s == pytest.approx(wait_s) and (found.low_s, found.high_s) == (1.0, np.inf)
    assert found.sample == 1
    assert outcome(retry_after_honoured, history, CLAIMS) is expected


def test_the_earliest_retry_counts() -> None:
    history = written(SCENARIO, waited(1.2) + waited(0.5))
    (found,) = retry_after_honoured(history, CLAIMS)
    assert isinstance(found, Within) and found.observed_s == pytest.approx(0.5) and found.sample == 2


def test_to_give_up_honours_it_too() -> None:
    (found,) = judged(retry_after_honoured, TriedRequest((Try(5.7, 0, 503),), 503))
    assert facts([found]) == [(True, 0, 0, 1)] and "none of 1 was retried" in found.note


def test_only_answers_that_asked_for_it_count() -> None:
    assert judged(retry_after_honoured, TriedRequest((refusal(4.7), Try(4.71, 1)))) == []
    assert judged(retry_after_honoured, TriedRequest((Try(5.7),))) == []


def test_without_a_retried_status_nobody_can_be_asked_to_wait() -> None:
    with pytest.raises(UnsupportedError, match="no status"):
        retry_after_honoured(written(failures(PLAIN), []), PLAIN)
