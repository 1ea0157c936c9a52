"""Metrics of a live balancer in the Prometheus exposition format. Each balancer has its own registry.

Requests are counted when they end. The series of a backend disappear when it has left and has no attempt in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from harness.gateway.protocol import MemberReport
from harness.proxy.upstreams import Upstreams

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Histogram bounds in seconds, from a cached answer to a long completion."""

SHED = frozenset({"over the limit", "displaced by urgency"})
"""Reasons of a gateway's own answers that count as load shedding; status 429 always does."""

MOST_REASONS = 20
"""Limit on distinct `reason` labels, as a custom gateway may give any reason; further ones become "other"."""

BREAKER_STATES = ("closed", "open", "half-open")

Conditions = Callable[[str], MemberReport | None]


class Meters:
    """Metrics of one balancer. `conditions` returns the gateway's report on a member, if any. `gauge` adds a metric."""

    def __init__(self, upstreams: Upstreams, conditions: Conditions) -> None:
        self.registry = CollectorRegistry()
        self._reasons: set[str] = set()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "steelyard_requests",
            "Finished client requests, by outcome and status class of the answer.",
            ("outcome", "status"),
            registry=self.registry,
        )
        self._rejected = Counter(
            "steelyard_rejected_requests",
            "Requests answered by the balancer itself without any attempt, by reason; shed requests not included.",
            ("reason",),
            registry=self.registry,
        )
        self._shed = Counter(
            "steelyard_shed_requests",
            "Requests rejected because of a limit, by reason.",
            ("reason",),
            registry=self.registry,
        )
        self._retries = Counter("steelyard_retries", "Attempts after a failed one.", registry=self.registry)
        self._hedges = Counter("steelyard_hedges", "Attempts beside a slow one.", registry=self.registry)
        self._duration = Histogram(
            "steelyard_request_duration_seconds",
            "From a request's last byte to the end of its answer.",
            registry=self.registry,
            buckets=BUCKETS_S,
        )
        self._first_byte = Histogram(
            "steelyard_time_to_first_byte_seconds",
            "From a request's last byte to the first byte of a backend's answer.",
            registry=self.registry,
            buckets=BUCKETS_S,
        )
        self.registry.register(_ByBackend(upstreams, conditions))

    def gauge(self, name: str, documentation: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is read at each scrape."""
        self.registry.register(_Gauge(name, documentation, value))

    # --- counting -------------------------------------------------------------------------------------

    def another_attempt(self, hedge: bool) -> None:
        """Count an attempt after a request's first: a hedge if an earlier attempt is still running, else a retry."""
        (self._hedges if hedge else self._retries).inc()

    def first_byte(self, seconds: float) -> None:
        """Record the time to the first byte of a backend's answer, or to all of a short one."""
        self._first_byte.observe(seconds)

    def answered(self, status: int, seconds: float) -> None:
        """Count a complete answer of a backend."""
        self._finished("answered", _class(status), seconds)

    def own_answer(self, status: int, reason: str, seconds: float, tried: int) -> None:
        """Count an answer of the gateway itself, after `tried` attempts."""
        if tried:
            outcome = "failed"
        elif status == 429 or reason in SHED:
            outcome = "shed"
            self._shed.labels(self._reason_label(reason)).inc()
        else:
            outcome = "rejected"
            self._rejected.labels(self._reason_label(reason)).inc()
        self._finished(outcome, _class(status), seconds)

    def left(self, seconds: float, broken: bool) -> None:
        """Count a request without a complete answer: its client left, or (`broken`) the backend's answer broke off."""
        self._finished("broken" if broken else "client_gone", "none", seconds)

    def _finished(self, outcome: str, status: str, seconds: float) -> None:
        self._requests.labels(outcome, status).inc()
        self._duration.observe(seconds)

    def _reason_label(self, reason: str) -> str:
        if reason not in self._reasons and len(self._reasons) >= MOST_REASONS:
            return "other"
        self._reasons.add(reason)
        return reason

    # --- exposition -------------------------------------------------------------------------------------

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All metrics as text and their content type, in the format that the Accept header prefers."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


def _class(status: int) -> str:
    return f"{status // 100}xx"


class _Gauge(Collector):
    def __init__(self, name: str, documentation: str, value: Callable[[], float]) -> None:
        self._name = name
        self._meaning = documentation
        self._value = value

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(self._name, self._meaning, value=self._value())


class _ByBackend(Collector):
    """Metrics by backend, computed from the list at each scrape, so that none outlives its backend."""

    def __init__(self, upstreams: Upstreams, conditions: Conditions) -> None:
        self._upstreams = upstreams
        self._conditions = conditions

    def describe(self) -> Iterator[Metric]:
        """Nothing: the names are unique to this module, so no check for duplicates is needed."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        by = ("backend",)
        picks = CounterMetricFamily("steelyard_picks", "Attempts sent to a backend.", labels=by)
        attempts = CounterMetricFamily(
            "steelyard_attempts",
            "Finished attempts: by the status class of a complete answer, or by the error.",
            labels=("backend", "outcome"),
        )
        in_flight = GaugeMetricFamily("steelyard_backend_in_flight", "Attempts in flight.", labels=by)
        weight = GaugeMetricFamily("steelyard_backend_weight", "Configured weight.", labels=by)
        draining = GaugeMetricFamily("steelyard_backend_draining", "1: gets no new requests.", labels=by)
        ready = GaugeMetricFamily("steelyard_backend_ready", "1: may get traffic now.", labels=by)
        score = GaugeMetricFamily("steelyard_backend_health_score", "Health score, 0 to 1.", labels=by)
        breaker = GaugeMetricFamily(
            "steelyard_breaker_state", "1 for the current state of the breaker.", labels=("backend", "state")
        )
        for item in self._upstreams.listed:
            name = [item.backend.id]
            picks.add_metric(name, item.picks)
            for outcome, count in item.outcomes.items():
                attempts.add_metric([*name, outcome], count)
            in_flight.add_metric(name, item.in_flight)
            weight.add_metric(name, item.backend.weight)
            draining.add_metric(name, item.draining)
            condition = None if item.draining else self._conditions(item.backend.id)
            if condition is None:
                continue
            ready.add_metric(name, condition.ready)
            if condition.score is not None:
                score.add_metric(name, condition.score)
            if condition.breaker is not None:
                for state in BREAKER_STATES:
                    breaker.add_metric([*name, state], condition.breaker == state)
        yield from (picks, attempts, in_flight, weight, draining, ready, score, breaker)
        yield GaugeMetricFamily(
            "steelyard_backends_remembered",
            "Backends with any kept state: listed ones, and removed ones with attempts in flight.",
            value=self._upstreams.remembered,
        )


def tasks() -> float:
    """Number of tasks of the running event loop."""
    return float(len(asyncio.all_tasks()))
