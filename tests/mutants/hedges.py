"""Mutants of hedging, each with one fault: the reference with hedging only."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

from harness.balancer.core.exchange import Attempt, Exchange
from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.core.settings_to_claims import claim_of
from harness.balancer.health.breaker import BreakerSettings, State
from harness.balancer.members import Members
from harness.balancer.requests.hedging import Hedger, HedgeSettings
from harness.balancer.settings import Settings
from harness.claims.features import Backoff, Breaker, Feature, Hedge
from harness.gateway.protocol import Action, Cancel, ClientGone, Event, Request, RequestArrived, Send
from harness.scenario.model import Kind
from tests.mutants.nothing import NOTHING_ON

GOOD = HedgeSettings(window=200, minimum=40)
CLAIMED = claim_of(Hedge, GOOD)

TRIPS = BreakerSettings(failures=5, error_rate=None, open_s=0.5, backoff=Backoff(2.0, jitter=0.2))
BREAKER = replace(claim_of(Breaker, TRIPS), backoff=Backoff(2.0))


class Hedging(ReferenceGateway):
    """No fault."""

    claims: tuple[Feature, ...] = (CLAIMED,)
    hedge = GOOD
    hedger: type[Hedger] = Hedger

    def __init__(self, random: Random) -> None:
        super().__init__(self.all_settings(), random)
        self._hedger = self.hedger(self.hedge)

    def all_settings(self) -> Settings:
        """All features off except hedging."""
        return replace(NOTHING_ON, hedge=self.hedge)


# --- choice of backend ------------------------------------------------------------------------------------


class SameBackendAgain(Hedging):
    """Repeats the pick and sends the hedge to the backend that is already slow."""

    kills = ("hedge.backend.another",)
    undetermined = ("hedge.error.goes-on",)

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._members = _ForgetsTried(self.all_settings(), random)

    def _hedge_due(self, exchange: Exchange, now_s: float) -> list[Action]:
        exchange.tried = frozenset()
        return super()._hedge_due(exchange, now_s)


class NeverHedges(Hedging):
    """Repeats the pick, gets the same backend, and sends nothing."""

    kills = ("hedge.tail.cut",)
    vacuous = (
        "hedge.backend.another",
        "hedge.delay.not-before",
        "hedge.error.goes-on",
        "hedge.first-good.wins",
        "hedge.loser.cancelled",
        "hedge.overhead.within-share",
    )

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._members = _ForgetsTried(self.all_settings(), random)


class _ForgetsTried(Members):
    def pick(self, request: Request, tried: frozenset[str], now_s: float) -> str | None:
        return super().pick(request, frozenset(), now_s)


# --- delay ------------------------------------------------------------------------------------------------


class HedgesAtTheMedian(Hedging):
    """Treats half of all requests as slow."""

    kills = ("hedge.delay.not-before", "hedge.tail.cut")
    hedge = replace(GOOD, quantile=0.5)


class KnowsTooFew(Hedging):
    """Derives a delay from half as many latencies as claimed."""

    kills = ("hedge.delay.not-before",)
    hedge = replace(GOOD, minimum=20)


class _OneRankLower(Hedger):
    def delay_s(self, model: str) -> float | None:
        window = self._windows.get(model)
        if window is None or super().delay_s(model) is None:
            return None
        latencies_s = sorted(latency_s for _, latency_s in window._entries)
        return latencies_s[math.ceil(self._settings.quantile * len(latencies_s)) - 1]


class CommonRank(Hedging):
    """Takes the latency of rank ceil(.95 W) of W."""

    kills = ("hedge.delay.not-before",)
    hedger = _OneRankLower


class WinnersOwnTime(Hedging):
    """Records the winning attempt's latency, without the wait before it."""

    kills = ("hedge.delay.not-before",)

    def _commit(self, exchange: Exchange, attempt: Attempt, now_s: float) -> list[Action]:
        arrived_s, exchange.arrived_s = exchange.arrived_s, attempt.sent.started_s
        actions = super()._commit(exchange, attempt, now_s)
        exchange.arrived_s = arrived_s
        return actions


# --- winner and losers --------------------------------------------------------------------------------------


