"""The reference with one fault in its breakers each. Its claims are those of `Conforming`, whatever it really does."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import ClassVar

from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.health.breaker import BreakerSettings, CircuitBreaker, Settled, Ticket
from harness.balancer.members import Members
from harness.balancer.settings import Settings
from harness.claims.features import Affinity, Backoff, Breaker
from harness.gateway.protocol import Action, Backend, Event, Reply, Request, SetTimer, TimerFired
from harness.scenario.model import Kind

RULES = BreakerSettings(
    failures=5,
    error_rate=0.5,
    minimum_calls=20,
    window_s=2.0,
    slow_p99_s=0.25,
    open_s=0.5,
    probes=1,
    successes=2,
    multiplier=2.0,
    max_open_s=1.5,
    jitter=0.2,
)
ALONE = Settings(bounded_load=None, checks=None, health=None, hedge=None, retry=None, breaker=RULES)
CLAIMS = (
    Affinity(virtual_nodes=150),
    Breaker(
        failures=5,
        error_rate=0.5,
        minimum_calls=20,
        window_s=2.0,
        slow_p99_s=0.25,
        open_s=0.5,
        probes=1,
        successes=2,
        backoff=Backoff(multiplier=2.0, max_s=1.5, jitter=0.2),
    ),
)


class _Members(Members):
    """Members whose breakers are of a given class."""

    def __init__(self, settings: Settings, generator: Random, make: type[CircuitBreaker]) -> None:
        super().__init__(settings, generator)
        self._make = make

    def set_backends(self, backends: tuple[Backend, ...], now_s: float) -> tuple[list[Action], list[str]]:
        assert self._settings.breaker is not None
        for backend in backends:
            self._breakers.setdefault(backend.id, self._make(self._settings.breaker, self._random))
        return super().set_backends(backends, now_s)


class Conforming(ReferenceGateway):
    """No fault: the base of the others, which change its rules, its breakers or its members."""

    claims = CLAIMS
    rules: ClassVar[BreakerSettings] = RULES
    breaker: ClassVar[type[CircuitBreaker]] = CircuitBreaker

    def __init__(self, random: Random) -> None:
        settings = replace(ALONE, breaker=self.rules)
        super().__init__(settings, random)
        self._members = self._made(settings, random)

    def _made(self, settings: Settings, random: Random) -> Members:
        return _Members(settings, random, self.breaker)


# --- other rules than claimed ------------------------------------------------------------------------------


class NeverTripsOnCount(Conforming):
    """Failures in a row are counted and never used."""

    rules = replace(RULES, failures=None)


class OneTooEarly(Conforming):
    """Trips with one failure less than claimed."""

    rules = replace(RULES, failures=4)


class OneTooLate(Conforming):
    """Trips with one failure more than claimed."""

    rules = replace(RULES, failures=6)


class NeverTripsOnRate(Conforming):
    """Counts failures in a row only, so that one good answer in between hides any share of them."""

    rules = replace(RULES, error_rate=None)


class NeverForgets(Conforming):
    """Takes the error rate over all calls there ever were: old successes delay a trip."""

    rules = replace(RULES, window_s=600.0)


class NoMinimum(Conforming):
    """Judges the error rate on the first few calls."""

    rules = replace(RULES, minimum_calls=2)


class NeverTripsOnLatency(Conforming):
    """Takes a slow backend for a healthy one."""

    rules = replace(RULES, slow_p99_s=None)


class HalfTheBound(Conforming):
    """Trips when latency reaches half of what is claimed."""

    rules = replace(RULES, slow_p99_s=0.1)


class HalfTheTime(Conforming):
    """Is open for half of the time that is claimed."""

    rules = replace(RULES, open_s=0.3)


class NoBackoff(Conforming):
    """Probes at one pace for ever."""

    rules = replace(RULES, multiplier=1.0)


class NoCap(Conforming):
    """Open times grow beyond what is claimed."""

    rules = replace(RULES, max_open_s=60.0)


class NoJitter(Conforming):
    """Breakers that trip together probe together."""

    rules = replace(RULES, jitter=0.0)


class TwoProbes(Conforming):
    """Lets two requests at a time through while half-open, as a sketch does that stores a permit and uses another."""

    rules = replace(RULES, probes=2)


class NeverCloses(Conforming):
    """Stays half-open however many probes succeed."""

    rules = replace(RULES, successes=10**6)


# --- faults of the breaker itself --------------------------------------------------------------------------


class _KeepsRun(CircuitBreaker):
    def _call_ended(self, failed: bool, slow: bool, now_s: float) -> None:
        kept = self._run
        super()._call_ended(failed, slow, now_s)
        if not failed:
            self._run = kept


class SuccessDoesNotClear(Conforming):
    """Good answers do not end a run of failures, so that old ones trip a healthy backend."""

    breaker = _KeepsRun


class _CountsClientErrors(CircuitBreaker):
    def settle(self, ticket: Ticket, settled: Settled, latency_s: float, now_s: float) -> None:
        super().settle(ticket, Settled.FAILED if settled is Settled.NEUTRAL else settled, latency_s, now_s)


class CountsClientErrors(Conforming):
    """Takes a client's own error (4xx) for a failure of the backend."""

    breaker = _CountsClientErrors


