"""The members of the reference balancer: who may get what, and what is known of each.

Everything about a backend that leaves is forgotten, so that one that returns starts clean; only what is in flight there
is counted to its end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from random import Random

from harness.balancer.health.breaker import SAYS_NOTHING, CircuitBreaker, Settled, State, Ticket
from harness.balancer.health.draining import Draining
from harness.balancer.health.ejection import PassiveEjection
from harness.balancer.health.health_score import HealthScore
from harness.balancer.health.readiness import PLAIN, Readiness
from harness.balancer.health.slow_start import SlowStart
from harness.balancer.picking.bounded_loads import BoundedLoads
from harness.balancer.picking.in_flight_total import InFlightTotal
from harness.balancer.picking.load_table import LoadTable
from harness.balancer.picking.policies import Signals, make
from harness.balancer.picking.ring import HashRing
from harness.balancer.picking.session_affinity import SessionAffinity
from harness.balancer.picking.weight_quantiser import WeightQuantiser
from harness.balancer.settings import CheckSettings, Settings
from harness.gateway.protocol import Action, Backend, MemberReport, Request, SendHealthCheck
from harness.scenario.fast_dataclass import fast_dataclass
from harness.scenario.model import Kind

INFERENCE, OK, FAILED = Kind.INFERENCE, Settled.OK, Settled.FAILED
"""Looked up once: to ask an enum for its member takes longer than to compare with it."""

LEVELS_EVERY_S = 0.1
"""How often the ring follows the weights at most: each time some keys move."""


@fast_dataclass
class Sent:
    """What an attempt holds of its backend until it ends. `stay` numbers the backend's stay as a member."""

    backend: str
    stay: int
    load_ticket: int
    breaker: CircuitBreaker | None
    breaker_ticket: Ticket | None
    started_s: float