class WaitsForTheFirst(Hedging):
    """Holds a hedge's answer back while the first attempt may still bring one."""

    kills = ("hedge.first-good.wins", "hedge.tail.cut")

    def _waits(self, attempt_id: int) -> bool:
        attempt = self._attempts.get(attempt_id)
        exchange = None if attempt is None else self._exchanges.get(attempt.request_id)
        return attempt is not None and attempt.hedge and exchange is not None and len(exchange.attempts) > 1

    def _head(self, attempt_id: int, status: int, retry_after_s: float | None, now_s: float) -> list[Action]:
        return [] if self._waits(attempt_id) else super()._head(attempt_id, status, retry_after_s, now_s)

    def _first_byte(self, attempt_id: int, now_s: float) -> list[Action]:
        return [] if self._waits(attempt_id) else super()._first_byte(attempt_id, now_s)


class FirstAnswerWins(Hedging):
    """Ends the race with the first answer, good or not."""

    kills = ("hedge.error.goes-on",)

    def _head(self, attempt_id: int, status: int, retry_after_s: float | None, now_s: float) -> list[Action]:
        attempt = self._attempts.get(attempt_id)
        exchange = None if attempt is None else self._exchanges.get(attempt.request_id)
        if attempt is None or exchange is None or exchange.answered or attempt_id not in exchange.attempts:
            return []
        attempt.status = status
        return self._commit(exchange, attempt, now_s)


class LosersRunOn(Hedging):
    """Does not cancel a losing attempt."""

    kills = ("hedge.loser.cancelled",)

    def _commit(self, exchange: Exchange, attempt: Attempt, now_s: float) -> list[Action]:
        return [action for action in super()._commit(exchange, attempt, now_s) if not isinstance(action, Cancel)]


# --- budget and exclusions ----------------------------------------------------------------------------------


class NoBudget(Hedging):
    """Hedges every slow request."""

    kills = ("hedge.overhead.within-share",)
    hedge = replace(GOOD, share=1.0)


class SavesUpForEver(Hedging):
    """A bucket without a bound: the budget left over from quiet hours is spent at once when everything is slow."""

    kills = ("hedge.overhead.within-share",)
    hedge = replace(GOOD, burst=10**6)


class HedgesUpdates(Hedging):
    """Treats an update as inference."""

    kills = ("hedge.update.never",)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        if isinstance(event, RequestArrived):
            event = RequestArrived(replace(event.request, kind=Kind.INFERENCE))
        return super().handle(event, now_s)


class DeafToLeaving(Hedging):
    """Continues a request, including its timer, after its client has left."""

    kills = ("hedge.settled.never",)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        return [] if isinstance(event, ClientGone) else super().handle(event, now_s)


class HedgesAnswered(Hedging):
    """Keeps the timer of an answered request and then sends a useless hedge."""

    kills = ("hedge.settled.never", "hedge.loser.cancelled", "hedge.tail.cut")

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._answered: dict[int, Exchange] = {}

    def _commit(self, exchange: Exchange, attempt: Attempt, now_s: float) -> list[Action]:
        if attempt.status < 400 and exchange.request.kind is Kind.INFERENCE and "hedge" in exchange.timers:
            self._answered[exchange.timers.pop("hedge")] = exchange
        return super()._commit(exchange, attempt, now_s)

    def _timer(self, timer_id: int, now_s: float) -> list[Action]:
        exchange = self._answered.pop(timer_id, None)
        if exchange is None:
            return super()._timer(timer_id, now_s)
        backend = self._members.pick(exchange.request, exchange.tried, now_s)
        if backend is None or self._hedger is None or not self._hedger.try_take():
            return []
        self._next_attempt += 1
        sent = self._members.begin(backend, 0, now_s)
        self._attempts[self._next_attempt] = Attempt(self._next_attempt, exchange.request.id, sent, committed=True)
        return [Send(self._next_attempt, exchange.request.id, backend, 0.2)]


class HedgesUnderOverload(Hedging):
    """Has no load threshold."""

    kills = ("hedge.overload.off",)
    hedge = replace(GOOD, load_threshold=math.inf)


class HedgesProbes(Hedging):
    """Hedges every slow request, including probes. Has breakers in addition to hedging."""

    kills = ("hedge.breaker.off",)

    class _Trusting(Hedger):
        def allowed(self, *, primary_breaker: State, other_breaker: State, **rest: Any) -> bool:
            return super().allowed(primary_breaker="closed", other_breaker="closed", **rest)

    claims = (CLAIMED, BREAKER)
    hedger = _Trusting

    def all_settings(self) -> Settings:
        return replace(super().all_settings(), breaker=TRIPS)
