"""Base settings of mutants with a single mechanism."""

from harness.balancer.settings import SWITCHES, CheckSettings, Settings

CHECKS = CheckSettings(interval_s=0.5, timeout_s=1.0, unhealthy=2, healthy=1)
"""Health checks with short times."""

NOTHING_ON = Settings(attempt_timeout_s=2.0).without(SWITCHES - {"spread"})
"""The reference with every optional setting off, except the policy of updates, and a short attempt timeout."""
