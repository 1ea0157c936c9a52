"""Circuit breaker of one backend: closed, open for a time that grows, half-open with a few probes.

    closed ──trip──► open ──time──► half-open ──enough good probes──► closed
                      ▲                 └──a failed probe──┘ (back to open, for longer)

The state depends only on the settled calls and the clock: queries cause no transition. Every call holds a ticket from
`acquire` and returns it with one `settle`; calls begun before the last trip or closing no longer affect the state
(App-vNext/Polly#217). Further rules are documented at the methods.
Sources: Nygard, "Release It!", and the documentation of Polly, resilience4j and Hystrix.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Literal

from harness.balancer.health.windows import OutcomeWindow, rank
from harness.claims.features import Backoff

State = Literal["closed", "open", "half-open"]

SLOW_QUANTILE = 0.99
"""The quantile that `slow_p99_s` bounds."""


class Settled(Enum):
    """Result of a call with regard to its backend's health.

    NEUTRAL (a client error, 4xx) and ABORTED (cancelled) are no evidence of it; counting them as failures opens
    breakers fleet-wide (sgl-project/sglang#25811, tinfoilsh/confidential-model-router#278).
    """

    OK = "ok"
    FAILED = "failed"
    NEUTRAL = "neutral"
    ABORTED = "aborted"


FAILED = Settled.FAILED
UNINFORMATIVE = (Settled.NEUTRAL, Settled.ABORTED)


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """Trip conditions, open times and closing rule of a breaker. None disables a condition; one must be enabled.

    Trips after `failures` in a row, or when `error_rate` (0 to 1) is reached or `slow_p99_s` exceeded over the last
    `window_s` with at least `minimum_calls` that ended ok or failed. Open for `open_s`, after each failed probe
    `backoff.multiplier` times longer; each time is drawn from its band (`Breaker.open_band_s` in
    harness/claims/breaker.py). While half-open at most `probes` run at a time; `successes` good ones close it.
    ValueError for numbers out of range.

    Defaults: rate, calls, window and first open time of Hystrix (50 % of 20 calls in 10 s, 5 s); failures in a row and
    growth of Finagle's failure accrual (5; from 5 s to 300 s), with the same 5 and 300 s in Envoy's outlier detection.
    """

    failures: int | None = 5
    error_rate: float | None = 0.5
    minimum_calls: int = 20
    window_s: float = 10.0
    slow_p99_s: float | None = None
    open_s: float = 5.0
    probes: int = 1
    successes: int = 2
    backoff: Backoff = field(default_factory=lambda: Backoff(multiplier=2.0, max_s=300.0, jitter=0.2))

    def __post_init__(self) -> None:
        if self.failures is None and self.error_rate is None and self.slow_p99_s is None:
            raise ValueError("a breaker needs a reason to trip: failures, error_rate or slow_p99_s")
        for name in ("failures", "minimum_calls", "probes", "successes"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected 1 or more")
        for name in ("window_s", "slow_p99_s", "open_s"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"{name} {getattr(self, name)}: expected above 0")
        if self.error_rate is not None and not 0 < self.error_rate <= 1:
            raise ValueError(f"error_rate {self.error_rate}: expected above 0 and at most 1")
        multiplier, max_s, jitter = self.backoff.multiplier, self.backoff.max_s, self.backoff.jitter
        if not multiplier >= 1 or not max_s >= self.open_s or not 0 <= jitter < 1:
            raise ValueError(
                f"backoff with multiplier {multiplier}, max_s {max_s} and jitter {jitter}: expected 1 or more, open_s"
                f" ({self.open_s}) or more, and from 0 to below 1"
            )


@dataclass(slots=True, eq=False)
class Ticket:
    """Permission for one call. Compared by identity: a breaker accepts only its own tickets."""

    generation: int
    probe: bool


class CircuitBreaker:
    """The breaker of one backend; see the module. `now_s` is the caller's monotonic clock.

    A backend that leaves and returns gets a new breaker without any inherited state; it ignores tickets of the old one.
    """

    __slots__ = (
        "_errors",
        "_generation",
        "_good_probes",
        "_next_open_s",
        "_open_until_s",
        "_probes_out",
        "_random",
        "_run",
        "_settings",
        "_slow",
        "_tickets",
    )

    def __init__(self, settings: BreakerSettings, generator: Random) -> None:
        self._settings = settings
        self._random = generator
        self._generation = 0
        self._tickets: set[Ticket] = set()
        self._probes_out = 0
        self._good_probes = 0
        self._run = 0
        self._open_until_s: float | None = None  # None while closed
        self._next_open_s = settings.open_s
        self._errors = OutcomeWindow(span_s=settings.window_s, minimum_calls=settings.minimum_calls)
        self._slow = OutcomeWindow(span_s=settings.window_s, minimum_calls=settings.minimum_calls)

    @property
    def tickets_out(self) -> int:
        """Number of tickets not settled yet; 0 when nothing is in flight."""
        return len(self._tickets)

    @property
    def closed(self) -> bool:
        """Whether the breaker is closed, so that all calls are allowed."""
        return self._open_until_s is None

    def state(self, now_s: float) -> State:
        """The state at `now_s`; half-open from the exact end of the open time on."""
        if self._open_until_s is None:
            return "closed"
        return "open" if now_s < self._open_until_s else "half-open"

    def open_until_s(self, now_s: float) -> float | None:
        """End of the open time, on the clock of `now_s`; None unless open."""
        until_s = self._open_until_s
        return until_s if until_s is not None and now_s < until_s else None

    def allows(self, now_s: float) -> bool:
        """Whether `acquire` would return a ticket. Changes no state, so candidates can be filtered by it freely.

        Unsettled probes of an earlier half-open time still hold their slots, so the backend never has more than
        `probes`.
        """
        until_s = self._open_until_s
        return until_s is None or (now_s >= until_s and self._probes_out < self._settings.probes)

    def acquire(self, now_s: float) -> Ticket | None:
        """A ticket for one call, which is a probe while half-open; None if calls are not allowed now. Never waits."""
        if not self.allows(now_s):
            return None
        probe = self._open_until_s is not None
        ticket = Ticket(self._generation, probe)
        self._tickets.add(ticket)
        self._probes_out += probe
        return ticket

    def settle(self, ticket: Ticket, settled: Settled, latency_s: float, now_s: float) -> None:
        """End a call that took `latency_s`. Every result frees a probe's slot (resilience4j/resilience4j#544).

        A ticket from before the last trip or closing has no other effect, so late results neither lengthen an open time
        nor decide a half-open state. A ticket settled before, or from another breaker, is ignored.
        """
        if ticket not in self._tickets:
            return
        self._tickets.remove(ticket)
        self._probes_out -= ticket.probe
        if ticket.generation != self._generation or settled in UNINFORMATIVE:
            return
        failed = settled is FAILED
        slow = self._settings.slow_p99_s is not None and latency_s > self._settings.slow_p99_s
        if not ticket.probe:
            self._call_ended(failed, slow, now_s)
        elif failed or slow:
            # A slow probe counts as failed where slowness trips, as the closed breaker would trip again. One failed
            # probe suffices, whatever number is needed to trip from closed (nodeshift/opossum#119).
            self._trip(now_s)
        else:
            self._good_probe()

    def _call_ended(self, failed: bool, slow: bool, now_s: float) -> None:
        settings = self._settings
        self._run = self._run + 1 if failed else 0
        trips = settings.failures is not None and self._run >= settings.failures
        if settings.error_rate is not None:
            self._errors.record(failed, now_s)
            rate = self._errors.rate(now_s)
            trips |= rate is not None and rate >= settings.error_rate
        if settings.slow_p99_s is not None:
            self._slow.record(slow, now_s)
            trips |= self._p99_is_slow(now_s)
        if trips:
            self._trip(now_s)

    def _p99_is_slow(self, now_s: float) -> bool:
        """Whether the latency of rank ceil(.99 (W + 1)), at most the largest, exceeds the bound.

        True exactly if fewer calls than that rank were within the bound, so counting them is enough.
        """
        slow = self._slow.bad(now_s)
        if not slow:
            return False
        calls = self._slow.calls(now_s)
        within = calls - slow
        return calls >= self._settings.minimum_calls and within < min(rank(SLOW_QUANTILE, calls), calls)

    def _trip(self, now_s: float) -> None:
        self._generation += 1
        self._good_probes = 0
        self._open_until_s = now_s + self._draw_open_s()
        # No calls are counted until the breaker closes; it then starts with empty windows.
        self._run = 0
        self._errors.clear()
        self._slow.clear()

    def _draw_open_s(self) -> float:
        """Uniform in [T (1 - jitter), T (1 + jitter)] for T = open_s multiplier^k capped; never above the cap.

        Near the cap the draw is from the part of that range below the cap. Clipping the drawn value instead would let
        half of all capped breakers reopen to traffic at the same instant.
        """
        backoff = self._settings.backoff
        nominal_s = self._next_open_s
        self._next_open_s = min(nominal_s * backoff.multiplier, backoff.max_s)
        longest_s = min(nominal_s * (1 + backoff.jitter), backoff.max_s)
        return min(self._random.uniform(nominal_s * (1 - backoff.jitter), longest_s), longest_s)

    def _good_probe(self) -> None:
        self._good_probes += 1
        if self._good_probes >= self._settings.successes:
            self._generation += 1
            self._good_probes = 0
            self._open_until_s = None
            self._next_open_s = self._settings.open_s