class Members:
    """Backends, by id. `eligible` consumes nothing, `pick` at most a turn; `begin` and `end` come in pairs."""

    def __init__(self, settings: Settings, generator: Random) -> None:
        self._settings = settings
        self._random = generator
        self._names: tuple[str, ...] = ()
        self._configured: dict[str, float] = {}
        self._stays: dict[str, int] = {}
        self._next_stay = 0
        self._ring = HashRing(settings.virtual_nodes)
        self._loads = LoadTable(settings.load)
        self._bound = None if settings.bounded_load is None else BoundedLoads(settings.bounded_load)
        self._breakers: dict[str, CircuitBreaker] = {}
        self._sessions = None if settings.sessions is None else SessionAffinity(settings.sessions)
        self._asked_s: dict[int, float] = {}
        self._draining = Draining(settings.drain_deadline_s)
        self._levels = WeightQuantiser()
        self._levels_due_s = math.inf  # when the ring next follows the weights; never where they do not change
        self._health = None if settings.health is None else HealthScore(settings.health)
        ramp, ejection = settings.slow_start, settings.ejection
        self._slow_start = None if ramp is None else SlowStart(ramp.window_s, ramp.minimum_share, ramp.aggression)
        self._ejection = (
            None if ejection is None else PassiveEjection(ejection.failures, ejection.open_s, ejection.cap_share)
        )
        self._readiness = None if settings.checks is None else _readiness(settings.checks, generator)
        self._open = InFlightTotal()
        """Who is eligible, as `_look` found; so no request has to look at all members."""
        self._candidates: list[str] | None = None  # those of them with weight; None: to be found anew
        self._weightless: tuple[str, ...] = ()  # members without a point on the ring
        self._returns: list[tuple[float, str]] = []  # heap of times at which to look again at those who are out
        self._back_s: dict[str, float] = {}  # the last such time of each
        self._now_s = 0.0
        signals = Signals(weight=self._weight_now, in_flight=self._loads.in_flight, load=self._load)
        self._policy = make(settings.update_policy or "weighted_random", generator, signals)

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight at any backend, those that left included."""
        return self._loads.total_in_flight == 0 and all(not item.tickets_out for item in self._breakers.values())

    @property
    def known(self) -> frozenset[str]:
        """All backends of which anything is remembered."""
        return self._loads.backends | frozenset(self._breakers) | frozenset(self._configured)

    @property
    def load(self) -> float:
        """Requests in flight for each member, on average."""
        return self._loads.total_in_flight / max(1, len(self._names))

    # --- membership ---------------------------------------------------------------------------------------

    def set_backends(self, backends: tuple[Backend, ...], now_s: float) -> tuple[list[Action], list[str]]:
        """Make these the members. What to do about health checks, and which of those that left are drained already."""
        old = set(self._names)
        self._names = tuple(backend.id for backend in backends)
        names = frozenset(self._names)
        self._configured = {backend.id: backend.weight for backend in backends}
        for name in self._names:
            if name not in old:
                self._next_stay += 1
                self._stays[name] = self._next_stay
        self._stays = {name: self._stays[name] for name in self._names}
        drained = [name for name in old - names if self._draining.start(name, self._loads.in_flight(name), now_s)]
        for name in names | frozenset(drained):
            self._draining.returned(name)
        if self._sessions is not None:
            for name in old - names:
                self._sessions.forget(name)
        self._loads.set_backends(names)
        self._breakers = {name: self._breakers[name] for name in self._names if name in self._breakers}
        if self._settings.breaker is not None:
            for name in self._names:
                self._breakers.setdefault(name, CircuitBreaker(self._settings.breaker, self._random))
        self._levels.keep_only(names)
        self._policy.keep_only(names)
        if self._health is not None:
            self._health.keep_only(names)
        if self._slow_start is not None:
            self._slow_start.set_backends(names, now_s)
        if self._ejection is not None:
            out = [name for name in names if self._ejection.ejected(name, now_s)]
            self._ejection.keep_only(names)
            for name in out:
                self._start_slowly(name, now_s)  # some may be back at once, as fewer members have fewer places
        self._lay_out_ring(now_s, always=True)
        actions = [] if self._readiness is None else self._readiness.set_backends(self._names, now_s)
        self._candidates = None
        self._back_s = {name: back_s for name, back_s in self._back_s.items() if name in names}
        for name in old | names:
            self._look(name, now_s)
        return actions, drained

    def expired(self, now_s: float) -> tuple[str, ...]:
        """Backends that left and whose time to finish is over."""
        return self._draining.expired(now_s)

    def next_drain_s(self) -> float | None:
        """When `expired` next has something to say."""
        return self._draining.next_s()

    # --- health checks ----------------------------------------------------------------------------------------

    def timer_fired(self, timer_id: int, now_s: float) -> list[Action]:
        """A health check is due."""
        actions = [] if self._readiness is None else self._readiness.timer_fired(timer_id, now_s)
        self._asked_s.update((action.check_id, now_s) for action in actions if isinstance(action, SendHealthCheck))
        return actions

    def checked(self, check_id: int, name: str, ok: bool, report: Backend | None, now_s: float) -> None:
        """Take a health check's result and the report that came with it."""
        asked_s = self._asked_s.pop(check_id, now_s)
        back = self._readiness is not None and self._checked(self._readiness, check_id, ok, report, now_s)
        if back:
            self._start_slowly(name, now_s)
        if back and self._sessions is not None:
            self._sessions.forget(name)  # its caches are cold
        if report is None or name not in self._configured:
            return
        self._loads.report(name, report.queue_depth, report.pending_tokens, report.running, asked_s)
        if self._health is not None:
            self._health.report(name, report.memory_total_mb, report.memory_used_mb, report.memory_evictable_mb, now_s)

    def _checked(self, readiness: Readiness, check_id: int, ok: bool, report: Backend | None, now_s: float) -> bool:
        rotation = readiness.rotation
        back = readiness.result(check_id, ok, report)
        if readiness.rotation is not rotation:
            for name in self._names:
                self._look(name, now_s)
        return back

    # --- who may get what ---------------------------------------------------------------------------------

    def breaker_state(self, name: str, now_s: float) -> State:
        """State of a backend's breaker; closed where there is none."""
        breaker = self._breakers.get(name)
        return "closed" if breaker is None else breaker.state(now_s)

    def condition(self, name: str, now_s: float) -> MemberReport | None:
        """What is known of a member, for people; None of anybody else."""
        if name not in self._configured:
            return None
        breaker = self._breakers.get(name)
        return MemberReport(
            ready=self.eligible(name, now_s),
            breaker=None if breaker is None else breaker.state(now_s),
            score=None if self._health is None else self._health.score(name, now_s),
        )

    def eligible(self, name: str, now_s: float) -> bool:
        """Whether a backend may get a request now. Consumes nothing."""
        if self._readiness is not None and not self._readiness.ready(name):
            return False
        if self._ejection is not None and self._ejection.ejected(name, now_s):
            return False
        breaker = self._breakers.get(name)
        return breaker is None or breaker.allows(now_s)

    def pick(self, request: Request, tried: frozenset[str], now_s: float) -> str | None:
        """The backend for an attempt: one that was not tried yet, if any is eligible. None if there is none.

        O(log n) for what goes to the ring and for updates by `two_choices` and `ewma`, as long as nobody comes or goes;
        all members are looked at every `LEVELS_EVERY_S` alone.
        """
        self._now_s = now_s
        self._catch_up(now_s)
        if now_s >= self._levels_due_s:
            self._lay_out_ring(now_s)
        if request.kind is INFERENCE:
            if request.session and self._sessions is not None and not tried:
                return self._of_session(self._sessions, request.session, now_s)
            if key := request.session or request.model:
                return self._on_ring(key, tried, now_s)
        candidates = self._all_open()
        fresh = [name for name in candidates if name not in tried] if tried else candidates
        return self._policy.pick(fresh or candidates, now_s)

    def _on_ring(self, key: str, tried: frozenset[str], now_s: float) -> str | None:
        if self._bound is None:
            owner = self._ring.owner(key, lambda name: name not in tried and self.eligible(name, now_s))
        else:
            open_to_it, total = len(self._open), self._open.total + 1
            for name in self._weightless:
                if name in self._open.backends:
                    open_to_it, total = open_to_it - 1, total - self._loads.in_flight(name)
            owner = self._bound.choose(self._in_order(key, tried, now_s), self._loads.in_flight, total, open_to_it)
        if owner is None and tried:
            return self._on_ring(key, frozenset(), now_s)
        return owner

    def _of_session(self, sessions: SessionAffinity, session: str, now_s: float) -> str | None:
        return sessions.choose(
            session,
            self._ring.nearest(session, len(self._names)),
            lambda name: self.eligible(name, now_s),
            self._loads.in_flight,
            self._open.total / max(1, len(self._open)),
            now_s,
        )

    def _in_order(self, key: str, tried: frozenset[str], now_s: float) -> Iterator[str]:
        for name in self._ring.nearest(key, len(self._names)):
            if name not in tried and self.eligible(name, now_s):
                yield name

    def _all_open(self) -> Sequence[str]:
        """All eligible members with weight, in the order of the configuration; found anew when one comes or goes."""
        if self._candidates is None:
            self._candidates = [name for name in self._names if self._configured[name] and name in self._open.backends]
        return self._candidates

    def _catch_up(self, now_s: float) -> None:
        """Look again at those whose time is over."""
        while self._returns and self._returns[0][0] <= now_s:
            self._look(heappop(self._returns)[1], now_s)

    def _look(self, name: str, now_s: float) -> None:
        """Count `name` among the eligible or not, after whatever may have changed that."""
        in_flight = self._loads.in_flight(name)
        if name in self._configured and self.eligible(name, now_s):
            if self._open.put(name, in_flight):
                self._candidates = None
            return
        if self._open.drop(name, in_flight):
            self._candidates = None
        breaker = self._breakers.get(name)
        open_until_s = None if breaker is None else breaker.open_until_s(now_s)
        ejected_until_s = None if self._ejection is None else self._ejection.until_s(name, now_s)
        back_s = max(open_until_s or 0.0, ejected_until_s or 0.0)
        if back_s > now_s and self._back_s.get(name) != back_s:
            self._back_s[name] = back_s
            heappush(self._returns, (back_s, name))

    # --- attempts -----------------------------------------------------------------------------------------

    def begin(self, name: str, tokens: int, now_s: float) -> Sent:
        """An attempt leaves for a backend."""
        breaker = self._breakers.get(name)
        ticket = None if breaker is None else breaker.acquire(now_s)
        sent = Sent(name, self._stays[name], self._loads.sent(name, tokens, now_s), breaker, ticket, now_s)
        self._open.count(name, 1)
        if ticket is not None and ticket.probe:
            self._look(name, now_s)  # it may have been the last that the breaker lets through
        if self._health is not None:
            self._health.connections(name, self._loads.in_flight(name))
        return sent

    def end(self, sent: Sent, settled: Settled, now_s: float) -> bool:
        """An attempt is over. True if it was the last one of a backend that drains."""
        name = sent.backend
        latency_s = now_s - sent.started_s
        self._loads.ended(sent.load_ticket)
        self._open.count(name, -1)
        breaker = sent.breaker
        closes = False
        if breaker is not None and sent.breaker_ticket is not None:
            was_closed = breaker.closed
            breaker.settle(sent.breaker_ticket, settled, latency_s, now_s)
            closes = breaker.closed and not was_closed
        if self._stays.get(name) == sent.stay:  # a result from before a backend left says nothing of its new stay
            if self._health is not None:
                self._health.connections(name, self._loads.in_flight(name))
            self._learn(name, settled, latency_s, now_s)
            if closes:
                self._start_slowly(name, now_s)
            if settled is FAILED or (breaker is not None and not (breaker.closed and name in self._open.backends)):
                self._look(name, now_s)
        drained = self._draining.ended(name)
        if drained and name not in self._configured:
            self._draining.returned(name)  # nothing is left of it to remember
        return drained

    def _learn(self, name: str, settled: Settled, latency_s: float, now_s: float) -> None:
        if settled in SAYS_NOTHING:
            return
        ok = settled is OK
        self._policy.settle(name, latency_s, ok)
        if self._ejection is not None:
            self._ejection.settle(name, ok, now_s)
            if not ok and self._ejection.ejected(name, now_s):
                self._start_slowly(name, now_s)
        if self._health is not None:
            self._health.settle(name, ok, latency_s, now_s)

    # --- weights ------------------------------------------------------------------------------------------

    def _weight(self, name: str, now_s: float) -> float:
        """Configured weight × health score × slow start. Who may get nothing at all is `eligible`'s business."""
        weight = self._configured.get(name, 0.0)
        if self._health is not None and weight:
            weight *= self._health.score(name, now_s)
        return weight if self._slow_start is None else weight * self._slow_start.factor(name, now_s)

    def _start_slowly(self, name: str, now_s: float) -> None:
        """Let the weight of `name` grow from when it is in rotation again: now, or at the end of its ejection.

        Not from a breaker's half-open time on: probes are few by themselves, so the ramp begins when it closes.
        """
        if self._slow_start is not None:
            until_s = None if self._ejection is None else self._ejection.until_s(name, now_s)
            self._slow_start.restart(name, now_s if until_s is None else until_s)

    def _weight_now(self, name: str) -> float:
        return self._weight(name, self._now_s)

    def _load(self, name: str, now_s: float) -> float:
        return self._loads.composite(name, self._weight(name, now_s), now_s)

    def _lay_out_ring(self, now_s: float, always: bool = False) -> None:
        """Let the ring follow the weights, in tenths."""
        if self._health is not None or self._slow_start is not None:
            self._levels_due_s = now_s + LEVELS_EVERY_S
        changed = [self._levels.update(name, self._weight(name, now_s)) for name in self._names]
        if always or any(changed):
            levels = {name: self._levels.level(name) for name in self._names}
            self._ring.set_weights(levels)
            self._weightless = tuple(name for name, level in levels.items() if not level)


def _readiness(checks: CheckSettings, generator: Random) -> Readiness:
    rotation = checks.rotation or PLAIN
    return Readiness(
        checks.interval_s, checks.timeout_s, checks.unhealthy, checks.healthy, rotation, generator, checks.expected
    )