class _RefreshedByLateFailures(CircuitBreaker):
    def settle(self, ticket: Ticket, settled: Settled, latency_s: float, now_s: float) -> None:
        late = ticket in self._tickets and ticket.generation != self._generation and self.state(now_s) == "open"
        super().settle(ticket, settled, latency_s, now_s)
        if late and settled is Settled.FAILED:
            self._open_until_s = now_s + self._settings.open_s


class RefreshedByLateFailures(Conforming):
    """Each failure that arrives while open counts as a new opening."""

    breaker = _RefreshedByLateFailures


class _AnyoneWhileHalfOpen(CircuitBreaker):
    def allows(self, now_s: float) -> bool:
        return self.state(now_s) != "open"


class AnyoneWhileHalfOpen(Conforming):
    """Only an open breaker rejects; a half-open one lets everyone through."""

    breaker = _AnyoneWhileHalfOpen


class _FullThresholdAgain(CircuitBreaker):
    def settle(self, ticket: Ticket, settled: Settled, latency_s: float, now_s: float) -> None:
        if ticket.probe and settled is Settled.FAILED and ticket in self._tickets:
            self._run += 1
            if self._run < 3:
                self._tickets.remove(ticket)
                self._probes_out -= 1
                return
        super().settle(ticket, settled, latency_s, now_s)


class FullThresholdAgain(Conforming):
    """It takes three failed probes to open again."""

    breaker = _FullThresholdAgain


class _SlotKept(CircuitBreaker):
    def settle(self, ticket: Ticket, settled: Settled, latency_s: float, now_s: float) -> None:
        if not (ticket.probe and settled is Settled.ABORTED):
            super().settle(ticket, settled, latency_s, now_s)


class AbortKeepsSlot(Conforming):
    """A probe's slot is freed by success and failure only; one that its client gave up holds it for ever."""

    breaker = _SlotKept


# --- faults of what is around it ---------------------------------------------------------------------------


class _OneForAll(Members):
    def set_backends(self, backends: tuple[Backend, ...], now_s: float) -> tuple[list[Action], list[str]]:
        assert self._settings.breaker is not None
        shared = next(iter(self._breakers.values()), None) or CircuitBreaker(self._settings.breaker, self._random)
        self._breakers.update({backend.id: shared for backend in backends})
        return super().set_backends(backends, now_s)


class _RemembersWhoLeft(_Members):
    def __init__(self, settings: Settings, generator: Random, make: type[CircuitBreaker]) -> None:
        super().__init__(settings, generator, make)
        self._ever: dict[str, CircuitBreaker] = {}

    def set_backends(self, backends: tuple[Backend, ...], now_s: float) -> tuple[list[Action], list[str]]:
        self._ever |= self._breakers
        self._breakers = {backend.id: self._ever[backend.id] for backend in backends if backend.id in self._ever}
        return super().set_backends(backends, now_s)


class RemembersWhoLeft(Conforming):
    """The breaker of a backend that left is kept, and waits for it as it was."""

    def _made(self, settings: Settings, random: Random) -> Members:
        return _RemembersWhoLeft(settings, random, self.breaker)


class OneForAll(Conforming):
    """One breaker for all backends: one that fails takes the others down."""

    def _made(self, settings: Settings, random: Random) -> Members:
        return _OneForAll(settings, random)


class _LookingConsumes(_Members):
    """A look at a half-open breaker takes its permit, used or not; only an answer of that backend gives it back."""

    def __init__(self, settings: Settings, generator: Random) -> None:
        super().__init__(settings, generator, CircuitBreaker)
        self._taken: set[str] = set()

    def pick(self, request: Request, tried: frozenset[str], now_s: float) -> str | None:
        candidates = [name for name in self._names if self._permitted(name, now_s)]
        if request.kind is Kind.INFERENCE:
            chosen = self._ring.owner(request.model, lambda name: name in candidates)
        else:
            chosen = super().pick(request, tried, now_s)
        if chosen is not None:
            self._taken.discard(chosen)
        return chosen

    def _permitted(self, name: str, now_s: float) -> bool:
        if not self.eligible(name, now_s) or name in self._taken:
            return False
        if self.breaker_state(name, now_s) == "half-open":
            self._taken.add(name)
        return True


class LookingConsumes(Conforming):
    """Filtering candidates consumes probe permits of backends that then get no request."""

    def _made(self, settings: Settings, random: Random) -> Members:
        return _LookingConsumes(settings, random)


class RejectsSlowly(Conforming):
    """Lets a request wait for a while before it is told that every breaker is open."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._waiting: dict[int, Reply] = {}

    def handle(self, event: Event, now_s: float) -> list[Action]:
        if isinstance(event, TimerFired) and event.timer_id in self._waiting:
            return [self._waiting.pop(event.timer_id)]
        actions: list[Action] = []
        for action in super().handle(event, now_s):
            if isinstance(action, Reply) and action.status == 503:
                timer_id = -(10**9) - action.request_id
                self._waiting[timer_id] = action
                actions.append(SetTimer(timer_id, now_s + 0.2))
            else:
                actions.append(action)
        return actions
