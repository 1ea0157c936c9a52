"""How healthy each backend is, from 0 to 1, and the share of traffic that follows from it.

    score = .4 (1 - error rate) + .3 min(1, baseline p99 / p99) + .2 (free + evictable memory) / total
            + .1 (1 up to 100 connections, then falling to 0 over the next 500)

A weight and not a gate: 0.6 beside 1, 1, 1 gets .6/3.6 of the traffic. What is unknown counts as good (too few calls,
no report), or newcomers could never show what they can. The sum alone lets a backend that fails everything keep 0.6,
its latency, memory and connections being fine; so what is known to be out weighs 0 whatever the score.
Latencies are those of good answers only: an error that comes fast is not speed (linkerd/linkerd2#11669).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from harness.balancer.health.windows import LatencyWindow, OutcomeWindow

QUANTILE = 0.99

BASELINE_EVERY_S = 0.1
"""How long the fleet's baseline holds: to work it out takes a look at all members, too much for every pick."""


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """Weights of the four components (they sum to 1) and what they are measured by.

    `free_connections` cost nothing, the next `connection_span` lower their component to 0. Calls count for `window_s`,
    the last `window_calls` of them at most, and a report counts for `window_s`: it has to be longer than the check
    interval. Fewer than `minimum_calls` say nothing. `baseline_p99_s` None: the median p99 of the fleet, as of
    `BASELINE_EVERY_S` ago at most.
    ValueError for numbers that make no sense.
    """

    errors: float = 0.4
    latency: float = 0.3
    memory: float = 0.2
    connections: float = 0.1
    free_connections: int = 100
    connection_span: int = 500
    window_s: float = 10.0
    minimum_calls: int = 20
    baseline_p99_s: float | None = None
    window_calls: int = 1000

    def __post_init__(self) -> None:
        weights = (self.errors, self.latency, self.memory, self.connections)
        if not all(weight >= 0 for weight in weights) or not math.isclose(math.fsum(weights), 1.0):
            raise ValueError(f"weights {weights}: expected 0 or more each, and a sum of 1")
        if self.free_connections < 0 or self.connection_span < 1:
            raise ValueError(
                f"free_connections {self.free_connections} and connection_span {self.connection_span}: expected 0 or"
                " more, and 1 or more"
            )
        if not 0 < self.window_s < math.inf or not 1 <= self.minimum_calls <= self.window_calls:
            raise ValueError(
                f"window_s {self.window_s}, minimum_calls {self.minimum_calls} and window_calls {self.window_calls}:"
                " expected above 0, 1 or more, and minimum_calls or more"
            )
        if self.baseline_p99_s is not None and not 0 < self.baseline_p99_s < math.inf:
            raise ValueError(f"baseline_p99_s {self.baseline_p99_s}: expected above 0, or None")


class Components(NamedTuple):
    """The four components of a score, each from 0 (bad) to 1 (good, or not known)."""

    errors: float
    latency: float
    memory: float
    connections: float


def free_share(total_mb: float, used_mb: float, evictable_mb: float) -> float | None:
    """Share of a GPU's memory that a request could get, 0 to 1; None for figures that can't be true.

    Weights and cache blocks that are idle count as free: they give way when room is needed. Otherwise a backend looks
    ill for being warm, and a cold one attractive.
    """
    figures = (total_mb, used_mb, evictable_mb)
    if not all(math.isfinite(figure) and figure >= 0 for figure in figures) or total_mb == 0:
        return None
    return min(1.0, max(0.0, (total_mb - used_mb + evictable_mb) / total_mb))


def shares(weights: Mapping[str, float]) -> dict[str, float]:
    """Each backend's share of the traffic, in proportion to its weight; all 0 if nobody weighs anything.

    ValueError for a weight that is negative or no number.
    """
    for backend, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise ValueError(f"weight {weight} of {backend}: expected 0 or more")
    total = math.fsum(weights.values())
    return {backend: weight / total if total else 0.0 for backend, weight in weights.items()}


@dataclass(slots=True)
class _Vitals:
    outcomes: OutcomeWindow
    latencies: LatencyWindow
    free_share: float | None = None
    reported_s: float = 0.0
    connections: int = 0


