"""Mutants of retries, each with one fault. Only the budget mutants retry 503, so outages do not affect the others."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from random import Random
from typing import Any

from harness.balancer.core.exchange import Attempt, Exchange
from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.core.settings_to_claims import claim_of
from harness.balancer.members import Members
from harness.balancer.requests import retry
from harness.balancer.requests.retry import RetrySettings
from harness.balancer.settings import Settings
from harness.claims.features import Retry
from harness.gateway.protocol import Action, AttemptEnded, Event, Reply, RequestArrived, Send
from harness.scenario.model import Kind
from tests.mutants.nothing import NOTHING_ON

GOOD = RetrySettings(statuses=frozenset({502, 504}), budget_window_s=1.0, deadline_s=1.5)
STORMY = replace(GOOD, statuses=frozenset({502, 503, 504}))


def claimed(settings: RetrySettings) -> tuple[Retry, ...]:
    """Claims of a balancer with these settings."""
    return (claim_of(Retry, settings),)


class Retrying(ReferenceGateway):
    """No fault: the reference with retries only."""

    claims: tuple[Retry, ...] = claimed(GOOD)
    settings = GOOD
    attempt_timeout_s = 1.5

    def __init__(self, random: Random) -> None:
        super().__init__(self.all_settings(), random)

    def all_settings(self) -> Settings:
        """All features off except retries."""
        return replace(NOTHING_ON, attempt_timeout_s=self.attempt_timeout_s, retry=self.settings)


class RetryingOutages(Retrying):
    """No fault: the same, with 503 retried too."""

    claims = claimed(STORMY)
    settings = STORMY


class TriesOnceMore(Retrying):
    """Uses the number of attempts as the number of retries."""

    kills = ("retry.attempts.at-most",)
    settings = replace(GOOD, attempts=GOOD.attempts + 1)


class TriesErrorsAgain(Retrying):
    """Retries every error, client errors included."""

    kills = ("retry.status.only-claimed",)
    settings = replace(GOOD, statuses=frozenset(range(400, 600)))


class SameBackendAgain(Retrying):
    """Does not exclude backends already tried, so that affinity leads back to the backend that failed."""

    kills = ("retry.backend.another",)

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._members = _ForgetsTried(self.all_settings(), random)


class _ForgetsTried(Members):
    def pick(self, request: Any, tried: frozenset[str], now_s: float) -> str | None:
        return super().pick(request, frozenset(), now_s)


class RepeatsUpdates(Retrying):
    """Retries an update like any other request."""

    kills = ("retry.update.at-most-once",)

    def _retryable(self, exchange: Exchange, attempt: Attempt, error: str | None, now_s: float) -> bool:
        disguised = replace(exchange.request, kind=Kind.INFERENCE)
        return super()._retryable(replace(exchange, request=disguised), attempt, error, now_s)


class RepeatsWhatTimedOut(Retrying):
    """Retries attempts that reached its own timeout, although the backend may still be working on them."""

    kills = ("retry.timeout.only-claimed",)
    settings = replace(GOOD, on_timeout=True)
    attempt_timeout_s = 0.5


class BeginsAgain(Retrying):
    """Sends a request again whose answer broke off after it was passed on."""

    kills = ("retry.first-byte.never",)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        attempt = self._attempts.get(event.attempt_id) if isinstance(event, AttemptEnded) else None
        exchange = None if attempt is None else self._exchanges.get(attempt.request_id)
        actions = super().handle(event, now_s)
        if not isinstance(event, AttemptEnded) or event.error != "reset" or attempt is None or exchange is None:
            return actions
        if not attempt.committed or exchange.request.kind is Kind.UPDATE:
            return actions
        self._next_attempt += 1
        backend = attempt.sent.backend
        again = Attempt(self._next_attempt, attempt.request_id, self._members.begin(backend, 0, now_s), committed=True)
        self._attempts[again.id] = again
        return [*actions, Send(again.id, again.request_id, backend, 0.2)]


class LimitForEachAttempt(Retrying):
    """Gives each attempt the whole deadline instead of the time that is left."""

    kills = ("retry.deadline.holds",)
    settings = replace(GOOD, deadline_s=30.0)


class IgnoresRetryAfter(Retrying):
    """Waits for its own backoff only."""

    kills = ("retry.retry-after.honoured",)

    def _retry_later(self, exchange: Exchange, attempt: Attempt, now_s: float) -> list[Action]:
        attempt.retry_after_s = None
        return super()._retry_later(exchange, attempt, now_s)


class NoBudget(RetryingOutages):
    """Retries every failure."""

    kills = ("retry.budget.every-window", "retry.outage.full-size")
    settings = replace(STORMY, budget_share=1.0, budget_floor=100_000)


class PutsEverythingOff(RetryingOutages):
    """No budget either, and backoffs longer than the outage: failed requests return after it."""

    kills = ("retry.budget.every-window", "retry.outage.recovers", "retry.outage.full-size")
    claims = tuple(replace(claim, deadline_s=None) for claim in claimed(STORMY))
    settings = replace(STORMY, budget_share=1.0, budget_floor=100_000, base_s=4.0, max_backoff_s=8.0, deadline_s=60.0)
    attempt_timeout_s = 60.0


class ForgetsThoseThatWait(RetryingOutages):
    """A budget that counts a retry when it is sent: any number may be granted while others wait in backoff."""

    kills = ("retry.budget.every-window", "retry.outage.full-size")
    settings = replace(STORMY, base_s=0.25)

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._budget = _CountsSentRetries(STORMY.budget_share, STORMY.budget_floor, STORMY.budget_window_s)


class _CountsSentRetries(retry.RetryBudget):
    __slots__ = ("_arrived_s", "_sent_s", "_share", "_size", "_span_s")

    def __init__(self, share: float, floor: int, window_s: float) -> None:
        super().__init__(share, floor, window_s)
        self._share, self._size, self._span_s = share, floor, window_s
        self._arrived_s: deque[float] = deque()
        self._sent_s: deque[float] = deque()

    def request_arrived(self, now_s: float) -> None:
        self._arrived_s.append(now_s)

    def try_take(self, now_s: float) -> bool:
        for times_s in (self._arrived_s, self._sent_s):
            while times_s and times_s[0] < now_s - self._span_s:
                times_s.popleft()
        return len(self._sent_s) < self._share * len(self._arrived_s) + self._size

    def sent(self, now_s: float) -> None:
        self._sent_s.append(now_s)

    def give_back(self, now_s: float) -> None:
        pass


class GivesUpFreshRequests(RetryingOutages):
    """Treats an exhausted budget as an outage of its own and rejects all requests for half a second."""

    kills = ("retry.outage.answers", "retry.outage.full-size")
    claims = tuple(replace(claim, budget_share=None) for claim in claimed(STORMY))
    _closed_until_s = 0.0

    def handle(self, event: Event, now_s: float) -> list[Action]:
        if isinstance(event, RequestArrived) and now_s < self._closed_until_s:
            return [Reply(event.request.id, 503, "too many failures")]
        return super().handle(event, now_s)

    def _granted(self, now_s: float) -> bool:
        granted = super()._granted(now_s)
        if not granted:
            self._closed_until_s = now_s + 0.5
        return granted
