"""The reference balancer as a target: short settings, and claims that state exactly those."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace

from harness.balancer.core.loading import reference_spec
from harness.balancer.core.settings_to_claims import claimed
from harness.balancer.health.health_score import HealthSettings
from harness.balancer.requests.limits import AdmissionSettings, BucketSettings
from harness.balancer.settings import SWITCHES, EjectionSettings, Settings
from harness.claims.features import Claims
from harness.scenario.fast_dataclass import scale_durations
from harness.targets.base import LEAN, Deployment, Launch
from harness.targets.gateway_target import GatewayTarget

LIMITS = AdmissionSettings(requests=BucketSettings(rate_per_s=100.0, burst=20.0), concurrency=8, queue=16)
"""What the reference under test lets in where limits are on: so little that they can be put to the test live."""

DEFAULTS = Settings(
    attempt_timeout_s=1.5,
    health=HealthSettings(window_s=1.6),
    limits=LIMITS,
    ejection=EjectionSettings(failures=5, open_s=0.5, cap_share=0.5),
)
"""The reference as it is judged: with all that can be claimed."""


class ReferenceTarget(GatewayTarget):
    """The balancer of harness.balancer with its mechanisms, each of which can be switched off.

    Without `settings` it has `DEFAULTS`.
    """

    name = "reference"
    switches = frozenset(SWITCHES)

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or DEFAULTS
        self.version = importlib.metadata.version("steelyard")
        self.claims = Claims(features=claimed(self._settings))

    def spec(self, off: frozenset[str]) -> str:
        """The settings with the mechanisms in `off` switched off."""
        return reference_spec(self._settings.without(off))

    def launch(self, place: Deployment) -> Launch:
        """As any gateway; ours speaks plain HTTP only."""
        launch = super().launch(place)
        return replace(launch, environment={**launch.environment, **LEAN})

    def scaled(self, factor: float) -> ReferenceTarget:
        """Every time of the settings, and the claims with them, times `factor`."""
        longer = ReferenceTarget(scale_durations(self._settings, factor))
        longer.name = self.name
        longer.claims = scale_durations(self.claims, factor)
        return longer
