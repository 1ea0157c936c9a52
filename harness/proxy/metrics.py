"""What a live balancer counts, in the exposition format of Prometheus. Nothing global: each has a registry of its own.

Requests are counted once they are over. What is told by backend goes with the backend: once one that left has nothing
in flight any more, no series bears its name.
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
"""From a cached answer to a long completion."""

SHED = frozenset({"over the limit", "displaced by urgency"})
"""Reasons of a gateway's own answers that mean shedding load; 429 always does."""

MOST_REASONS = 20
"""A stranger's gateway may give any reason; so many are told apart."""

BREAKER_STATES = ("closed", "open", "half-open")

Conditions = Callable[[str], MemberReport | None]


class Meters:
    """Counts of one balancer. `conditions` tells of a member what its gateway knows of it, if it does; see `gauge`."""

    def __init__(self, upstreams: Upstreams, conditions: Conditions) -> None:
        self.registry = CollectorRegistry()
        self._reasons: set[str] = set()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "steelyard_requests",
            "Client requests that are over, by outcome and status class of the answer.",
            ("outcome", "status"),
            registry=self.registry,
        )
        self._rejected = Counter(
            "steelyard_rejected_requests",
            "Requests that were answered by the balancer itself without any attempt, by reason; not those it shed.",
            ("reason",),
            registry=self.registry,
        )
        self._shed = Counter(
            "steelyard_shed_requests",
            "Requests that were turned away because of a limit, by reason.",
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
            "From a request's last byte to the first of a backend's answer.",
            registry=self.registry,
            buckets=BUCKETS_S,
        )
        self.registry.register(_ByBackend(upstreams, conditions))

    def gauge(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """One more figure, read at each scrape."""
        self.registry.register(_Read(name, meaning, value))

    # --- what happens -------------------------------------------------------------------------------------

    def another_attempt(self, hedge: bool) -> None:
        """A request gets an attempt that is not its first: `hedge` if an earlier one is still wanted."""
        (self._hedges if hedge else self._retries).inc()

    def first_byte(self, seconds: float) -> None:
        """The first byte of a backend's answer is here, or the whole of a short one."""
        self._first_byte.observe(seconds)

    def answered(self, status: int, seconds: float) -> None:
        """A backend's answer came whole."""
        self._over("answered", _class(status), seconds)

    def own_answer(self, status: int, reason: str, seconds: float, tried: int) -> None:
        """The gateway answered by itself, after `tried` attempts."""
        if tried:
            outcome = "failed"
        elif status == 429 or reason in SHED:
            outcome = "shed"
            self._shed.labels(self._told(reason)).inc()
        else:
            outcome = "rejected"
            self._rejected.labels(self._told(reason)).inc()
        self._over(outcome, _class(status), seconds)

    def left(self, seconds: float, broken: bool) -> None:
        """A request ended without a whole answer: its client left, or (`broken`) its backend died in the answer."""
        self._over("broken" if broken else "client_gone", "none", seconds)

    def _over(self, outcome: str, status: str, seconds: float) -> None:
        self._requests.labels(outcome, status).inc()
        self._duration.observe(seconds)

    def _told(self, reason: str) -> str:
        if reason not in self._reasons and len(self._reasons) >= MOST_REASONS:
            return "other"
        self._reasons.add(reason)
        return reason

    # --- what is told -------------------------------------------------------------------------------------

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All figures as text, with its content type, in the form that an Accept header prefers."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


def _class(status: int) -> str:
    return f"{status // 100}xx"


class _Read(Collector):
    def __init__(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        self._name = name
        self._meaning = meaning
        self._value = value

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(self._name, self._meaning, value=self._value())


class _ByBackend(Collector):
    """Figures by backend, made afresh from the list at each scrape: so none outlives its backend."""

    def __init__(self, upstreams: Upstreams, conditions: Conditions) -> None:
        self._upstreams = upstreams
        self._conditions = conditions

    def describe(self) -> Iterator[Metric]:
        """Nothing: their names are this module's own and do not clash."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        by = ("backend",)
        picks = CounterMetricFamily("steelyard_picks", "Attempts sent to a backend.", labels=by)
        attempts = CounterMetricFamily(
            "steelyard_attempts",
            "Attempts that are over: by the status class of a whole answer, or by how they broke off.",
            labels=("backend", "outcome"),
        )
        in_flight = GaugeMetricFamily("steelyard_backend_in_flight", "Attempts in flight.", labels=by)
        weight = GaugeMetricFamily("steelyard_backend_weight", "Configured weight.", labels=by)
        draining = GaugeMetricFamily("steelyard_backend_draining", "1: gets nothing new.", labels=by)
        ready = GaugeMetricFamily("steelyard_backend_ready", "1: may get traffic now.", labels=by)
        score = GaugeMetricFamily("steelyard_backend_health_score", "Health score, 0 to 1.", labels=by)
        breaker = GaugeMetricFamily(
            "steelyard_breaker_state", "1 for the state that the breaker is in.", labels=("backend", "state")
        )
        for item in self._upstreams.listed:
            name = [item.place.id]
            picks.add_metric(name, item.picks)
            for outcome, count in item.outcomes.items():
                attempts.add_metric([*name, outcome], count)
            in_flight.add_metric(name, item.in_flight)
            weight.add_metric(name, item.place.weight)
            draining.add_metric(name, item.draining)
            condition = None if item.draining else self._conditions(item.place.id)
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
            "Backends of which anything is kept: the listed ones, and those that left with something in flight.",
            value=self._upstreams.remembered,
        )


def tasks() -> float:
    """Tasks of the running loop."""
    return float(len(asyncio.all_tasks()))
