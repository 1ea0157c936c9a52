"""All settings of the reference balancer; a mechanism whose field is None is off.

A mechanism that can be claimed has the name of its claim, and its numbers have the names of the claim's fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from harness.balancer.health.breaker import BreakerSettings
from harness.balancer.health.health_score import HealthSettings
from harness.balancer.health.readiness import RotationSettings
from harness.balancer.picking.load_table import LoadSettings
from harness.balancer.picking.session_affinity import AffinitySettings
from harness.balancer.requests.hedging import HedgeSettings
from harness.balancer.requests.limits import AdmissionSettings
from harness.balancer.requests.retry import RetrySettings
from harness.claims.features import FEATURES
from harness.gateway.expected_answer import STATUS_200, ExpectedAnswer


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """Active health checks: see harness.balancer.health.readiness.

    Out after `unhealthy` failures in a row, in after `healthy` successes: HAProxy's defaults (`fall 3`, `rise 2`). The
    interval is shorter than HAProxy's 2 s because the answers also report load. Timeout: Kubernetes' readiness probe.
    `rotation` None: the answers alone decide which backends are in rotation; reports of load and memory do not, and
    there is no guard.
    """

    interval_s: float = 1.0
    timeout_s: float = 1.0
    unhealthy: int = 3
    healthy: int = 2
    expected: ExpectedAnswer = STATUS_200
    rotation: RotationSettings | None = None


@dataclass(frozen=True, slots=True)
class EjectionSettings:
    """Passive ejection, a simpler alternative to the breaker: see harness.balancer.health.ejection.

    Defaults of Envoy's outlier detection: `consecutive_5xx`, `base_ejection_time`, `max_ejection_percent`.
    """

    failures: int = 5
    open_s: float = 30.0
    cap_share: float = 0.1


@dataclass(frozen=True, slots=True)
class SlowStartSettings:
    """Weight ramp of backends that enter rotation: see harness.balancer.health.slow_start."""

    window_s: float
    minimum_share: float = 0.1
    aggression: float = 1.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The reference balancer in production, as `steelyard balancer` runs it; a completion may stream for minutes.

    The times that suites judge it with are a profile of the target, `SUITE_PROFILE` in harness/targets/reference.py.
    Breakers do not trip on slowness, as the duration of an answer depends on its length. `attempt_timeout_s`: as in
    OpenAI's clients. `bounded_load`: HAProxy's manual recommends 1.25 to 2 (`hash-balance-factor`).

    `commit_at`: commit an attempt at its good "head" or only at its "first_byte". `spread`: one of
    harness.balancer.picking.policies.POLICIES; None distributes updates by health alone.
    """

    virtual_nodes: int = 150
    attempt_timeout_s: float = 600.0
    commit_at: str = "head"
    spread: str | None = "two_choices"
    bounded_load: float | None = 1.25
    health_checks: CheckSettings | None = field(default_factory=CheckSettings)
    ejection: EjectionSettings | None = None
    breaker: BreakerSettings | None = field(default_factory=BreakerSettings)
    health_share: HealthSettings | None = field(default_factory=HealthSettings)
    hedge: HedgeSettings | None = field(default_factory=HedgeSettings)
    retry: RetrySettings | None = field(default_factory=RetrySettings)
    sessions: AffinitySettings | None = field(default_factory=AffinitySettings)
    limits: AdmissionSettings | None = None
    slow_start: SlowStartSettings | None = None
    load: LoadSettings = field(default_factory=LoadSettings)
    drain_deadline_s: float = 30.0

    def without(self, off: frozenset[str]) -> Settings:
        """A copy with the mechanisms named in `off` (of `SWITCHES`) switched off."""
        changes: dict[str, Any] = dict.fromkeys(off & SWITCHES)
        return replace(self, **changes)


SWITCHES = frozenset({item.name for item in fields(Settings)} & FEATURES.keys()) | {"sessions", "slow_start"}
"""Mechanisms that can be switched off: fields of `Settings` that may be None. The last two have no claim."""
