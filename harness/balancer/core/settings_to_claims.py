"""Claims of the reference balancer, derived from its settings number for number."""

from __future__ import annotations

from harness.balancer.health.breaker import BreakerSettings
from harness.balancer.health.health_score import HealthSettings
from harness.balancer.requests.hedging import HedgeSettings
from harness.balancer.requests.limits import AdmissionSettings
from harness.balancer.requests.retry import RetrySettings
from harness.balancer.settings import Settings
from harness.claims.features import (
    Affinity,
    Backoff,
    BoundedLoad,
    Breaker,
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

FAILURE_STATUSES = (500, 502, 503, 504)
"""Claimed failure statuses. The balancer itself counts every status from 500 on as a failure."""

FAILOVER_MARGIN_S = 0.5
"""Time in seconds from the first attempt timeouts at a silent backend until no more requests are sent there."""


def claims_from_settings(settings: Settings) -> tuple[Feature, ...]:
    """Claims, with their numbers, of all mechanisms that are switched on."""
    features: list[Feature] = [
        Affinity(key="header:x-model-id", algorithm="ring", virtual_nodes=settings.virtual_nodes),
        Failover(within_s=settings.attempt_timeout_s + FAILOVER_MARGIN_S),
    ]
    if settings.update_policy is not None:
        features.append(Spread(policy=settings.update_policy))
    if settings.bounded_load is not None:
        features.append(BoundedLoad(factor=settings.bounded_load))
    if settings.ejection is not None:
        ejection = settings.ejection
        cap_share = None if ejection.cap_share == 1 else ejection.cap_share
        features.append(Ejection(ejection.failures, ejection.open_s, FAILURE_STATUSES, cap_share))
    if (checks := settings.checks) is not None:
        features.append(HealthChecks(checks.interval_s, checks.timeout_s, checks.unhealthy, checks.healthy))
    if (breaker := settings.breaker) is not None:
        features.append(breaker_claim(breaker))
    if (health := settings.health) is not None:
        features.append(health_share_claim(health))
    if (hedge := settings.hedge) is not None:
        features.append(hedge_claim(hedge))
    if (limits := settings.limits) is not None and not (limits.requests is None and limits.concurrency is None):
        features.append(limits_claim(limits))
    if (retry := settings.retry) is not None:
        features.append(retry_claim(retry))
    return tuple(features)


def limits_claim(limits: AdmissionSettings) -> Limits:
    """Claim for limits on requests. Limits on model tokens cannot be claimed."""
    rate = limits.requests
    return Limits(
        rate_per_s=None if rate is None else rate.rate_per_s,
        burst=1 if rate is None or rate.kind == "leaky" else max(1, int(rate.burst)),
        concurrency=limits.concurrency,
        queue=limits.queue,
        by_urgency=limits.queue > 0,
    )


def breaker_claim(breaker: BreakerSettings) -> Breaker:
    """Claim for a breaker with these settings."""
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


def health_share_claim(health: HealthSettings) -> HealthShare:
    """Claim for a health score with these settings."""
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


def hedge_claim(hedge: HedgeSettings) -> Hedge:
    """Claim for hedging with these settings."""
    return Hedge(
        quantile=hedge.quantile,
        share=hedge.share,
        window=hedge.window,
        minimum=hedge.minimum,
        burst=hedge.burst,
        load_threshold=hedge.load_threshold,
    )


def retry_claim(retry: RetrySettings) -> Retry:
    """Claim for retries with these settings."""
    return Retry(
        attempts=retry.attempts,
        statuses=tuple(sorted(retry.statuses)),
        on_timeout=retry.on_timeout,
        budget_share=retry.budget_share,
        budget_floor=retry.budget_floor,
        budget_window_s=retry.budget_window_s,
        deadline_s=retry.deadline_s,
    )
