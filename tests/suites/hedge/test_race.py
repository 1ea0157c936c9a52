"""Hedging on hand-written histories: when and where a hedge may be sent, which attempt wins, the loser's end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.claims.features import Affinity, Claims, Hedge
from harness.evidence.history import History
from harness.property.findings import Finding, Held, Within
from harness.property.verdict import Outcome
from harness.scenario.model import Ending, Failure
from suites.hedge.evidence import delay_s, rank
from suites.hedge.race import (
    backend_another,
    delay_not_before,
    error_goes_on,
    first_good_wins,
    loser_cancelled,
    settled_never,
)
from tests.suites.hedge_histories import CLAIMS, NAN, Leg, Story, left
from tests.suites.histories import only, outcome


def timed(findings: list[Finding]) -> Within:
    """The only finding of a check, which is a time."""
    (finding,) = findings
    assert isinstance(finding, Within)
    return finding


def won(hedge_after_s: float = 0.3) -> Story:
    """Three requests took 0.1, 0.2 and 0.3 s; the fourth was hedged and the hedge won 50 ms later."""
    at_s = 10.0 + hedge_after_s
    story = Story().quick([0.1, 0.3, 0.2])
    return story.ask(10.0, left(0, 10.0, at_s + 0.051), Leg(1, at_s, at_s + 0.05), got=1)


# --- the delay --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quantile", "known", "expected"),
    [(0.95, 19, 19), (0.95, 20, 20), (0.95, 39, 38), (0.95, 40, 39), (0.95, 100, 96), (0.95, 199, 190), (0.5, 3, 2)],
)
def test_rank(quantile: float, known: int, expected: int) -> None:
    """ceil(quantile (known + 1)): for 20 known latencies that is 20, not the 19 of ceil(.95 x 20)."""
    assert rank(quantile, known) == expected


def test_a_delay_needs_the_claimed_minimum() -> None:
    hedge = CLAIMS[Hedge]
    assert delay_s(np.array([0.1, 0.3]), hedge) is None
    assert delay_s(np.array([0.3, 0.1, 0.2]), hedge) == 0.2
    assert delay_s(np.array([0.4, 0.3, 0.1, 0.2]), hedge) == 0.3


@pytest.mark.parametrize(("after_s", "expected"), [(0.2, Outcome.PASS), (0.21, Outcome.PASS), (0.19, Outcome.FAIL)])
def test_no_hedge_before_the_quantile(after_s: float, expected: Outcome) -> None:
    history = won(after_s).history()
    found = timed(delay_not_before(history, CLAIMS))
    assert found.observed_s == pytest.approx(after_s) and found.low_s == pytest.approx(0.2)
    assert found.at_s == 10.0 and found.until_s == pytest.approx(10.0 + after_s)
    assert outcome(delay_not_before, history, CLAIMS) is expected or after_s == 0.2  # the very bound is rounding's


def test_it_is_counted_from_the_request_and_not_from_its_first_attempt() -> None:
    story = Story().quick([0.1, 0.3, 0.2])
    story.ask(10.0, left(0, 10.1, 10.3), Leg(1, 10.25, 10.29), got=1)
    assert timed(delay_not_before(story.history(), CLAIMS)).observed_s == pytest.approx(0.25)


def test_only_the_window_counts() -> None:
    """The last four of six latencies are kept; the result is the third of 0.5, 0.6, 0.7 and 0.8."""
    story = Story().quick([0.1, 0.1, 0.5, 0.8, 0.6, 0.7, 0.9])
    story.ask(10.0, left(0, 10.0, 10.9), Leg(1, 10.75, 10.85), got=1)
    assert timed(delay_not_before(story.history(), CLAIMS)).low_s == pytest.approx(0.7)


def test_a_hedged_request_counts_with_its_whole_time() -> None:
    """0.1, 0.3 and twice 0.35 (0.3 until the hedge, and 0.05): the third is 0.35; by winning attempts: 0.1."""
    story = Story().quick([0.1, 0.3])
    for at_s in (4.0, 5.0):
        story.ask(at_s, left(0, at_s, at_s + 0.351), Leg(1, at_s + 0.3, at_s + 0.35), got=1)
    story.ask(10.0, left(0, 10.0, 10.4), Leg(1, 10.2, 10.39), got=1)
    found = delay_not_before(story.history(), CLAIMS)
    last = found[-1]
    assert isinstance(last, Within) and last.low_s == pytest.approx(0.35)
    assert outcome(delay_not_before, story.history(), CLAIMS) is Outcome.FAIL


def test_only_latencies_of_the_same_model_count() -> None:
    story = Story().quick([0.4, 0.4, 0.4]).quick([0.1, 0.1, 0.1, 0.1], at_s=5.0, key=1)
    story.ask(10.0, left(0, 10.0, 10.3), Leg(1, 10.2, 10.25), got=1)
    history = story.history()
    assert timed(delay_not_before(history, CLAIMS)).low_s == pytest.approx(0.4)
    by_session = replace(CLAIMS, features=(*CLAIMS.features, Affinity(key="session")))
    by_model = replace(CLAIMS, features=(*CLAIMS.features, Affinity(key="json:model")))
    assert timed(delay_not_before(history, by_session)).low_s == pytest.approx(0.1)
    assert timed(delay_not_before(history, by_model)).low_s == pytest.approx(0.4)


def test_the_shortest_of_all_windows_that_may_be_meant_counts() -> None:
    """An answer that arrives while the request waits may or may not be in the window."""
    story = Story().quick([0.4, 0.4, 0.4]).ask(9.9, Leg(0, 9.9, 10.1))
    story.ask(10.0, left(0, 10.0, 10.5), Leg(1, 10.41, 10.45), got=1)
    assert timed(delay_not_before(story.history(), CLAIMS)).low_s == pytest.approx(0.4)
    story = Story().quick([0.2, 0.4, 0.4]).ask(9.9, Leg(0, 9.9, 10.1))
    story.ask(10.0, left(0, 10.0, 10.5), Leg(1, 10.21, 10.45), got=1)
    assert timed(delay_not_before(story.history(), CLAIMS)).low_s == pytest.approx(0.2)  # with it in place of a 0.4


def test_a_hedge_before_the_minimum_is_known() -> None:
    story = Story().quick([0.1, 0.1]).ask(10.0, left(0, 10.0, 10.6), Leg(1, 10.5, 10.55), got=1)
    found = only(delay_not_before, story.history(), CLAIMS)
    assert (found.ok, found.observed, found.bound) == (False, 2, 3)


def test_slack_forgives_a_hedge_that_looks_early() -> None:
    history = won(0.19).history()
    assert outcome(delay_not_before, replace(history, slack_s=np.full(101, 0.015)), CLAIMS) is Outcome.PASS
    assert outcome(delay_not_before, replace(history, slack_s=np.full(101, 0.025)), CLAIMS) is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("check", [delay_not_before, backend_another, first_good_wins, error_goes_on, loser_cancelled])
def test_without_a_hedge_nothing_is_proven(check: object) -> None:
    history = Story().quick([0.1, 0.2, 0.3]).ask(10.0, Leg(0, 10.0, 10.2), stream=2).history()
    assert check(history, CLAIMS) == []  # type: ignore[operator]


# --- where ------------------------------------------------------------------------------------------------


def test_another_backend() -> None:
    found = only(backend_another, won().history(), CLAIMS)
    assert (found.ok, found.observed, found.bound, found.sample, found.exact) == (True, 0, 0, 1, True)


def test_the_same_backend() -> None:
    story = won().ask(11.0, left(2, 11.0, 11.4), Leg(2, 11.3, 11.35), got=2, end_s=11.35)
    found = only(backend_another, story.history(), CLAIMS)
    assert (found.ok, found.observed, found.sample, found.at_s) == (False, 1, 2, 11.0)


def test_of_three_legs_two_at_one_backend() -> None:
    story = Story().ask(1.0, left(0, 1.0, 1.4), left(1, 1.2, 1.4), Leg(0, 1.3, 1.35), end_s=1.35)
    assert not only(backend_another, story.history(), CLAIMS).ok


# --- who wins ---------------------------------------------------------------------------------------------


def race(*legs: Leg, got: int, **more: object) -> History:
    """One hedged request."""
    return Story().ask(1.0, *legs, got=got, **more).history()  # type: ignore[arg-type]


def test_the_hedge_wins() -> None:
    found = only(first_good_wins, won().history(), CLAIMS)
    assert (found.ok, found.observed, found.bound) == (True, 1, 1)


def test_an_answer_that_was_kept_waiting() -> None:
    found = only(first_good_wins, race(Leg(0, 1.0, 1.5), Leg(1, 1.2, 1.25), got=0), CLAIMS)
    assert (found.ok, found.observed, found.bound, found.at_s) == (False, 0, 1, 1.25)


@pytest.mark.parametrize(("end_s", "findings"), [(1.255, 0), (1.265, 1)])
def test_answers_close_together_do_not_say(end_s: float, findings: int) -> None:
    assert len(first_good_wins(race(Leg(0, 1.0, end_s), Leg(1, 1.2, 1.25), got=0), CLAIMS)) == findings


def test_slack_brings_answers_closer_together() -> None:
    history = race(Leg(0, 1.0, 1.265), Leg(1, 1.2, 1.25), got=0)
    assert first_good_wins(replace(history, slack_s=np.full(101, 0.01)), CLAIMS) == []


def test_an_answer_that_reached_nobody() -> None:
    truncated = race(left(0, 1.0, 1.3), Leg(1, 1.2, 1.25), got=1, failure=Failure.TRUNCATED)
    assert not only(first_good_wins, truncated, CLAIMS).ok
    other = race(left(0, 1.0, 1.3), Leg(1, 1.2, 1.25), got=-1, end_s=1.3, status=502)
    assert not only(first_good_wins, other, CLAIMS).ok


def test_a_client_that_left_before_says_nothing() -> None:
    gone = race(left(0, 1.0, 1.3), Leg(1, 1.2, 1.25), got=-1, end_s=1.24, failure=Failure.TIMEOUT)
    assert first_good_wins(gone, CLAIMS) == []
    later = race(left(0, 1.0, 1.3), Leg(1, 1.2, 1.25), got=-1, end_s=1.3, failure=Failure.TIMEOUT)
    assert not only(first_good_wins, later, CLAIMS).ok


def test_an_error_is_no_good_answer() -> None:
    found = only(first_good_wins, race(Leg(0, 1.0, 1.5), Leg(1, 1.2, 1.21, 500), got=0), CLAIMS)
    assert found.ok and found.bound == 0


def test_an_error_does_not_end_the_race() -> None:
    found = only(error_goes_on, race(Leg(0, 1.0, 1.5), Leg(1, 1.2, 1.21, 500), got=0), CLAIMS)
    assert (found.ok, found.observed, found.at_s) == (True, 200, 1.21)
    cut = race(Leg(0, 1.0, 1.3, 0, Ending.CUT), Leg(1, 1.2, 1.5), got=1)
    assert only(error_goes_on, cut, CLAIMS).ok


@pytest.mark.parametrize(("dropped_s", "findings"), [(1.22, 1), (1.30, 1), (1.32, 0)])
def test_an_error_that_ends_the_race(dropped_s: float, findings: int) -> None:
    """The other attempt is abandoned at that moment; if it is abandoned much later, a timeout may be the reason."""
    history = race(left(0, 1.0, dropped_s), Leg(1, 1.2, 1.21, 503), got=1, status=503, end_s=1.22)
    found = error_goes_on(history, CLAIMS)
    assert len(found) == findings
    assert all(isinstance(item, Held) and not item.ok and item.observed == 503 for item in found)


def test_errors_of_both_prove_nothing() -> None:
    assert error_goes_on(race(Leg(0, 1.0, 1.5, 500), Leg(1, 1.2, 1.21, 500), got=0, status=500), CLAIMS) == []
    assert error_goes_on(race(Leg(0, 1.0, 1.2, 500), Leg(1, 1.1, 1.15), got=1), CLAIMS) == []  # it came too late


def test_an_error_proves_nothing_once_the_client_left() -> None:
    gone = race(left(0, 1.0, 1.25), Leg(1, 1.2, 1.21, 500), got=-1, end_s=1.24, failure=Failure.TIMEOUT)
    assert error_goes_on(gone, CLAIMS) == []


# --- the loser --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("end_s", "ok"), [(1.251, True), (1.349, True), (1.351, False)])
def test_a_loser_is_cancelled_within_100_ms(end_s: float, ok: bool) -> None:
    history = race(left(0, 1.0, end_s), Leg(1, 1.2, 1.25), got=1)
    found = timed(loser_cancelled(history, CLAIMS))
    assert found.observed_s == pytest.approx(end_s - 1.25) and found.high_s == 0.1
    assert outcome(loser_cancelled, history, CLAIMS) is (Outcome.PASS if ok else Outcome.FAIL)


@pytest.mark.parametrize(("end_s", "expected"), [(1.34, Outcome.VACUOUS), (1.36, Outcome.FAIL)])
def test_a_loser_that_answers(end_s: float, expected: Outcome) -> None:
    """An answer before the attempt could be cancelled is inconclusive."""
    assert outcome(loser_cancelled, race(Leg(0, 1.0, end_s), Leg(1, 1.2, 1.25), got=1), CLAIMS) is expected


def test_a_loser_that_never_ends() -> None:
    history = race(Leg(0, 1.0, NAN, 0, Ending.OPEN), Leg(1, 1.2, 1.25), got=1)
    assert not only(loser_cancelled, history, CLAIMS).ok


def test_a_hedge_can_lose_too() -> None:
    found = timed(loser_cancelled(race(Leg(0, 1.0, 1.5), left(1, 1.2, 1.52), got=0), CLAIMS))
    assert found.observed_s == pytest.approx(0.02)


def test_without_a_winner_or_a_loser_at_work_nothing_is_proven() -> None:
    failed = race(Leg(0, 1.0, 1.5), Leg(1, 1.2, 1.21, 500), got=0)
    assert loser_cancelled(failed, CLAIMS) == []
    lost = race(left(0, 1.0, 1.5), left(1, 1.2, 1.5), got=-1, end_s=1.5, status=504)
    assert loser_cancelled(lost, CLAIMS) == []


# --- when it is over --------------------------------------------------------------------------------------


def by_word(history: History, claims: Claims = CLAIMS) -> dict[str, Held]:
    """Findings by the word in brackets at the end of their notes."""
    found = settled_never(history, claims)
    assert all(isinstance(item, Held) for item in found)
    return {item.note.rpartition("(")[2].rstrip(")"): item for item in found if isinstance(item, Held)}


@pytest.mark.parametrize(("start_s", "ok"), [(1.29, True), (1.31, False)])
def test_nothing_is_sent_once_an_answer_has_begun(start_s: float, ok: bool) -> None:
    history = race(Leg(0, 1.0, 1.25), left(1, start_s, start_s + 0.01), got=0)
    found = by_word(history)
    assert set(found) == {"answered"}
    assert (found["answered"].ok, found["answered"].observed, found["answered"].sample) == (ok, int(not ok), 1)


def test_slack_allows_an_attempt_that_was_seen_late() -> None:
    history = race(Leg(0, 1.0, 1.25), left(1, 1.31, 1.32), got=0)
    assert by_word(replace(history, slack_s=np.full(101, 0.02)))["answered"].ok


@pytest.mark.parametrize(("start_s", "ok"), [(1.54, True), (1.56, False)])
def test_nothing_is_sent_once_a_client_has_left(start_s: float, ok: bool) -> None:
    story = Story().ask(
        1.0, left(0, 1.0, 1.51), left(1, start_s, 1.6), got=-1, end_s=1.5, failure=Failure.TIMEOUT, stream=1
    )
    found = by_word(story.history())
    assert set(found) == {"clients left"} and found["clients left"].ok is ok


def test_only_impatient_clients_and_answers_say_so() -> None:
    story = Story().ask(1.0, left(0, 1.0, 1.51), got=-1, end_s=1.5, failure=Failure.TIMEOUT)
    assert settled_never(story.history(), CLAIMS) == []
