"""The members of the reference balancer: who may get what, and what is known of each.

Everything about a backend that leaves is forgotten, so that one that returns starts clean; only what is in flight there
is counted to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from harness.balancer.bounded_loads import BoundedLoads
from harness.balancer.breaker import CircuitBreaker, Settled, State, Ticket
from harness.balancer.draining import Draining
from harness.balancer.ejection import Ejection
from harness.balancer.health_score import HealthScore
from harness.balancer.levels import Levels
from harness.balancer.load_table import LoadSettings, LoadTable
from harness.balancer.policies import Signals, make
from harness.balancer.protocol import Action, Backend, CheckUp, Request
from harness.balancer.readiness import Readiness
from harness.balancer.ring import HashRing
from harness.balancer.session_affinity import SessionAffinity
from harness.balancer.settings import Settings
from harness.balancer.slow_start import SlowStart
from harness.model import Kind

LEVELS_EVERY_S = 0.1
"""How often the ring follows health scores at most: each time some keys move."""


@dataclass(frozen=True, slots=True)
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
        self._loads = LoadTable(LoadSettings())
        self._bound = None if settings.bounded_load is None else BoundedLoads(settings.bounded_load)
        self._breakers: dict[str, CircuitBreaker] = {}
        self._sessions = None if settings.sessions is None else SessionAffinity(settings.sessions)
        self._asked_s: dict[int, float] = {}
        self._draining = Draining(settings.drain_deadline_s)
        self._levels = Levels()
        self._levels_due_s = 0.0
        self._health = None if settings.health is None else HealthScore(settings.health)
        self._slow_start = None if settings.slow_start_s is None else SlowStart(settings.slow_start_s)
        ejection, checks = settings.ejection, settings.checks
        self._ejection = None if ejection is None else Ejection(ejection.failures, ejection.open_s, ejection.cap_share)
        self._readiness = (
            None if checks is None else Readiness(checks.interval_s, checks.timeout_s, checks.unhealthy, checks.healthy)
        )
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
        """Make these the members. What to do about check-ups, and which of those that left are drained already."""
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
            self._ejection.keep_only(names)
        self._levels_due_s = now_s
        self._lay_out_ring(now_s, always=True)
        actions = [] if self._readiness is None else self._readiness.set_backends(self._names, now_s)
        return actions, drained

    def expired(self, now_s: float) -> tuple[str, ...]:
        """Backends that left and whose time to finish is over."""
        return self._draining.expired(now_s)

    def next_drain_s(self) -> float | None:
        """When `expired` next has something to say."""
        return self._draining.next_s()

    # --- check-ups ----------------------------------------------------------------------------------------

    def timer_fired(self, timer_id: int, now_s: float) -> list[Action]:
        """A check-up is due."""
        actions = [] if self._readiness is None else self._readiness.timer_fired(timer_id, now_s)
        self._asked_s.update((action.check_id, now_s) for action in actions if isinstance(action, CheckUp))
        return actions

    def checked(self, check_id: int, name: str, ok: bool, report: Backend | None, now_s: float) -> None:
        """Take a check-up's result and the report that came with it."""
        asked_s = self._asked_s.pop(check_id, now_s)
        back = self._readiness is not None and self._readiness.result(check_id, ok, report)
        if back and self._slow_start is not None:
            self._slow_start.restart(name, now_s)
        if back and self._sessions is not None:
            self._sessions.forget(name)  # its caches are cold
        if report is None or name not in self._configured:
            return
        self._loads.report(name, report.queue_depth, report.pending_tokens, report.running, asked_s)
        if self._health is not None:
            self._health.report(name, report.memory_total_mb, report.memory_used_mb, report.memory_evictable_mb, now_s)

    # --- who may get what ---------------------------------------------------------------------------------

    def breaker_state(self, name: str, now_s: float) -> State:
        """State of a backend's breaker; closed where there is none."""
        breaker = self._breakers.get(name)
        return "closed" if breaker is None else breaker.state(now_s)

    def eligible(self, name: str, now_s: float) -> bool:
        """Whether a backend may get a request now. Consumes nothing."""
        if self._readiness is not None and not self._readiness.ready(name):
            return False
        if self._ejection is not None and self._ejection.ejected(name, now_s):
            return False
        breaker = self._breakers.get(name)
        return breaker is None or breaker.allows(now_s)

    def pick(self, request: Request, tried: frozenset[str], now_s: float) -> str | None:
        """The backend for an attempt: one that was not tried yet, if any is eligible. None if there is none."""
        self._now_s = now_s
        if request.kind is Kind.INFERENCE and request.session and self._sessions is not None and not tried:
            return self._of_session(request.session, now_s)
        if request.kind is Kind.INFERENCE and (request.session or request.model):
            return self._on_ring(request.session or request.model, tried, now_s)
        candidates = [name for name in self._names if self._configured[name] and self.eligible(name, now_s)]
        fresh = [name for name in candidates if name not in tried]
        return self._policy.pick(fresh or candidates, now_s)

    def _on_ring(self, key: str, tried: frozenset[str], now_s: float) -> str | None:
        if self._bound is None:
            owner = self._ring.owner(key, lambda name: name not in tried and self.eligible(name, now_s))
        else:
            open_to_it = [name for name in self._names if self._levels.level(name) and self.eligible(name, now_s)]
            total = sum(map(self._loads.in_flight, open_to_it)) + 1
            order = self._in_order(key, tried, now_s)
            owner = self._bound.choose(order, self._loads.in_flight, total, len(open_to_it))
        if owner is None and tried:
            return self._on_ring(key, frozenset(), now_s)
        return owner

    def _of_session(self, session: str, now_s: float) -> str | None:
        assert self._sessions is not None
        loads = [self._loads.in_flight(name) for name in self._names if self.eligible(name, now_s)]
        return self._sessions.choose(
            session,
            self._ring.nearest(session, len(self._names)),
            lambda name: self.eligible(name, now_s),
            self._loads.in_flight,
            sum(loads) / max(1, len(loads)),
            now_s,
        )

    def _in_order(self, key: str, tried: frozenset[str], now_s: float) -> Iterator[str]:
        for name in self._ring.nearest(key, len(self._names)):
            if name not in tried and self.eligible(name, now_s):
                yield name

    # --- attempts -----------------------------------------------------------------------------------------

    def begin(self, name: str, tokens: int, now_s: float) -> Sent:
        """An attempt leaves for a backend."""
        breaker = self._breakers.get(name)
        ticket = None if breaker is None else breaker.acquire(now_s)
        sent = Sent(name, self._stays[name], self._loads.sent(name, tokens, now_s), breaker, ticket, now_s)
        self._count_connections(name)
        return sent

    def end(self, sent: Sent, settled: Settled, now_s: float) -> bool:
        """An attempt is over. True if it was the last one of a backend that drains."""
        name = sent.backend
        latency_s = now_s - sent.started_s
        self._loads.ended(sent.load_ticket)
        if sent.breaker is not None and sent.breaker_ticket is not None:
            sent.breaker.settle(sent.breaker_ticket, settled, latency_s, now_s)
        if self._stays.get(name) == sent.stay:  # a result from before a backend left says nothing of its new stay
            self._count_connections(name)
            self._learn(name, settled, latency_s, now_s)
        drained = self._draining.ended(name)
        if drained and name not in self._configured:
            self._draining.returned(name)  # nothing is left of it to remember
        return drained

    def _learn(self, name: str, settled: Settled, latency_s: float, now_s: float) -> None:
        if settled not in (Settled.OK, Settled.FAILED):
            return
        ok = settled is Settled.OK
        self._policy.settle(name, latency_s, ok)
        if self._ejection is not None:
            self._ejection.settle(name, ok, now_s)
        if self._health is not None:
            self._health.settle(name, ok, latency_s, now_s)
            self._lay_out_ring(now_s)

    def _count_connections(self, name: str) -> None:
        if self._health is not None:
            self._health.connections(name, self._loads.in_flight(name))

    # --- weights ------------------------------------------------------------------------------------------

    def _weight(self, name: str, now_s: float) -> float:
        """Configured weight × health score × slow start. Who may get nothing at all is `eligible`'s business."""
        weight = self._configured.get(name, 0.0)
        if self._health is not None and weight:
            weight *= self._health.score(name, now_s)
        return weight if self._slow_start is None else weight * self._slow_start.factor(name, now_s)

    def _weight_now(self, name: str) -> float:
        return self._weight(name, self._now_s)

    def _load(self, name: str, now_s: float) -> float:
        return self._loads.composite(name, self._weight(name, now_s), now_s)

    def _lay_out_ring(self, now_s: float, always: bool = False) -> None:
        """Let the ring follow the weights, in tenths."""
        if not always and now_s < self._levels_due_s:
            return
        self._levels_due_s = now_s + LEVELS_EVERY_S
        changed = [self._levels.update(name, self._weight(name, now_s)) for name in self._names]
        if always or any(changed):
            self._ring.set_weights({name: self._levels.level(name) for name in self._names})
