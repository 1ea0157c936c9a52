"""The members of the reference balancer: their state, their eligibility, and the choice between them.

All state of a backend that leaves is dropped, so it starts clean if it returns; only its attempts in flight are counted
until they end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from random import Random

from harness.balancer.health.breaker import UNINFORMATIVE, CircuitBreaker, Settled, State, Ticket
from harness.balancer.health.draining import Draining
from harness.balancer.health.ejection import PassiveEjection
from harness.balancer.health.health_score import HealthScore
from harness.balancer.health.readiness import CHECKS_ONLY, Readiness
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
"""Looked up once, as access to an enum's member is slower than a comparison."""

RING_UPDATE_S = 0.1
"""Minimum seconds between updates of the ring from the weights, as each update moves some keys."""


@fast_dataclass
class Sent:
    """Tickets that an attempt holds at its backend until it ends. `membership`: increases each time a backend joins."""

    backend: str
    membership: int
    load_ticket: int
    breaker: CircuitBreaker | None
    breaker_ticket: Ticket | None
    started_s: float


class Members:
    """State of all backends, by id.

    `eligible` changes no state, `pick` only the policy's (such as a turn of round robin). Each `begin` is paired with
    one `end`.
    """

    def __init__(self, settings: Settings, generator: Random) -> None:
        self._settings = settings
        self._random = generator
        self._names: tuple[str, ...] = ()
        self._configured: dict[str, float] = {}
        self._memberships: dict[str, int] = {}
        self._next_membership = 0
        self._ring = HashRing(settings.virtual_nodes)
        self._loads = LoadTable(settings.load)
        self._bound = None if settings.bounded_load is None else BoundedLoads(settings.bounded_load)
        self._breakers: dict[str, CircuitBreaker] = {}
        self._sessions = None if settings.sessions is None else SessionAffinity(settings.sessions)
        self._check_sent_s: dict[int, float] = {}
        self._draining = Draining(settings.drain_deadline_s)
        self._quantised_weights = WeightQuantiser()
        self._ring_due_s = math.inf  # next update of the ring from the weights; inf if weights never change
        self._health = None if settings.health_share is None else HealthScore(settings.health_share)
        ramp, ejection = settings.slow_start, settings.ejection
        self._slow_start = None if ramp is None else SlowStart(ramp.window_s, ramp.minimum_share, ramp.aggression)
        self._ejection = (
            None if ejection is None else PassiveEjection(ejection.failures, ejection.open_s, ejection.cap_share)
        )
        self._readiness = None if settings.health_checks is None else _readiness(settings.health_checks, generator)
        self._eligible = InFlightTotal()
        """Eligible members, maintained by `_update_eligibility`, so that a pick need not examine all members."""
        self._candidates: list[str] | None = None  # eligible members with weight; None: to be recomputed
        self._weightless: tuple[str, ...] = ()  # members without a point on the ring
        self._recheck_heap: list[tuple[float, str]] = []  # heap of times at which an ineligible member is re-examined
        self._recheck_s: dict[str, float] = {}  # the latest such time of each member
        self._now_s = 0.0
        signals = Signals(weight=self._weight_now, in_flight=self._loads.in_flight, load=self._load)
        self._policy = make(settings.spread or "weighted_random", generator, signals)

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight at any backend, including backends that left."""
        return self._loads.total_in_flight == 0 and all(not item.tickets_out for item in self._breakers.values())

    @property
    def known(self) -> frozenset[str]:
        """All backends with any state."""
        return self._loads.backends | frozenset(self._breakers) | frozenset(self._configured)

    @property
    def load(self) -> float:
        """Mean number of requests in flight per member."""
        return self._loads.total_in_flight / max(1, len(self._names))

    # --- membership ---------------------------------------------------------------------------------------

    def set_backends(self, backends: tuple[Backend, ...], now_s: float) -> tuple[list[Action], list[str]]:
        """Replace the list of members. Returns health-check actions and the departed backends that are drained."""
        old = set(self._names)
        self._names = tuple(backend.id for backend in backends)
        names = frozenset(self._names)
        self._configured = {backend.id: backend.weight for backend in backends}
        for name in self._names:
            if name not in old:
                self._next_membership += 1
                self._memberships[name] = self._next_membership
        self._memberships = {name: self._memberships[name] for name in self._names}
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
        self._quantised_weights.keep_only(names)
        self._policy.keep_only(names)
        if self._health is not None:
            self._health.keep_only(names)
        if self._slow_start is not None:
            self._slow_start.set_backends(names, now_s)
        if self._ejection is not None:
            out = [name for name in names if self._ejection.ejected(name, now_s)]
            self._ejection.keep_only(names)
            for name in out:
                self._restart_slow_start(
                    name, now_s
                )  # some may be back at once: with fewer members the cap allows fewer ejections
        self._update_ring(now_s, always=True)
        actions = [] if self._readiness is None else self._readiness.set_backends(self._names, now_s)
        self._candidates = None
        self._recheck_s = {name: recheck_s for name, recheck_s in self._recheck_s.items() if name in names}
        for name in old | names:
            self._update_eligibility(name, now_s)
        return actions, drained

    def expired(self, now_s: float) -> tuple[str, ...]:
        """Departed backends whose drain deadline has passed."""
        return self._draining.expired(now_s)

    def next_drain_s(self) -> float | None:
        """Next time at which `expired` returns a backend; None if nothing can expire."""
        return self._draining.next_s()

    # --- health checks ----------------------------------------------------------------------------------------

    def timer_fired(self, timer_id: int, now_s: float) -> list[Action]:
        """A health-check timer fired: start the check and set its next timer."""
        actions = [] if self._readiness is None else self._readiness.timer_fired(timer_id, now_s)
        self._check_sent_s.update((action.check_id, now_s) for action in actions if isinstance(action, SendHealthCheck))
        return actions

    def health_check_result(self, check_id: int, name: str, ok: bool, report: Backend | None, now_s: float) -> None:
        """Process the result of a health check and the load report that came with it, if any."""
        sent_s = self._check_sent_s.pop(check_id, now_s)
        back = self._readiness is not None and self._apply_check(self._readiness, check_id, ok, report, now_s)
        if back:
            self._restart_slow_start(name, now_s)
        if back and self._sessions is not None:
            self._sessions.forget(name)  # its caches are cold
        if report is None or name not in self._configured:
            return
        self._loads.report(name, report.queue_depth, report.pending_tokens, report.running, sent_s)
        if self._health is not None:
            self._health.report(name, report.memory_total_mb, report.memory_used_mb, report.memory_evictable_mb, now_s)

    def _apply_check(self, readiness: Readiness, check_id: int, ok: bool, report: Backend | None, now_s: float) -> bool:
        rotation = readiness.rotation
        back = readiness.result(check_id, ok, report)
        if readiness.rotation is not rotation:
            for name in self._names:
                self._update_eligibility(name, now_s)
        return back

    # --- eligibility and choice ---------------------------------------------------------------------------

    def breaker_state(self, name: str, now_s: float) -> State:
        """State of a backend's breaker; closed if it has none."""
        breaker = self._breakers.get(name)
        return "closed" if breaker is None else breaker.state(now_s)

    def condition(self, name: str, now_s: float) -> MemberReport | None:
        """State of a member, for display; None for other ids."""
        if name not in self._configured:
            return None
        breaker = self._breakers.get(name)
        return MemberReport(
            ready=self.eligible(name, now_s),
            breaker=None if breaker is None else breaker.state(now_s),
            score=None if self._health is None else self._health.score(name, now_s),
        )

    def eligible(self, name: str, now_s: float) -> bool:
        """Whether a backend may receive a request now. Changes no state."""
        if self._readiness is not None and not self._readiness.ready(name):
            return False
        if self._ejection is not None and self._ejection.ejected(name, now_s):
            return False
        breaker = self._breakers.get(name)
        return breaker is None or breaker.allows(now_s)

    def pick(self, request: Request, tried: frozenset[str], now_s: float) -> str | None:
        """The backend for an attempt, preferring backends not in `tried`; None if none is eligible.

        O(log n) for requests placed by the ring and for updates by `two_choices` and `ewma` while eligibility is
        unchanged; all members are examined only every `RING_UPDATE_S`.
        """
        self._now_s = now_s
        self._recheck_due(now_s)
        if now_s >= self._ring_due_s:
            self._update_ring(now_s)
        if request.kind is INFERENCE:
            if request.session and self._sessions is not None and not tried:
                return self._pick_by_session(self._sessions, request.session, now_s)
            if key := request.session or request.model:
                return self._pick_by_ring(key, tried, now_s)
        candidates = self._eligible_with_weight()
        fresh = [name for name in candidates if name not in tried] if tried else candidates
        return self._policy.pick(fresh or candidates, now_s)

    def _pick_by_ring(self, key: str, tried: frozenset[str], now_s: float) -> str | None:
        if self._bound is None:
            owner = self._ring.owner(key, lambda name: name not in tried and self.eligible(name, now_s))
        else:
            eligible_count, total = len(self._eligible), self._eligible.total + 1
            for name in self._weightless:
                if name in self._eligible.backends:
                    eligible_count, total = eligible_count - 1, total - self._loads.in_flight(name)
            owner = self._bound.choose(
                self._eligible_in_ring_order(key, tried, now_s), self._loads.in_flight, total, eligible_count
            )
        if owner is None and tried:
            return self._pick_by_ring(key, frozenset(), now_s)
        return owner

    def _pick_by_session(self, sessions: SessionAffinity, session: str, now_s: float) -> str | None:
        return sessions.choose(
            session,
            self._ring.nearest(session, len(self._names)),
            lambda name: self.eligible(name, now_s),
            self._loads.in_flight,
            self._eligible.total / max(1, len(self._eligible)),
            now_s,
        )

    def _eligible_in_ring_order(self, key: str, tried: frozenset[str], now_s: float) -> Iterator[str]:
        for name in self._ring.nearest(key, len(self._names)):
            if name not in tried and self.eligible(name, now_s):
                yield name

    def _eligible_with_weight(self) -> Sequence[str]:
        """All eligible members with weight, in configuration order; cached until eligibility changes."""
        if self._candidates is None:
            self._candidates = [
                name for name in self._names if self._configured[name] and name in self._eligible.backends
            ]
        return self._candidates

    def _recheck_due(self, now_s: float) -> None:
        """Re-examine the members whose open or ejection time is over."""
        while self._recheck_heap and self._recheck_heap[0][0] <= now_s:
            self._update_eligibility(heappop(self._recheck_heap)[1], now_s)

    def _update_eligibility(self, name: str, now_s: float) -> None:
        """Re-examine whether `name` is eligible; called after every event that may change it."""
        in_flight = self._loads.in_flight(name)
        if name in self._configured and self.eligible(name, now_s):
            if self._eligible.put(name, in_flight):
                self._candidates = None
            return
        if self._eligible.drop(name, in_flight):
            self._candidates = None
        breaker = self._breakers.get(name)
        open_until_s = None if breaker is None else breaker.open_until_s(now_s)
        ejected_until_s = None if self._ejection is None else self._ejection.until_s(name, now_s)
        recheck_s = max(open_until_s or 0.0, ejected_until_s or 0.0)
        if recheck_s > now_s and self._recheck_s.get(name) != recheck_s:
            self._recheck_s[name] = recheck_s
            heappush(self._recheck_heap, (recheck_s, name))

    # --- attempts -----------------------------------------------------------------------------------------

    def begin(self, name: str, tokens: int, now_s: float) -> Sent:
        """Count an attempt that is sent to a backend now."""
        breaker = self._breakers.get(name)
        ticket = None if breaker is None else breaker.acquire(now_s)
        sent = Sent(name, self._memberships[name], self._loads.sent(name, tokens, now_s), breaker, ticket, now_s)
        self._eligible.count(name, 1)
        if ticket is not None and ticket.probe:
            self._update_eligibility(name, now_s)  # it may have taken the breaker's last probe slot
        if self._health is not None:
            self._health.connections(name, self._loads.in_flight(name))
        return sent

    def end(self, sent: Sent, settled: Settled, now_s: float) -> bool:
        """Count an attempt as ended. True if it was the last one of a draining backend."""
        name = sent.backend
        latency_s = now_s - sent.started_s
        self._loads.ended(sent.load_ticket)
        self._eligible.count(name, -1)
        breaker = sent.breaker
        closes = False
        if breaker is not None and sent.breaker_ticket is not None:
            was_closed = breaker.closed
            breaker.settle(sent.breaker_ticket, settled, latency_s, now_s)
            closes = breaker.closed and not was_closed
        # A result from before a backend left is not counted against it after its return.
        if self._memberships.get(name) == sent.membership:
            if self._health is not None:
                self._health.connections(name, self._loads.in_flight(name))
            self._record_result(name, settled, latency_s, now_s)
            if closes:
                self._restart_slow_start(name, now_s)
            if settled is FAILED or (breaker is not None and not (breaker.closed and name in self._eligible.backends)):
                self._update_eligibility(name, now_s)
        drained = self._draining.ended(name)
        if drained and name not in self._configured:
            self._draining.returned(name)  # drop the last state of a departed backend
        return drained

    def _record_result(self, name: str, settled: Settled, latency_s: float, now_s: float) -> None:
        if settled in UNINFORMATIVE:
            return
        ok = settled is OK
        self._policy.settle(name, latency_s, ok)
        if self._ejection is not None:
            self._ejection.settle(name, ok, now_s)
            if not ok and self._ejection.ejected(name, now_s):
                self._restart_slow_start(name, now_s)
        if self._health is not None:
            self._health.settle(name, ok, latency_s, now_s)

    # --- weights ------------------------------------------------------------------------------------------

    def _weight(self, name: str, now_s: float) -> float:
        """Configured weight × health score × slow-start factor. Independent of `eligible`."""
        weight = self._configured.get(name, 0.0)
        if self._health is not None and weight:
            weight *= self._health.score(name, now_s)
        return weight if self._slow_start is None else weight * self._slow_start.factor(name, now_s)

    def _restart_slow_start(self, name: str, now_s: float) -> None:
        """Start the weight ramp of `name` when it re-enters rotation: now, or at the end of its ejection.

        After an open breaker the ramp starts when it closes, not at half-open, where probes are few anyway.
        """
        if self._slow_start is not None:
            until_s = None if self._ejection is None else self._ejection.until_s(name, now_s)
            self._slow_start.restart(name, now_s if until_s is None else until_s)

    def _weight_now(self, name: str) -> float:
        return self._weight(name, self._now_s)

    def _load(self, name: str, now_s: float) -> float:
        return self._loads.composite(name, self._weight(name, now_s), now_s)

    def _update_ring(self, now_s: float, always: bool = False) -> None:
        """Update the ring from the weights, quantised to tenths."""
        if self._health is not None or self._slow_start is not None:
            self._ring_due_s = now_s + RING_UPDATE_S
        changed = [self._quantised_weights.update(name, self._weight(name, now_s)) for name in self._names]
        if always or any(changed):
            levels = {name: self._quantised_weights.level(name) for name in self._names}
            self._ring.set_weights(levels)
            self._weightless = tuple(name for name, level in levels.items() if not level)


def _readiness(checks: CheckSettings, generator: Random) -> Readiness:
    rotation = checks.rotation or CHECKS_ONLY
    return Readiness(
        checks.interval_s, checks.timeout_s, checks.unhealthy, checks.healthy, rotation, generator, checks.expected
    )
