"""The reference with one fault in its breakers each. All claim what `Conforming` claims, whatever they do."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import ClassVar

from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.core.settings_to_claims import claim_of
from harness.balancer.health.breaker import BreakerSettings, CircuitBreaker, Settled, Ticket
from harness.balancer.members import Members
from harness.balancer.settings import Settings
from harness.claims.features import Affinity, Backoff, Breaker
from harness.gateway.protocol import Action, Backend, Event, Reply, Request, SetTimer, TimerFired
from harness.scenario.model import Kind
from tests.mutants.nothing import NOTHING_ON

RULES = BreakerSettings(
    failures=5,
    error_rate=0.5,
    minimum_calls=20,
    window_s=2.0,
    slow_p99_s=0.25,
    open_s=0.5,
    probes=1,
    successes=2,
    backoff=Backoff(multiplier=2.0, max_s=1.5, jitter=0.2),
)
ALONE = replace(NOTHING_ON, breaker=RULES)
CLAIMS = (
    Affinity(virtual_nodes=150),
    claim_of(Breaker, RULES),
)

OPENS_WRONGLY = (
    "breaker.open.for-its-time",
    "breaker.open.gets-nothing",
    "breaker.open.ignores-late-failures",
    "breaker.backoff.grows",
)
"""Properties that fail on a breaker that is not open when claimed, or for as long as claimed."""


class _Members(Members):
    """Members whose breakers have a given class."""

    def __init__(self, settings: Settings, generator: Random, make: type[CircuitBreaker]) -> None:
        super().__init__(settings, generator)
        self._make = make

    def set_backends(self, backends: tuple[Backend, ...], now_s: float) -> tuple[list[Action], list[str]]:
        assert self._settings.breaker is not None
        for backend in backends:
            self._breakers.setdefault(backend.id, self._make(self._settings.breaker, self._random))
        return super().set_backends(backends, now_s)


class Conforming(ReferenceGateway):
    """No fault: the base class of the mutants, which change its rules, its breakers or its members."""

    claims = CLAIMS
    rules: ClassVar[BreakerSettings] = RULES
    breaker: ClassVar[type[CircuitBreaker]] = CircuitBreaker

    def __init__(self, random: Random) -> None:
        settings = replace(ALONE, breaker=self.rules)
        super().__init__(settings, random)
        self._members = self._made(settings, random)

    def _made(self, settings: Settings, random: Random) -> Members:
        return _Members(settings, random, self.breaker)


# --- settings that differ from the claims ------------------------------------------------------------------


class NeverTripsOnCount(Conforming):
    """Counts consecutive failures and never uses the count."""

    kills = ("breaker.trip.at-count", "breaker.half-open.failed-probe-reopens", *OPENS_WRONGLY)
    vacuous = ("breaker.return.starts-clean",)
    rules = replace(RULES, failures=None)


class OneTooEarly(Conforming):
    """Trips with one failure fewer than claimed."""

    kills = ("breaker.trip.at-count",)
    rules = replace(RULES, failures=4)


class OneTooLate(Conforming):
    """Trips with one failure more than claimed."""

    kills = ("breaker.trip.at-count", *OPENS_WRONGLY)
    vacuous = ("breaker.return.starts-clean",)
    rules = replace(RULES, failures=6)


class NeverTripsOnRate(Conforming):
    """Counts consecutive failures only, so that one good answer in between hides any error rate."""

    kills = ("breaker.trip.at-rate",)
    rules = replace(RULES, error_rate=None)


class NeverForgets(Conforming):
    """Computes the error rate over all calls since the start: old successes delay a trip."""

    kills = ("breaker.trip.at-rate",)
    rules = replace(RULES, window_s=600.0)


class NoMinimum(Conforming):
    """Computes the error rate from the first few calls."""

    kills = ("breaker.trip.not-below-rate",)
    vacuous = ("breaker.trip.at-rate",)
    rules = replace(RULES, minimum_calls=2)


class NeverTripsOnLatency(Conforming):
    """Treats a slow backend as healthy."""

    kills = ("breaker.trip.at-latency",)
    rules = replace(RULES, slow_p99_s=None)


class HalfTheBound(Conforming):
    """Trips when latency reaches half of the claimed bound."""

    kills = ("breaker.trip.not-below-latency", "integrity.rush.nothing-lost")
    rules = replace(RULES, slow_p99_s=0.1)


class HalfTheTime(Conforming):
    """Is open for half of the claimed time."""

    kills = OPENS_WRONGLY
    rules = replace(RULES, open_s=0.3)


class NoBackoff(Conforming):
    """Probes at a constant interval."""

    kills = ("breaker.backoff.grows",)
    rules = replace(RULES, backoff=replace(RULES.backoff, multiplier=1.0))


class NoCap(Conforming):
    """Lets open times grow beyond the claimed maximum."""

    kills = ("breaker.backoff.grows",)
    rules = replace(RULES, backoff=replace(RULES.backoff, max_s=60.0))


class NoJitter(Conforming):
    """Has no jitter: breakers that trip together probe together."""

    kills = ("breaker.backoff.jittered",)
    rules = replace(RULES, backoff=replace(RULES.backoff, jitter=0.0))


class TwoProbes(Conforming):
    """Lets two requests at a time through while half-open, as a sketch does that stores a permit and uses another."""

    kills = ("breaker.half-open.one-slow-probe", "breaker.half-open.one-hung-probe")
    rules = replace(RULES, probes=2)


class NeverCloses(Conforming):
    """Stays half-open however many probes succeed."""

    kills = ("breaker.recovery.full-share",)
    rules = replace(RULES, successes=10**6)


# --- faults of the breaker itself --------------------------------------------------------------------------


class _KeepsRun(CircuitBreaker):
    def _call_ended(self, failed: bool, slow: bool, now_s: float) -> None:
        run = self._run
        super()._call_ended(failed, slow, now_s)
        if not failed:
            self._run = run


class SuccessDoesNotClear(Conforming):
    """A good answer does not reset the count of consecutive failures, so that old failures trip a healthy backend."""

    kills = ("breaker.trip.not-below-rate",)
    vacuous = ("breaker.trip.at-rate",)
    breaker = _KeepsRun


class _CountsClientErrors(CircuitBreaker):
    def settle(self, ticket: Ticket, settled: Settled, latency_s: float, now_s: float) -> None:
        super().settle(ticket, Settled.FAILED if settled is Settled.NEUTRAL else settled, latency_s, now_s)


class CountsClientErrors(Conforming):
    """Counts a client error (4xx) as a failure of the backend."""

    kills = ("breaker.trip.not-by-client-errors",)
    breaker = _CountsClientErrors


class _RefreshedByLateFailures(CircuitBreaker):
    def settle(self, ticket: Ticket, settled: Settled, latency_s: float, now_s: float) -> None:
        late = ticket in self._tickets and ticket.generation != self._generation and self.state(now_s) == "open"
        super().settle(ticket, settled, latency_s, now_s)
        if late and settled is Settled.FAILED:
            self._open_until_s = now_s + self._settings.open_s


class RefreshedByLateFailures(Conforming):
    """Each failure that arrives while open restarts the open time."""

    kills = ("breaker.open.ignores-late-failures",)
    breaker = _RefreshedByLateFailures


class _AnyoneWhileHalfOpen(CircuitBreaker):
    def allows(self, now_s: float) -> bool:
        return self.state(now_s) != "open"


class AnyoneWhileHalfOpen(Conforming):
    """Only an open breaker rejects; a half-open breaker lets every request through."""

    kills = ("breaker.half-open.one-slow-probe", "breaker.half-open.one-hung-probe")
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
    """Opens again only after three failed probes."""

    kills = ("breaker.half-open.failed-probe-reopens", "breaker.backoff.grows")
    breaker = _FullThresholdAgain


class _SlotKept(CircuitBreaker):
    def settle(self, ticket: Ticket, settled: Settled, latency_s: float, now_s: float) -> None:
        if not (ticket.probe and settled is Settled.ABORTED):
            super().settle(ticket, settled, latency_s, now_s)


class AbortKeepsSlot(Conforming):
    """Frees a probe's slot on success and failure only; a probe that its client abandoned keeps it forever."""

    kills = ("breaker.half-open.abort-frees-slot",)
    breaker = _SlotKept


