"""The reference balancer as a target: short settings, and claims that state exactly those."""

from __future__ import annotations

import importlib.metadata

from harness.balancer.loading import reference_spec
from harness.balancer.settings import Settings
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
    Retry,
    Spread,
)
from harness.frozen import stretched
from harness.targets.gateway_target import GatewayTarget


class ReferenceTarget(GatewayTarget):
    """The balancer of harness.balancer with its mechanisms, each of which can be switched off."""

    name = "reference"
    switches = frozenset(
        cls.table for cls in (BoundedLoad, Breaker, Ejection, HealthChecks, HealthShare, Hedge, Retry, Spread)
    )

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self.version = importlib.metadata.version("steelyard")
        self.claims = Claims(features=tuple(_features(self._settings)))

    def spec(self, off: frozenset[str]) -> str:
        """The settings with the mechanisms in `off` switched off."""
        return reference_spec(self._settings.without(off))

    def scaled(self, factor: float) -> ReferenceTarget:
        """Every time of the settings, and the claims with them, times `factor`."""
        longer = ReferenceTarget(stretched(self._settings, factor))
        longer.claims = stretched(self.claims, factor)
        return longer


def _features(settings: Settings) -> list[Feature]:
    """What is switched on, claimed with its numbers."""
    features: list[Feature] = [
        Affinity(key="header:x-model-id", algorithm="ring", virtual_nodes=settings.virtual_nodes),
        Failover(within_s=2.5),
    ]
    if settings.update_policy is not None:
        features.append(Spread(policy=settings.update_policy))
    if settings.bounded_load is not None:
        features.append(BoundedLoad(factor=settings.bounded_load))
    if settings.ejection is not None:
        features.append(Ejection(failures=settings.ejection.failures, open_s=settings.ejection.open_s))
    if (checks := settings.checks) is not None:
        features.append(HealthChecks(checks.interval_s, checks.timeout_s, checks.unhealthy, checks.healthy))
    if (breaker := settings.breaker) is not None:
        features.append(
            Breaker(
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
        )
    if (health := settings.health) is not None:
        features.append(
            HealthShare(
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
        )
    if (hedge := settings.hedge) is not None:
        features.append(
            Hedge(
                quantile=hedge.quantile,
                share=hedge.share,
                window=hedge.window,
                minimum=hedge.minimum,
                burst=hedge.burst,
                load_threshold=hedge.load_threshold,
            )
        )
    if (retry := settings.retry) is not None:
        features.append(
            Retry(
                attempts=retry.attempts,
                statuses=tuple(sorted(retry.statuses)),
                on_timeout=retry.on_timeout,
                budget_share=retry.budget_share,
                budget_floor=retry.budget_floor,
                budget_window_s=retry.budget_window_s,
                deadline_s=retry.deadline_s,
            )
        )
    return features
