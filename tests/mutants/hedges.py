"""Mutants whose hedges are wrong in one way each: the reference with nothing on but hedging."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

from harness.balancer.core.exchange import Attempt, Exchange
from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.health.breaker import BreakerSettings, State
from harness.balancer.members import Members
from harness.balancer.requests.hedging import Hedger, HedgeSettings
from harness.balancer.settings import Settings
from harness.claims.features import Backoff, Breaker, Feature, Hedge
from harness.gateway.protocol import Action, Cancel, ClientGone, Event, Request, RequestArrived, Send
from harness.scenario.model import Kind

GOOD = HedgeSettings(window=200, minimum=40, load_threshold=32.0)
CLAIMED = Hedge(GOOD.quantile, GOOD.share, GOOD.window, GOOD.minimum, GOOD.burst, GOOD.load_threshold)


TRIPS = BreakerSettings(failures=5, error_rate=None, slow_p99_s=None, open_s=0.5, probes=1, successes=2)
BREAKER = Breaker(failures=5, open_s=0.5, probes=1, successes=2, backoff=Backoff(TRIPS.multiplier, TRIPS.max_open_s))


class Hedging(ReferenceGateway):
    """No fault."""

    claims: tuple[Feature, ...] = (CLAIMED,)
    hedge = GOOD
    hedger: type[Hedger] = Hedger

    def __init__(self, random: Random) -> None:
        super().__init__(self.all_settings(), random)
        self._hedger = self.hedger(self.hedge)

    def all_settings(self) -> Settings:
        """Everything off but hedges."""
        return Settings(bounded_load=None, checks=None, breaker=None, health=None, retry=None, hedge=self.hedge)


# --- where ------------------------------------------------------------------------------------------------


class SameBackendAgain(Hedging):
    """Asks for the same choice again and sends the hedge there, to the backend that is slow already."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._members = _ForgetsTried(self.all_settings(), random)

    def _hedge_due(self, exchange: Exchange, now_s: float) -> list[Action]:
        exchange.tried = frozenset()
        return super()._hedge_due(exchange, now_s)


class NeverHedges(Hedging):
    """Asks for the same choice again, sees that it is the same, and sends nothing."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._members = _ForgetsTried(self.all_settings(), random)


class _ForgetsTried(Members):
    def pick(self, request: Request, tried: frozenset[str], now_s: float) -> str | None:
        return super().pick(request, frozenset(), now_s)


# --- when -------------------------------------------------------------------------------------------------


class HedgesAtTheMedian(Hedging):
    """Takes half of all requests for slow."""

    hedge = replace(GOOD, quantile=0.5)


class KnowsTooFew(Hedging):
    """Derives a delay from half as many latencies as it claims to need."""

    hedge = replace(GOOD, minimum=20)


class _OneRankLower(Hedger):
    def delay_s(self, model: str) -> float | None:
        window = self._windows.get(model)
        if window is None or super().delay_s(model) is None:
            return None
        latencies_s = sorted(latency_s for _, latency_s in window._entries)
        return latencies_s[math.ceil(self._settings.quantile * len(latencies_s)) - 1]


class CommonRank(Hedging):
    """Takes the ceil(.95 W)th of W latencies."""

    hedger = _OneRankLower


class WinnersOwnTime(Hedging):
    """Records how long the winning attempt took, without the wait before it."""

    def _commit(self, exchange: Exchange, attempt: Attempt, now_s: float) -> list[Action]:
        arrived_s, exchange.arrived_s = exchange.arrived_s, attempt.sent.started_s
        actions = super()._commit(exchange, attempt, now_s)
        exchange.arrived_s = arrived_s
        return actions


# --- who wins, and what becomes of the others ---------------------------------------------------------------


class WaitsForTheFirst(Hedging):
    """Keeps a hedge's answer in hand for as long as the first attempt may still bring one."""

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

    def _head(self, attempt_id: int, status: int, retry_after_s: float | None, now_s: float) -> list[Action]:
        attempt = self._attempts.get(attempt_id)
        exchange = None if attempt is None else self._exchanges.get(attempt.request_id)
        if attempt is None or exchange is None or exchange.answered or attempt_id not in exchange.attempts:
            return []
        attempt.status = status
        return self._commit(exchange, attempt, now_s)


class LosersRunOn(Hedging):
    """Forgets a loser in place of cancelling it."""

    def _commit(self, exchange: Exchange, attempt: Attempt, now_s: float) -> list[Action]:
        return [action for action in super()._commit(exchange, attempt, now_s) if not isinstance(action, Cancel)]


# --- how many, and when never -------------------------------------------------------------------------------


class NoBudget(Hedging):
    """Hedges whatever is slow."""

    hedge = replace(GOOD, share=1.0)


class SavesUpForEver(Hedging):
    """A bucket without a bound: what quiet hours did not spend is spent at once when everything is slow."""

    hedge = replace(GOOD, burst=10**6)


class HedgesUpdates(Hedging):
    """Takes an update for an inference."""

    def handle(self, event: Event, now_s: float) -> list[Action]:
        if isinstance(event, RequestArrived):
            event = RequestArrived(replace(event.request, kind=Kind.INFERENCE))
        return super().handle(event, now_s)


class DeafToLeaving(Hedging):
    """Goes on with a request, its timer included, when its client has left."""

    def handle(self, event: Event, now_s: float) -> list[Action]:
        return [] if isinstance(event, ClientGone) else super().handle(event, now_s)


class HedgesAnswered(Hedging):
    """Leaves a request's timer on when it is answered, and then sends a hedge for nobody."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._over: dict[int, Exchange] = {}

    def _commit(self, exchange: Exchange, attempt: Attempt, now_s: float) -> list[Action]:
        if attempt.status < 400 and exchange.request.kind is Kind.INFERENCE and "hedge" in exchange.timers:
            self._over[exchange.timers.pop("hedge")] = exchange
        return super()._commit(exchange, attempt, now_s)

    def _timer(self, timer_id: int, now_s: float) -> list[Action]:
        exchange = self._over.pop(timer_id, None)
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
    """Has no threshold of load."""

    hedge = replace(GOOD, load_threshold=math.inf)


class HedgesProbes(Hedging):
    """Hedges whatever is slow, in doubt or not. It has breakers, for once."""

    class _Trusting(Hedger):
        def allowed(self, *, primary_breaker: State, other_breaker: State, **rest: Any) -> bool:
            return super().allowed(primary_breaker="closed", other_breaker="closed", **rest)

    claims = (CLAIMED, BREAKER)
    hedger = _Trusting

    def all_settings(self) -> Settings:
        return replace(super().all_settings(), breaker=TRIPS)