# --- faults of members and gateway -------------------------------------------------------------------------


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
    """Keeps the breaker of a backend that left, and reuses its state when the backend returns."""

    kills = ("breaker.return.starts-clean",)

    def _made(self, settings: Settings, random: Random) -> Members:
        return _RemembersWhoLeft(settings, random, self.breaker)


class OneForAll(Conforming):
    """One breaker for all backends: one failing backend takes the others down."""

    kills = (
        "breaker.isolation.others-answered",
        "breaker.trip.at-count",
        "breaker.half-open.failed-probe-reopens",
        "breaker.trip.not-below-latency",
        "breaker.trip.not-by-client-errors",
        *OPENS_WRONGLY,
    )
    vacuous = (
        "breaker.half-open.abort-frees-slot",
        "breaker.half-open.one-hung-probe",
        "breaker.half-open.one-slow-probe",
        "breaker.return.starts-clean",
    )

    def _made(self, settings: Settings, random: Random) -> Members:
        return _OneForAll(settings, random)


class _LookingConsumes(_Members):
    """Checking a half-open breaker takes its permit, used or not; only an answer of that backend returns it."""

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

    kills = ("breaker.recovery.full-share", "breaker.backoff.grows")
    vacuous = (
        "breaker.half-open.abort-frees-slot",
        "breaker.half-open.one-hung-probe",
        "breaker.half-open.one-slow-probe",
    )

    def _made(self, settings: Settings, random: Random) -> Members:
        return _LookingConsumes(settings, random)


class RejectsSlowly(Conforming):
    """Delays the rejection of a request by 0.2 s while every breaker is open."""

    kills = ("breaker.open.fails-fast",)

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
