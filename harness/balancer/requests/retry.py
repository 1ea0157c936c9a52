"""Retries: retryable failures, backoff times, and a budget for the number of retries in any time window.

The rules are pure functions of the last attempt; the budget is exact in every window.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random

from harness.balancer.health.windows import exact_ratio
from harness.scenario.model import Kind


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """Retry conditions, budget, backoff and deadline.

    `attempts`: maximum per request, including the first. `statuses`: retried statuses; `on_refused`, `on_reset` and
    `on_timeout`: retried errors (after a timeout the work may still be running). Any window of `budget_window_s` has at
    most `budget_share` x (client requests in it) + `budget_floor` retries. Waits are drawn from 0 to `base_s`, doubled
    for each further attempt up to `max_backoff_s`. `deadline_s` spans all attempts and waits. Bodies above
    `replay_limit_bytes` are not kept for a second attempt. ValueError for numbers out of range.

    Defaults: attempts and share of "Site Reliability Engineering", ch. 21 (3; 10 %); floor and window of Finagle's
    retry budget (10; 10 s); waits of Envoy's retry policy (25 to 250 ms); deadline of OpenAI's clients (10 minutes).
    """

    attempts: int = 3
    statuses: frozenset[int] = frozenset({502, 503, 504})
    on_refused: bool = True
    on_reset: bool = True
    on_timeout: bool = False
    budget_share: float = 0.1
    budget_floor: int = 10
    budget_window_s: float = 10.0
    base_s: float = 0.025
    max_backoff_s: float = 0.25
    deadline_s: float = 600.0
    replay_limit_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.replay_limit_bytes < 0:
            raise ValueError(
                f"attempts {self.attempts} and replay_limit_bytes {self.replay_limit_bytes}: expected 1 and 0 or more"
            )
        if not self.base_s > 0 or not self.max_backoff_s >= self.base_s or not self.deadline_s > 0:
            raise ValueError(
                f"base_s {self.base_s}, max_backoff_s {self.max_backoff_s} and deadline_s {self.deadline_s}: expected"
                " above 0, base_s or more, and above 0"
            )
        _check_budget(self.budget_share, self.budget_floor, self.budget_window_s)


def _check_budget(share: float, floor: int, window_s: float) -> None:
    if not 0 <= share <= 1 or floor < 0 or not window_s > 0:
        raise ValueError(
            f"retry budget share {share}, floor {floor} and window {window_s} s: expected from 0 to 1, 0 or more, and"
            " above 0"
        )


def may_retry(
    settings: RetrySettings,
    *,
    attempt: int,
    error: str | None,
    status: int | None,
    kind: Kind,
    sent: bool,
    first_byte: bool,
    payload_bytes: int,
    elapsed_s: float,
) -> bool:
    """Whether a request may be retried after its attempt number `attempt` (from 1) failed. Pure.

    `error`: None, refused, reset, timeout or aborted (never retried); with None the `status` decides (None or 0: there
    was none). `sent`: whether any byte of the request was sent to the backend; an update that was sent may have been
    executed, so it is retried only if it was not (rancher/rancher#35424). `first_byte`: whether the answer was
    committed, so that the client may have received part of it. `elapsed_s`: seconds since the request arrived.
    """
    if attempt >= settings.attempts or elapsed_s >= settings.deadline_s:
        return False
    if first_byte or payload_bytes > settings.replay_limit_bytes:
        return False
    # A backend that answered has read something, whatever the driver reports about bytes sent.
    if kind is Kind.UPDATE and (sent or bool(status)):
        return False
    match error:
        case None:
            return status in settings.statuses
        case "refused":
            return settings.on_refused
        case "reset":
            return settings.on_reset
        case "timeout":
            return settings.on_timeout
        case _:
            return False


def backoff_s(settings: RetrySettings, attempt: int, generator: Random, retry_after_s: float | None = None) -> float:
    """Seconds to wait after attempt number `attempt` (from 1): uniform from 0 to base_s 2^(attempt - 1), capped.

    A backend's `retry_after_s` is added, so it is a minimum and requests with the same value do not return at the same
    instant. Source: "full jitter", Brooker, "Exponential Backoff And Jitter", AWS 2015; RFC 9110 section 10.2.3.
    """
    # The exponent is bounded to avoid float overflow; the cap applies long before.
    longest_s = min(settings.max_backoff_s, settings.base_s * 2.0 ** min(attempt - 1, 500))
    return max(retry_after_s or 0.0, 0.0) + generator.uniform(0.0, longest_s)


def remaining_s(settings: RetrySettings, elapsed_s: float) -> float:
    """Seconds until a request's deadline, which bound its next attempt (line/armeria#627)."""
    return max(settings.deadline_s - elapsed_s, 0.0)


def fits_deadline(settings: RetrySettings, elapsed_s: float, wait_s: float) -> bool:
    """Whether a wait of `wait_s` ends before the deadline."""
    return wait_s < remaining_s(settings, elapsed_s)


class RetryBudget:
    """At most `share` x requests + `floor` retries in any window of `window_s`, exactly.

    A retry granted by `try_take` waits in backoff until exactly one call of `sent` (it is sent now) or `give_back` (it
    will not be sent). For every window (a, now] no longer than `window_s`:

        waiting now + sent in (a, now]  <=  share x requests in (a, now] + floor

    so neither granted nor sent retries ever exceed the budget, and retries waiting in backoff already count against it
    (envoyproxy/envoy#30205). Counting over the last `window_s` when a retry is granted would not suffice: ten retries
    granted because of a hundred requests just before the window's edge lie, a moment later, in a window without any
    requests. Therefore the balance B = share x requests - sent is kept with its maximum over the window; the amount
    available now is floor + B - max B, a token bucket of size `floor` whose debts expire after `window_s`.

    `floor` is also the largest burst; with 0 nothing is granted. Counts are integers (B times the denominator of
    `share`), so there is no rounding. O(1) amortised; keeps at most as many entries as retries per window.
    """

    __slots__ = ("_balance", "_cost", "_floor", "_gain", "_past", "_waiting", "_window_s")

    def __init__(self, share: float, floor: int, window_s: float) -> None:
        _check_budget(share, floor, window_s)
        self._gain, self._cost = exact_ratio(share)
        self._floor = floor * self._cost
        self._window_s = window_s
        self._balance = 0
        self._waiting = 0
        # Former balances, each with the time at which it ended; oldest first, decreasing, so the first is the maximum.
        self._past: deque[tuple[float, int]] = deque()

    @property
    def waiting(self) -> int:
        """Number of retries granted and neither sent nor given back; 0 when nothing is in flight."""
        return self._waiting

    def request_arrived(self, now_s: float) -> None:
        """Count a client's request; once each, never for its retries (envoyproxy/envoy-mobile#811)."""
        self._change(self._gain, now_s)

    def try_take(self, now_s: float) -> bool:
        """Grant one retry if the budget allows it in addition to the waiting ones."""
        granted = self._room(now_s) >= self._cost
        self._waiting += granted
        return granted

    def sent(self, now_s: float) -> None:
        """A granted retry is sent now: it counts in every window that contains `now_s`."""
        self._no_longer_waiting()
        self._change(-self._cost, now_s)

    def give_back(self, now_s: float) -> None:
        """A granted retry will not be sent: its client left, its deadline passed, or no backend was eligible."""
        self._no_longer_waiting()

    def _no_longer_waiting(self) -> None:
        if not self._waiting:
            raise ValueError("retry budget: no granted retry is waiting; sent or give_back once for each try_take")
        self._waiting -= 1

    def _change(self, amount: int, now_s: float) -> None:
        while self._past and self._past[-1][1] <= self._balance:
            self._past.pop()
        self._past.append((now_s, self._balance))
        self._balance += amount
        self._forget(now_s)

    def _forget(self, now_s: float) -> None:
        # An entry exactly `window_s` old still counts, so the bound holds for windows that include both ends.
        while self._past and self._past[0][0] < now_s - self._window_s:
            self._past.popleft()

    def _room(self, now_s: float) -> int:
        self._forget(now_s)
        highest = max(self._balance, self._past[0][1]) if self._past else self._balance
        return self._floor + self._balance - highest - self._waiting * self._cost
