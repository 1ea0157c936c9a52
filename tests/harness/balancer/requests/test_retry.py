"""Retries: retryable failures, backoff, and the budget in every window."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from harness.balancer.requests.retry import RetryBudget, RetrySettings, backoff_s, fits_deadline, may_retry, remaining_s
from harness.scenario.model import Kind

PINNED = settings(derandomize=True, deadline=None, database=None, max_examples=200)
CLAIMED = RetrySettings(
    attempts=3, statuses=frozenset({503}), on_timeout=False, deadline_s=2.0, replay_limit_bytes=1000
)

# --- the rule ---------------------------------------------------------------------------------------------


def may(chosen: RetrySettings = CLAIMED, **changes: object) -> bool:
    """`may_retry` for an inference answered with 503, with `changes`."""
    ordinary: dict[str, object] = {
        "attempt": 1,
        "error": None,
        "status": 503,
        "kind": Kind.INFERENCE,
        "sent": True,
        "first_byte": False,
        "payload_bytes": 10,
        "elapsed_s": 0.1,
    }
    return may_retry(chosen, **{**ordinary, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(("status", "expected"), [(503, True), (500, False), (429, False), (200, False), (None, False)])
def test_only_statuses_that_were_claimed(status: int | None, expected: bool) -> None:
    assert may(status=status) is expected


@pytest.mark.parametrize(
    ("error", "expected"), [("refused", True), ("reset", True), ("timeout", False), ("aborted", False), ("?", False)]
)
def test_connection_failures_but_timeouts_only_if_claimed(error: str, expected: bool) -> None:
    assert may(error=error, status=None) is expected


def test_each_error_has_its_switch() -> None:
    chosen = RetrySettings(on_refused=False, on_reset=False, on_timeout=True)
    assert [may(chosen, error=error, status=None) for error in ("refused", "reset", "timeout")] == [False, False, True]


def test_an_error_outweighs_the_status_that_came_before_it() -> None:
    assert may(error="reset", status=200)
    assert not may(error="timeout", status=503)


def test_the_first_attempt_counts() -> None:
    assert [may(attempt=attempt) for attempt in (1, 2, 3, 4)] == [True, True, False, False]


def test_never_after_the_first_byte() -> None:
    assert not may(first_byte=True)
    assert not may(error="reset", status=200, first_byte=True)


@pytest.mark.parametrize(
    ("error", "status", "sent", "expected"),
    [
        ("refused", None, False, True),
        ("reset", None, False, True),
        ("reset", None, True, False),
        ("timeout", None, True, False),
        (None, 503, True, False),
        (None, 503, False, False),
        ("reset", 503, False, False),
    ],
)
def test_an_update_only_if_nothing_of_it_was_sent(
    error: str | None, status: int | None, sent: bool, expected: bool
) -> None:
    assert may(kind=Kind.UPDATE, error=error, status=status, sent=sent) is expected


def test_nothing_that_is_too_big_to_be_kept() -> None:
    assert [may(payload_bytes=size) for size in (0, 1000, 1001)] == [True, True, False]


def test_one_deadline_spans_all_attempts() -> None:
    """500 after .9 s each, 2 s in all: at most three attempts, the last with .2 s."""
    assert [may(elapsed_s=elapsed_s) for elapsed_s in (0.9, 1.99, 2.0, 2.7)] == [True, True, False, False]
    assert [remaining_s(CLAIMED, elapsed_s) for elapsed_s in (0.0, 1.5, 2.5)] == [2.0, 0.5, 0.0]
    assert fits_deadline(CLAIMED, 1.5, 0.4)
    assert not fits_deadline(CLAIMED, 1.5, 0.5)
    assert not fits_deadline(CLAIMED, 2.5, 0.0)


# --- the wait ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("attempt", "longest_s"), [(1, 0.1), (2, 0.2), (3, 0.4), (4, 0.5), (5, 0.5), (5000, 0.5)])
def test_waits_are_uniform_below_a_bound_that_doubles(attempt: int, longest_s: float) -> None:
    chosen, generator = RetrySettings(base_s=0.1, max_backoff_s=0.5), Random(3)
    waits_s = [backoff_s(chosen, attempt, generator) for _ in range(2000)]
    assert 0 <= min(waits_s) < 0.01 * longest_s
    assert 0.99 * longest_s < max(waits_s) <= longest_s
    assert sum(waits_s) / 2000 == pytest.approx(longest_s / 2, rel=0.06)


def test_retry_after_is_a_minimum_and_those_told_the_same_still_spread() -> None:
    chosen, generator = RetrySettings(base_s=0.1, max_backoff_s=0.5), Random(3)
    waits_s = [backoff_s(chosen, 1, generator, retry_after_s=1.0) for _ in range(20)]
    assert all(1.0 <= wait_s <= 1.1 for wait_s in waits_s) and len(set(waits_s)) == 20
    assert not fits_deadline(RetrySettings(deadline_s=1.5), 0.6, waits_s[0])
    assert 0 <= backoff_s(chosen, 1, generator, retry_after_s=-5.0) <= 0.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attempts": 0}, "attempts 0"),
        ({"replay_limit_bytes": -1}, "replay_limit_bytes -1"),
        ({"base_s": 0.0}, "base_s 0.0"),
        ({"max_backoff_s": 0.001}, "max_backoff_s 0.001"),
        ({"deadline_s": 0.0}, "deadline_s 0.0"),
        ({"budget_share": 1.5}, "share 1.5"),
        ({"budget_floor": -1}, "floor -1"),
        ({"budget_window_s": 0.0}, "window 0.0"),
    ],
)
def test_settings_that_make_no_sense(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RetrySettings(**changes)  # type: ignore[arg-type]


# --- the budget -------------------------------------------------------------------------------------------


def granted(budget: RetryBudget, wanted: int, now_s: float, *, send: bool = True) -> int:
    """Number of `wanted` retries that are granted; they are sent at once or left waiting."""
    count = 0
    for _ in range(wanted):
        if budget.try_take(now_s):
            count += 1
            if send:
                budget.sent(now_s)
    return count


def test_a_floor_for_those_who_are_alone_again_in_every_window() -> None:
    budget = RetryBudget(0.1, 3, 10.0)
    assert granted(budget, 9, 0.0) == 3
    assert granted(budget, 9, 10.0) == 0  # a window that begins at 0 and ends at 10 holds both
    assert granted(budget, 9, 10.01) == 3


def test_a_share_of_the_fresh_requests_in_an_outage() -> None:
    """A thousand requests a second that all need a retry: a hundred retries a second plus the floor."""
    budget = RetryBudget(0.1, 10, 10.0)
    sent = 0
    for number in range(5000):
        budget.request_arrived(number / 1000)
        sent += granted(budget, 1, number / 1000)
    assert sent == 10 + 499  # the very first request finds the bucket full


def test_those_waiting_in_backoff_have_used_it_up() -> None:
    """A hundred fail at once, and all would wait for a second."""
    budget = RetryBudget(0.2, 20, 10.0)
    for _ in range(100):
        budget.request_arrived(0.0)
    assert granted(budget, 100, 0.1, send=False) == 20
    assert budget.waiting == 20


def test_what_never_left_is_given_back() -> None:
    budget = RetryBudget(0.1, 1, 10.0)
    assert budget.try_take(0.0) and not budget.try_take(0.0)
    budget.give_back(1.0)
    assert budget.waiting == 0
    assert budget.try_take(1.0) and not budget.try_take(1.0)


def test_requests_of_the_past_pay_for_no_retries_of_later_windows() -> None:
    """Counting over the last ten seconds would grant 100 here, all in a window that soon has no requests."""
    budget = RetryBudget(0.1, 2, 10.0)
    for _ in range(1000):
        budget.request_arrived(0.0)
    assert granted(budget, 100, 9.9) == 2


def test_nothing_is_saved_up_beyond_the_floor() -> None:
    budget = RetryBudget(1.0, 1, 10.0)
    for _ in range(5):
        budget.request_arrived(0.0)
    assert granted(budget, 5, 0.1, send=False) == 1


def test_without_a_floor_or_a_share() -> None:
    budget = RetryBudget(0.5, 0, 10.0)
    for _ in range(100):
        budget.request_arrived(0.0)
    assert granted(budget, 5, 0.0) == 0
    budget = RetryBudget(0.0, 2, 10.0)
    budget.request_arrived(0.0)
    assert granted(budget, 5, 0.0) == 2


def test_shares_are_exact() -> None:
    """Ten times the float .1 added up is less than 1."""
    budget = RetryBudget(0.1, 1, 1e9)
    assert granted(budget, 2, 0.0) == 1
    for _ in range(10):
        assert granted(budget, 1, 0.0) == 0
        budget.request_arrived(0.0)
    assert granted(budget, 2, 0.0) == 1


@pytest.mark.parametrize("end", [RetryBudget.sent, RetryBudget.give_back])
def test_ending_what_does_not_wait_is_a_mistake(end: object) -> None:
    assert callable(end)
    with pytest.raises(ValueError, match="no granted retry is waiting"):
        end(RetryBudget(0.1, 3, 10.0), 0.0)


def test_memory_is_bounded_by_the_retries_of_a_window() -> None:
    budget = RetryBudget(0.1, 10, 1.0)
    for number in range(20_000):
        budget.request_arrived(number / 1000)
        granted(budget, 1, number / 1000)
    assert len(budget._past) <= 120


@PINNED
@given(
    st.lists(st.tuples(st.sampled_from("ffffffffttss"), st.sampled_from([0.0, 0.0, 0.1, 0.7, 3.0])), max_size=150),
    st.sampled_from([0.1, 0.25, 1.0]),
    st.integers(1, 3),
)
def test_no_window_has_more_retries_than_its_budget(steps: list[tuple[str, float]], share: float, floor: int) -> None:
    """All windows of at most 2 s that begin and end at an event, ends included: only these can exceed the bound."""
    budget, now_s = RetryBudget(share, floor, 2.0), 0.0
    fresh_s: list[float] = []
    sent_s: list[float] = []
    for what, gap_s in steps:
        now_s += gap_s
        if what == "f":
            budget.request_arrived(now_s)
            fresh_s.append(now_s)
        elif what == "t":
            budget.try_take(now_s)
        elif budget.waiting:
            budget.sent(now_s)
            sent_s.append(now_s)
    for start_s in {*sent_s, *fresh_s}:
        for end_s in [at_s for at_s in {*sent_s, start_s + 2.0} if start_s <= at_s <= start_s + 2.0]:
            retries = sum(start_s <= at_s <= end_s for at_s in sent_s)
            assert retries <= Fraction(str(share)) * sum(start_s <= at_s <= end_s for at_s in fresh_s) + floor
            # And without its first instant, where no request adds to the budget.
            retries = sum(start_s < at_s <= end_s for at_s in sent_s)
            assert retries <= Fraction(str(share)) * sum(start_s < at_s <= end_s for at_s in fresh_s) + floor


class Ledger(RuleBasedStateMachine):
    """The budget compared with a list of all events: it grants exactly what every window allows."""

    SHARE = Fraction(1, 4)
    FLOOR = 2
    WINDOW_S = 3.0

    def __init__(self) -> None:
        super().__init__()
        self.budget = RetryBudget(0.25, self.FLOOR, self.WINDOW_S)
        self.now_s = 0.0
        self.observed: list[tuple[float, Fraction]] = []  # budget change of each request and each retry sent
        self.takes: list[tuple[float, int]] = []  # time, and number of events before
        self.waiting = 0

    def least_room(self) -> Fraction:
        """The smallest remainder of the floor over all windows that end now."""
        least = room = Fraction(self.FLOOR)
        for at_s, amount in reversed(self.observed):
            if at_s < self.now_s - self.WINDOW_S:
                break
            room += amount
            least = min(least, room)
        return least - self.waiting

    @rule(seconds=st.sampled_from([0.25, 1.0, 3.0, 3.25]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(count=st.integers(1, 9))
    def requests_arrive(self, count: int) -> None:
        for _ in range(count):
            self.budget.request_arrived(self.now_s)
            self.observed.append((self.now_s, self.SHARE))

    @rule()
    def a_retry_is_wanted(self) -> None:
        expected = self.least_room() >= 1
        assert self.budget.try_take(self.now_s) is expected
        self.waiting += expected

    @precondition(lambda self: self.waiting)
    @rule()
    def a_retry_is_sent(self) -> None:
        self.budget.sent(self.now_s)
        self.waiting -= 1
        self.observed.append((self.now_s, Fraction(-1)))

    @precondition(lambda self: self.waiting)
    @rule()
    def a_retry_is_abandoned(self) -> None:
        self.budget.give_back(self.now_s)
        self.waiting -= 1

    @invariant()
    def every_window_pays_for_what_was_sent_and_for_what_waits(self) -> None:
        assert self.budget.waiting == self.waiting
        assert self.least_room() >= 0


TestLedger = Ledger.TestCase
TestLedger.settings = settings(derandomize=True, deadline=None, database=None, max_examples=80, stateful_step_count=50)