class HealthScore:
    """Scores of the members; see the module. `now_s` is the caller's clock, which never goes back.

    Members are named by `keep_only`; what is told about others is ignored, and asking about them is a KeyError.
    """

    __slots__ = ("_baseline", "_baseline_due_s", "_settings", "_vitals")

    def __init__(self, settings: HealthSettings) -> None:
        self._settings = settings
        self._vitals: dict[str, _Vitals] = {}
        self._baseline: float | None = None
        self._baseline_due_s = -math.inf

    def keep_only(self, backends: frozenset[str]) -> None:
        """Make these the members. Those who stay keep what is known of them; who returns starts clean."""
        self._vitals = {name: self._vitals.get(name) or self._newcomer() for name in sorted(backends)}
        self._baseline_due_s = -math.inf

    def settle(self, backend: str, ok: bool, latency_s: float, now_s: float) -> None:
        """A call ended, after `latency_s`. Not for what says nothing of its backend: 4xx and cancelled calls."""
        vitals = self._vitals.get(backend)
        if vitals is None:
            return
        vitals.outcomes.record(not ok, now_s)
        if ok:
            vitals.latencies.record(latency_s, now_s)

    def report(
        self, backend: str, memory_total_mb: float, memory_used_mb: float, memory_evictable_mb: float, now_s: float
    ) -> None:
        """What a backend says of its memory, in MB. Figures that can't be true count as no report."""
        vitals = self._vitals.get(backend)
        if vitals is not None:
            vitals.free_share = free_share(memory_total_mb, memory_used_mb, memory_evictable_mb)
            vitals.reported_s = now_s

    def connections(self, backend: str, count: int) -> None:
        """How many connections to a backend are active now."""
        vitals = self._vitals.get(backend)
        if vitals is not None:
            vitals.connections = count

    def components(self, backend: str, now_s: float) -> Components:
        """What a backend's score is made of."""
        settings = self._settings
        vitals = self._vitals[backend]
        rate = vitals.outcomes.rate(now_s)
        reported = vitals.free_share is not None and now_s < vitals.reported_s + settings.window_s
        above = (vitals.connections - settings.free_connections) / settings.connection_span
        return Components(
            errors=1.0 if rate is None else 1.0 - rate,
            latency=self._latency(vitals, now_s),
            memory=vitals.free_share if reported and vitals.free_share is not None else 1.0,
            connections=min(1.0, max(0.0, 1.0 - above)),
        )

    def score(self, backend: str, now_s: float) -> float:
        """A backend's score, 0 to 1; exactly 1 while nothing speaks against it."""
        settings = self._settings
        parts = self.components(backend, now_s)
        terms = (
            settings.errors * parts.errors,
            settings.latency * parts.latency,
            settings.memory * parts.memory,
            settings.connections * parts.connections,
        )
        return min(1.0, math.fsum(terms))

    def weight(
        self, backend: str, now_s: float, *, ready: bool, breaker_open: bool, check_failed: bool = False
    ) -> float:
        """The score, or 0 for a backend that is not ready, behind an open breaker, or whose health checks fail."""
        if not ready or breaker_open or check_failed:
            return 0.0
        return self.score(backend, now_s)

    def _newcomer(self) -> _Vitals:
        settings = self._settings
        return _Vitals(
            OutcomeWindow(span_s=settings.window_s, calls=settings.window_calls, minimum_calls=settings.minimum_calls),
            LatencyWindow(span_s=settings.window_s, calls=settings.window_calls, minimum_calls=settings.minimum_calls),
        )

    def _latency(self, vitals: _Vitals, now_s: float) -> float:
        p99_s = vitals.latencies.quantile_s(QUANTILE, now_s)
        if p99_s is None:
            return 1.0
        baseline_s = self._baseline_s(now_s)
        return 1.0 if baseline_s is None or p99_s <= baseline_s else baseline_s / p99_s

    def _baseline_s(self, now_s: float) -> float | None:
        if self._settings.baseline_p99_s is not None:
            return self._settings.baseline_p99_s
        if now_s >= self._baseline_due_s:
            found = [vitals.latencies.quantile_s(QUANTILE, now_s) for vitals in self._vitals.values()]
            known = [p99_s for p99_s in found if p99_s is not None]
            self._baseline = median(known) if known else None
            self._baseline_due_s = now_s + BASELINE_EVERY_S
        return self._baseline
