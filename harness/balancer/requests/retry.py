"""Retries: which failures may be tried again, after what wait, and how many of them in any window of time.

The rules are functions of what is known about the last attempt; the budget is a ledger that is exact in every window.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random

from harness.balancer.health.windows import exact_ratio
from harness.scenario.model import Kind


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """What is retried and how much.

    `attempts` per request, the first one included. `statuses` are those that are retried; `on_refused`, `on_reset` and
    `on_timeout` say the same of broken attempts (after a timeout the work may still be running). In any
    `budget_window_s` at most `budget_share` of its fresh requests plus `budget_floor` retries. Waits are drawn below
    `base_s`, doubled for each further attempt up to `max_backoff_s`. `deadline_s` spans all attempts and waits. Bodies
    above `replay_limit_bytes` are not kept for a second attempt. ValueError for numbers that make no sense.
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
    deadline_s: float = 10.0
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
    """Whether a request may be tried again after its attempt number `attempt` (from 1) ended badly. Pure.

    `error`: None, refused, reset, timeout or aborted (never retried); with None the `status` counts (None or 0: there
    was none). `sent`: whether any byte of the request left for the backend; an update that left may have been
    carried out, so it is tried again only if not (rancher/rancher#35424). `first_byte`: whether the answer was
    committed, so that its client may have seen some of it. `elapsed_s`: since the request arrived.
    """
    if attempt >= settings.attempts or elapsed_s >= settings.deadline_s:
        return False
    if first_byte or payload_bytes > settings.replay_limit_bytes:
        return False
    # Whoever answered has read something, whatever the shell knows of bytes that left.
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

    A `retry_after_s` that the backend asked for comes on top, so that it is a minimum and those who were told the same
    do not return at the same instant. Source: "full jitter", Brooker, "Exponential Backoff And Jitter", AWS 2015;
    RFC 9110 section 10.2.3.
    """
    # The exponent is bounded only for the sake of floats: far beyond it the cap holds anyway.
    longest_s = min(settings.max_backoff_s, settings.base_s * 2.0 ** min(attempt - 1, 500))
    return max(retry_after_s or 0.0, 0.0) + generator.uniform(0.0, longest_s)


def remaining_s(settings: RetrySettings, elapsed_s: float) -> float:
    """Seconds left of a request's deadline; the longest that its next attempt may take (line/armeria#627)."""
    return max(settings.deadline_s - elapsed_s, 0.0)


def fits_deadline(settings: RetrySettings, elapsed_s: float, wait_s: float) -> bool:
    """Whether there is anything left of the deadline after waiting for `wait_s`."""
    return wait_s < remaining_s(settings, elapsed_s)


class RetryBudget:
    """At most `share` of the fresh requests plus `floor` retries in any window of `window_s`, exactly.

    A retry that was granted by `try_take` waits in backoff until exactly one of `sent` (it leaves for a backend now)
    or `give_back` (it never will). For every window (a, now] no longer than `window_s`:

        waiting now + sent in (a, now]  <=  share x fresh in (a, now] + floor

    so neither those granted nor those sent ever exceed the budget, and a crowd that waits in backoff has used it up
    already (envoyproxy/envoy#30205). Counting over the last `window_s` when a retry is granted would not do: ten
    retries granted on the strength of a hundred requests just before the window's edge lie, a moment later, in a window
    without any. So the balance B = share x fresh - sent is kept, with its highest value over the window: what may be
    spent now is floor + B - highest B, a token bucket of size `floor` whose debts are forgotten after `window_s`.

    `floor` is also the largest burst, and with 0 nothing is granted. Counts are whole numbers (B times the denominator
    of `share`), so there is no rounding. O(1) amortised; keeps at most as many entries as retries per window.
    """

    __slots__ = ("_balance", "_cost", "_floor", "_gain", "_past", "_waiting", "_window_s")

    def __init__(self, share: float, floor: int, window_s: float) -> None:
        _check_budget(share, floor, window_s)
        self._gain, self._cost = exact_ratio(share)
        self._floor = floor * self._cost
        self._window_s = window_s
        self._balance = 0
        self._waiting = 0
        # Former balances with the time until which each held, oldest first, falling: the first is the highest.
        self._past: deque[tuple[float, int]] = deque()

    @property
    def waiting(self) -> int:
        """Retries granted and neither sent nor given back; 0 when nothing is in flight."""
        return self._waiting

    def fresh(self, now_s: float) -> None:
        """A client's request arrived; once for each, never for a retry of it (envoyproxy/envoy-mobile#811)."""
        self._change(self._gain, now_s)

    def try_take(self, now_s: float) -> bool:
        """Grant one retry if the budget has room for it beside all that are waiting."""
        granted = self._room(now_s) >= self._cost
        self._waiting += granted
        return granted

    def sent(self, now_s: float) -> None:
        """A granted retry leaves for a backend now: from here on it counts in the windows that hold `now_s`."""
        self._no_longer_waiting()
        self._change(-self._cost, now_s)

    def give_back(self, now_s: float) -> None:
        """A granted retry will never be sent: its client left, its deadline passed, or no backend was to be had."""
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
        # At exactly `window_s` it still counts, so that windows hold with both of their ends.
        while self._past and self._past[0][0] < now_s - self._window_s:
            self._past.popleft()

    def _room(self, now_s: float) -> int:
        self._forget(now_s)
        highest = max(self._balance, self._past[0][1]) if self._past else self._balance
        return self._floor + self._balance - highest - self._waiting * self._cost
