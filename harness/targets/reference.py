"""The reference balancer as a target: short settings, and claims that state exactly those."""

from __future__ import annotations

import importlib.metadata

from harness.balancer.breaker import BreakerSettings
from harness.balancer.health_score import HealthSettings
from harness.balancer.hedging import HedgeSettings
from harness.balancer.limits import AdmissionSettings, BucketSettings
from harness.balancer.loading import reference_spec
from harness.balancer.retry import RetrySettings
from harness.balancer.settings import UNCLAIMED, EjectionSettings, Settings
from harness.claims import (
    Affinity,
    Backoff,
    BoundedLoad,
    Breaker,
    Claims,
    Ejection,
    Failover,
    Feature,
    HealthChecks,
    HealthShare,
    Hedge,
    Limits,
    Retry,
    Spread,
)
from harness.frozen import stretched
from harness.targets.gateway_target import GatewayTarget

LIMITS = AdmissionSettings(requests=BucketSettings(rate_per_s=100.0, burst=20.0), concurrency=8, queue=16)
"""What the reference under test lets in where limits are on: so little that they can be put to the test live."""

COUNTED = (500, 502, 503, 504)
"""Answers that the balancer takes for failures: all from 500 on, of which these are claimed."""

SPARE_S = 0.5
"""From when the first attempts at a silent backend are given up until nobody is sent there any more."""

DEFAULTS = Settings(
    attempt_timeout_s=1.5,
    limits=LIMITS,
    ejection=EjectionSettings(failures=5, open_s=0.5, cap_share=0.5),
)
"""The reference as it is judged: with all that can be claimed."""


class ReferenceTarget(GatewayTarget):
    """The balancer of harness.balancer with its mechanisms, each of which can be switched off.

    Without `settings` it has `DEFAULTS`.
    """

    name = "reference"
    switches = frozenset(
        cls.table for cls in (BoundedLoad, Breaker, Ejection, HealthChecks, HealthShare, Hedge, Limits, Retry, Spread)
    ) | frozenset(UNCLAIMED)

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or DEFAULTS
        self.version = importlib.metadata.version("steelyard")
        self.claims = Claims(features=tuple(_features(self._settings)))

    def spec(self, off: frozenset[str]) -> str:
        """The settings with the mechanisms in `off` switched off."""
        return reference_spec(self._settings.without(off))

    def scaled(self, factor: float) -> ReferenceTarget:
        """Every time of the settings, and the claims with them, times `factor`."""
        longer = ReferenceTarget(stretched(self._settings, factor))
        longer.name = self.name
        longer.claims = stretched(self.claims, factor)
        return longer


def _features(settings: Settings) -> list[Feature]:
    """What is switched on, claimed with its numbers."""
    features: list[Feature] = [
        Affinity(key="header:x-model-id", algorithm="ring", virtual_nodes=settings.virtual_nodes),
        Failover(within_s=settings.attempt_timeout_s + SPARE_S),
    ]
    if settings.update_policy is not None:
        features.append(Spread(policy=settings.update_policy))
    if settings.bounded_load is not None:
        features.append(BoundedLoad(factor=settings.bounded_load))
    if settings.ejection is not None:
        ejection = settings.ejection
        cap_share = None if ejection.cap_share == 1 else ejection.cap_share
        features.append(Ejection(ejection.failures, ejection.open_s, COUNTED, cap_share))
    if (checks := settings.checks) is not None:
        features.append(HealthChecks(checks.interval_s, checks.timeout_s, checks.unhealthy, checks.healthy))
    if (breaker := settings.breaker) is not None:
        features.append(_breaker(breaker))
    if (health := settings.health) is not None:
        features.append(_health_share(health))
    if (hedge := settings.hedge) is not None:
        features.append(_hedge(hedge))
    if (limits := settings.limits) is not None and not (limits.requests is None and limits.concurrency is None):
        features.append(_limits(limits))
    if (retry := settings.retry) is not None:
        features.append(_retry(retry))
    return features


def _limits(limits: AdmissionSettings) -> Limits:
    """What is claimed of requests; of model tokens nothing can be."""
    rate = limits.requests
    return Limits(
        rate_per_s=None if rate is None else rate.rate_per_s,
        burst=1 if rate is None or rate.kind == "leaky" else max(1, int(rate.burst)),
        concurrency=limits.concurrency,
        queue=limits.queue,
        by_urgency=limits.queue > 0,
    )


def _breaker(breaker: BreakerSettings) -> Breaker:
    return Breaker(
        failures=breaker.failures,
        error_rate=breaker.error_rate,
        minimum_calls=breaker.minimum_calls,
        window_s=breaker.window_s,
        slow_p99_s=breaker.slow_p99_s,
        open_s=breaker.open_s,
        probes=breaker.probes,
        successes=breaker.successes,
        backoff=Backoff(breaker.multiplier, breaker.max_open_s, breaker.jitter),
    )


def _health_share(health: HealthSettings) -> HealthShare:
    return HealthShare(
        errors=health.errors,
        latency=health.latency,
        memory=health.memory,
        connections=health.connections,
        window_s=health.window_s,
        minimum_calls=health.minimum_calls,
        baseline_p99_s=health.baseline_p99_s,
        free_connections=health.free_connections,
        connection_span=health.connection_span,
    )


def _hedge(hedge: HedgeSettings) -> Hedge:
    return Hedge(
        quantile=hedge.quantile,
        share=hedge.share,
        window=hedge.window,
        minimum=hedge.minimum,
        burst=hedge.burst,
        load_threshold=hedge.load_threshold,
    )


def _retry(retry: RetrySettings) -> Retry:
    return Retry(
        attempts=retry.attempts,
        statuses=tuple(sorted(retry.statuses)),
        on_timeout=retry.on_timeout,
        budget_share=retry.budget_share,
        budget_floor=retry.budget_floor,
        budget_window_s=retry.budget_window_s,
        deadline_s=retry.deadline_s,
    )
