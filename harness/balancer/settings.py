"""All settings of the reference balancer; a mechanism whose field is None is off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from harness.balancer.health.breaker import BreakerSettings
from harness.balancer.health.health_score import HealthSettings
from harness.balancer.health.readiness import RotationSettings
from harness.balancer.picking.load_table import LoadSettings
from harness.balancer.picking.session_affinity import AffinitySettings
from harness.balancer.requests.hedging import HedgeSettings
from harness.balancer.requests.limits import AdmissionSettings
from harness.balancer.requests.retry import RetrySettings
from harness.claims.features import (
    BoundedLoad,
    Breaker,
    Ejection,
    HealthChecks,
    HealthShare,
    Hedge,
    Limits,
    Retry,
    Spread,
)
from harness.gateway.expected_answer import STATUS_200, ExpectedAnswer

SWITCHES: Mapping[str, str] = MappingProxyType(
    {
        BoundedLoad.table: "bounded_load",
        Breaker.table: "breaker",
        Ejection.table: "ejection",
        HealthChecks.table: "checks",
        HealthShare.table: "health",
        Hedge.table: "hedge",
        Limits.table: "limits",
        Retry.table: "retry",
        Spread.table: "update_policy",
        "sessions": "sessions",
        "slow_start": "slow_start",
    }
)
"""Mechanisms that can be switched off: name (the claim's table, except for the last two) and field set to None."""


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """Active health checks: see harness.balancer.health.readiness.

    `rotation` None: the answers alone decide which backends are in rotation; reports of load and memory do not, and
    there is no guard.
    """

    interval_s: float = 0.5
    timeout_s: float = 1.0
    unhealthy: int = 2
    healthy: int = 1
    expected: ExpectedAnswer = STATUS_200
    rotation: RotationSettings | None = None


@dataclass(frozen=True, slots=True)
class EjectionSettings:
    """Passive ejection, a simpler alternative to the breaker: see harness.balancer.health.ejection."""

    failures: int = 3
    open_s: float = 1.0
    cap_share: float = 1.0


@dataclass(frozen=True, slots=True)
class SlowStartSettings:
    """Weight ramp of backends that enter rotation: see harness.balancer.health.slow_start."""

    window_s: float
    minimum_share: float = 0.1
    aggression: float = 1.0


def _breaker() -> BreakerSettings:
    """Short times that keep suites within seconds: open for 0.5 s, doubled up to 1.5 s, each within ± 20 %."""
    return BreakerSettings(
        failures=5,
        error_rate=0.5,
        minimum_calls=20,
        window_s=2.0,
        slow_p99_s=0.25,
        open_s=0.5,
        probes=1,
        successes=2,
        multiplier=2.0,
        max_open_s=1.5,
        jitter=0.2,
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """The reference balancer. `commit_at`: commit an attempt at its good "head" or only at its "first_byte".

    `update_policy`: one of harness.balancer.picking.policies.POLICIES; None distributes updates by health alone.
    """

    virtual_nodes: int = 150
    attempt_timeout_s: float = 2.0
    commit_at: str = "head"
    update_policy: str | None = "two_choices"
    bounded_load: float | None = 1.25
    checks: CheckSettings | None = field(default_factory=CheckSettings)
    ejection: EjectionSettings | None = None
    breaker: BreakerSettings | None = field(default_factory=_breaker)
    health: HealthSettings | None = field(default_factory=lambda: HealthSettings(window_s=2.0))
    hedge: HedgeSettings | None = field(
        default_factory=lambda: HedgeSettings(window=200, minimum=40, load_threshold=32.0)
    )
    retry: RetrySettings | None = field(default_factory=lambda: RetrySettings(budget_window_s=1.0, deadline_s=3.0))
    sessions: AffinitySettings | None = field(default_factory=AffinitySettings)
    limits: AdmissionSettings | None = None
    slow_start: SlowStartSettings | None = None
    load: LoadSettings = field(default_factory=LoadSettings)
    drain_deadline_s: float = 30.0

    def without(self, off: frozenset[str]) -> Settings:
        """A copy with the mechanisms named in `off` (keys of `SWITCHES`) switched off."""
        changes: dict[str, Any] = {SWITCHES[name]: None for name in off if name in SWITCHES}
        return replace(self, **changes)
