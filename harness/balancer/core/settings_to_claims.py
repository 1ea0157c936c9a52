"""Claims of the reference balancer, derived from its settings by equal names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from harness.balancer.requests.limits import AdmissionSettings
from harness.balancer.settings import EjectionSettings, Settings
from harness.claims.features import FEATURES, Affinity, AnyFeature, Ejection, Failover, Feature, Limits

FAILURE_STATUSES = (500, 502, 503, 504)
"""Claimed failure statuses. The balancer itself counts every status from 500 on as a failure."""

FAILOVER_MARGIN_S = 0.5
"""Time in seconds from the first attempt timeouts at a silent backend until no more requests are sent there."""


def claims_from_settings(settings: Settings) -> tuple[Feature, ...]:
    """Claims, with their numbers, of all mechanisms that are switched on."""
    return (
        Affinity(key="header:x-model-id", algorithm="ring", virtual_nodes=settings.virtual_nodes),
        Failover(within_s=settings.attempt_timeout_s + FAILOVER_MARGIN_S),
        *_switched_on(settings),
    )


def claim_of(feature: type[AnyFeature], part: Any) -> AnyFeature:
    """The claim of a mechanism with the settings `part`: fields of equal names, or a single number or policy.

    >>> from harness.balancer.requests.retry import RetrySettings
    >>> from harness.claims.features import BoundedLoad, Retry
    >>> claim_of(BoundedLoad, 1.5), claim_of(Retry, RetrySettings(attempts=4)).attempts
    (BoundedLoad(factor=1.5), 4)
    """
    names = [field.name for field in fields(feature)]
    if not is_dataclass(part):
        return feature(**{names[0]: part})
    return feature(**{name: _plain(getattr(part, name)) for name in names if hasattr(part, name)})


def _switched_on(settings: Settings) -> Iterator[Feature]:
    """Claims of the mechanisms that have a field of their name in the settings."""
    for name, feature in FEATURES.items():
        match getattr(settings, name, None):
            case None:
                continue
            case AdmissionSettings() as limits:
                yield from _limits(limits)
            case EjectionSettings() as ejection:
                yield replace(claim_of(Ejection, ejection), statuses=FAILURE_STATUSES)
            case part:
                yield claim_of(feature, part)


def _limits(limits: AdmissionSettings) -> Iterator[Limits]:
    """The claim of limits on requests, if there are any. Limits on model tokens cannot be claimed."""
    rate = limits.requests
    if rate is not None or limits.concurrency is not None:
        yield Limits(
            rate_per_s=None if rate is None else rate.rate_per_s,
            burst=1 if rate is None or rate.kind == "leaky" else max(1, int(rate.burst)),
            concurrency=limits.concurrency,
            queue=limits.queue,
            by_urgency=limits.queue > 0,
        )


def _plain(value: Any) -> Any:
    """Sets as sorted tuples, as claims have them."""
    return tuple(sorted(value)) if isinstance(value, frozenset) else value
