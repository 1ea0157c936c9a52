"""What a target says it does, with its numbers: one frozen class for each feature, and the file that states them."""

from harness.claims.features import (
    FEATURES,
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

__all__ = [
    "FEATURES",
    "Affinity",
    "Backoff",
    "BoundedLoad",
    "Breaker",
    "Claims",
    "Ejection",
    "Failover",
    "Feature",
    "HealthChecks",
    "HealthShare",
    "Hedge",
    "Limits",
    "Retry",
    "Spread",
]
