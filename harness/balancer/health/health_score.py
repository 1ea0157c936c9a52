"""Health score of each backend, from 0 to 1, and its resulting share of the traffic.

    score = .4 (1 - error rate) + .3 min(1, baseline p99 / p99) + .2 (free + evictable memory) / total
            + .1 (1 up to 100 connections, then falling to 0 over the next 500)

The score is a weight, not a gate: 0.6 beside 1, 1, 1 gets .6/3.6 of the traffic. Unknown components count as good (too
few calls, no report), else newcomers would get no traffic to be measured by. A backend that fails all calls keeps 0.6
by the sum alone if its latency, memory and connections are good; so a backend known to be out has weight 0 whatever its
score. Latencies are those of good answers only: a fast error is not a fast backend (linkerd/linkerd2#11669).
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
"""Lifetime of the fleet's baseline in seconds: computing it examines all members, which is too slow for every pick."""


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """Weights of the four components (their sum is 1) and the scales that they are measured by.

    The first `free_connections` do not lower their component; the next `connection_span` lower it to 0. Calls count for
    `window_s`, at most the last `window_calls`; a report counts for `window_s`, which must be longer than the check
    interval. Fewer than `minimum_calls` count as unknown. `baseline_p99_s` None: the median p99 of the fleet, at most
    `BASELINE_EVERY_S` old. ValueError for numbers out of range.
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
    """The four components of a score, each from 0 (bad) to 1 (good or unknown)."""

    errors: float
    latency: float
    memory: float
    connections: float


def free_share(total_mb: float, used_mb: float, evictable_mb: float) -> float | None:
    """Share of a GPU's memory available to a request, 0 to 1; None for impossible figures.

    Idle weights and cache blocks count as free, as they are evicted when memory is needed. Otherwise a warm backend
    would score low and a cold one high.
    """
    figures = (total_mb, used_mb, evictable_mb)
    if not all(math.isfinite(figure) and figure >= 0 for figure in figures) or total_mb == 0:
        return None
    return min(1.0, max(0.0, (total_mb - used_mb + evictable_mb) / total_mb))


def shares(weights: Mapping[str, float]) -> dict[str, float]:
    """Each backend's share of the traffic, in proportion to its weight; all 0 if no weight is above 0.

    ValueError for a weight that is negative or not finite.
    """
    for backend, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise ValueError(f"weight {weight} of {backend}: expected 0 or more")
    total = math.fsum(weights.values())
    return {backend: weight / total if total else 0.0 for backend, weight in weights.items()}


@dataclass(slots=True)
class _Measurements:
    outcomes: OutcomeWindow
    latencies: LatencyWindow
    free_share: float | None = None
    reported_s: float = 0.0
    connections: int = 0


class HealthScore:
    """Scores of the members; see the module. `now_s` is the caller's monotonic clock.

    Members are set by `keep_only`; results and reports of other backends are ignored, and queries for them raise
    KeyError.
    """

    __slots__ = ("_baseline", "_baseline_due_s", "_measurements", "_settings")

    def __init__(self, settings: HealthSettings) -> None:
        self._settings = settings
        self._measurements: dict[str, _Measurements] = {}
        self._baseline: float | None = None
        self._baseline_due_s = -math.inf

    def keep_only(self, backends: frozenset[str]) -> None:
        """Replace the members. Remaining members keep their measurements; a returning one starts clean."""
        self._measurements = {
            name: self._measurements.get(name) or self._no_measurements() for name in sorted(backends)
        }
        self._baseline_due_s = -math.inf

    def settle(self, backend: str, ok: bool, latency_s: float, now_s: float) -> None:
        """Record a call that ended after `latency_s`. Not to be called for 4xx and cancelled calls."""
        measured = self._measurements.get(backend)
        if measured is None:
            return
        measured.outcomes.record(not ok, now_s)
        if ok:
            measured.latencies.record(latency_s, now_s)

    def report(
        self, backend: str, memory_total_mb: float, memory_used_mb: float, memory_evictable_mb: float, now_s: float
    ) -> None:
        """Record a backend's memory report, in MB. Impossible figures count as no report."""
        measured = self._measurements.get(backend)
        if measured is not None:
            measured.free_share = free_share(memory_total_mb, memory_used_mb, memory_evictable_mb)
            measured.reported_s = now_s

    def connections(self, backend: str, count: int) -> None:
        """Record the number of active connections to a backend."""
        measured = self._measurements.get(backend)
        if measured is not None:
            measured.connections = count

    def components(self, backend: str, now_s: float) -> Components:
        """The components of a backend's score."""
        settings = self._settings
        measured = self._measurements[backend]
        rate = measured.outcomes.rate(now_s)
        reported = measured.free_share is not None and now_s < measured.reported_s + settings.window_s
        above = (measured.connections - settings.free_connections) / settings.connection_span
        return Components(
            errors=1.0 if rate is None else 1.0 - rate,
            latency=self._latency(measured, now_s),
            memory=measured.free_share if reported and measured.free_share is not None else 1.0,
            connections=min(1.0, max(0.0, 1.0 - above)),
        )

    def score(self, backend: str, now_s: float) -> float:
        """A backend's score, 0 to 1; exactly 1 while all components are 1."""
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

    def _no_measurements(self) -> _Measurements:
        settings = self._settings
        return _Measurements(
            OutcomeWindow(span_s=settings.window_s, calls=settings.window_calls, minimum_calls=settings.minimum_calls),
            LatencyWindow(span_s=settings.window_s, calls=settings.window_calls, minimum_calls=settings.minimum_calls),
        )

    def _latency(self, measured: _Measurements, now_s: float) -> float:
        p99_s = measured.latencies.quantile_s(QUANTILE, now_s)
        if p99_s is None:
            return 1.0
        baseline_s = self._baseline_s(now_s)
        return 1.0 if baseline_s is None or p99_s <= baseline_s else baseline_s / p99_s

    def _baseline_s(self, now_s: float) -> float | None:
        if self._settings.baseline_p99_s is not None:
            return self._settings.baseline_p99_s
        if now_s >= self._baseline_due_s:
            found = [measured.latencies.quantile_s(QUANTILE, now_s) for measured in self._measurements.values()]
            known = [p99_s for p99_s in found if p99_s is not None]
            self._baseline = median(known) if known else None
            self._baseline_due_s = now_s + BASELINE_EVERY_S
        return self._baseline
