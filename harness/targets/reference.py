"""The reference balancer as a target: the suites' short times, and claims equal to its settings."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from pathlib import Path

from harness.balancer.core.loading import REFERENCE, reference_spec
from harness.balancer.core.settings_file import settings_from
from harness.balancer.core.settings_to_claims import claims_from_settings
from harness.balancer.health.breaker import BreakerSettings
from harness.balancer.health.health_score import HealthSettings
from harness.balancer.requests.hedging import HedgeSettings
from harness.balancer.requests.limits import AdmissionSettings, BucketSettings
from harness.balancer.requests.retry import RetrySettings
from harness.balancer.settings import SWITCHES, CheckSettings, EjectionSettings, Settings
from harness.claims.features import Backoff, Claims
from harness.scenario.fast_dataclass import scale_durations
from harness.targets.base import LEAN_ENVIRONMENT, Adapter, Deployment, Launch
from harness.targets.gateway_target import GatewayTarget

LIMITS = AdmissionSettings(requests=BucketSettings(rate_per_s=100.0, burst=20.0), concurrency=8, queue=16)
"""Limits of the reference under test, low enough to be reached in live runs."""

SUITE_PROFILE = Settings(
    attempt_timeout_s=1.5,
    health_checks=CheckSettings(interval_s=0.5, unhealthy=2, healthy=1),
    ejection=EjectionSettings(open_s=0.5, cap_share=0.5),
    breaker=BreakerSettings(window_s=2.0, slow_p99_s=0.25, open_s=0.5, backoff=Backoff(2.0, max_s=1.5, jitter=0.2)),
    health_share=HealthSettings(window_s=1.6),
    hedge=HedgeSettings(window=200, minimum=40),
    retry=RetrySettings(budget_window_s=1.0, deadline_s=3.0),
    limits=LIMITS,
)
"""The reference under test, with short times so that suites take seconds, and every claimable mechanism on.

Everything not listed here has its production value. `reference:FILE.toml` changes this profile.
"""


class ReferenceTarget(GatewayTarget):
    """The balancer of harness.balancer; each mechanism can be switched off. `settings` None: `SUITE_PROFILE`."""

    name = "reference"
    switches = SWITCHES

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or SUITE_PROFILE
        self.version = importlib.metadata.version("steelyard")
        self.claims = Claims(features=claims_from_settings(self._settings))

    def spec(self, off: frozenset[str]) -> str:
        """The settings with the mechanisms in `off` switched off."""
        return reference_spec(self._settings.without(off))

    def launch(self, deployment: Deployment) -> Launch:
        """As any gateway, in the lean environment, as it uses plain HTTP only."""
        launch = super().launch(deployment)
        return replace(launch, environment={**launch.environment, **LEAN_ENVIRONMENT})

    def scaled(self, factor: float) -> ReferenceTarget:
        """The reference with all durations of settings and claims multiplied by `factor`."""
        scaled = ReferenceTarget(scale_durations(self._settings, factor))
        scaled.name = self.name
        scaled.claims = scale_durations(self.claims, factor)
        return scaled


def _made(file: str) -> ReferenceTarget:
    if not file:
        return ReferenceTarget()
    target = ReferenceTarget(settings_from(Path(file), SUITE_PROFILE))
    target.name = REFERENCE + file
    return target


ADAPTER = Adapter(_made, "the reference balancer, with your settings", "FILE.toml")
