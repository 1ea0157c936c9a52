"""The reference balancer as a target: short settings, and claims that state exactly those."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace

from harness.balancer.gateway import Settings
from harness.balancer.loading import reference_spec
from harness.claims import Affinity, Claims, Ejection, Failover, HealthChecks, Spread
from harness.frozen import stretched
from harness.targets.gateway_target import GatewayTarget


class ReferenceTarget(GatewayTarget):
    """The balancer of harness.balancer with its mechanisms, each of which can be switched off."""

    name = "reference"
    switches = frozenset({Ejection.table, HealthChecks.table})

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self.version = importlib.metadata.version("steelyard")
        self.claims = _claims(self._settings)

    def spec(self, off: frozenset[str]) -> str:
        """The settings with the mechanisms in `off` switched off."""
        return reference_spec(
            replace(
                self._settings,
                ejection=self._settings.ejection and Ejection.table not in off,
                health_checks=self._settings.health_checks and HealthChecks.table not in off,
            )
        )

    def scaled(self, factor: float) -> ReferenceTarget:
        """Every time of the settings, and the claims with them, times `factor`."""
        longer = ReferenceTarget(stretched(self._settings, factor))
        longer.claims = stretched(self.claims, factor)
        return longer


def _claims(settings: Settings) -> Claims:
    return Claims(
        features=(
            Affinity(key="header:x-model-id", algorithm="ring", virtual_nodes=settings.virtual_nodes),
            Spread(policy="two_choices"),
            Failover(within_s=5.0),
            Ejection(failures=settings.ejection_failures, open_s=settings.ejection_open_s),
            HealthChecks(
                interval_s=settings.check_interval_s,
                timeout_s=settings.check_timeout_s,
                unhealthy=settings.check_unhealthy,
                healthy=settings.check_healthy,
            ),
        )
    )
