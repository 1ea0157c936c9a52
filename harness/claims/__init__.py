"""Claims: what a target promises, as one frozen class per feature, and the claims file that states them."""

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
