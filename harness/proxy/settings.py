"""Settings of the reference balancer for production use, with times that fit model servers.

The reference under test has short times, so that a suite takes seconds; a completion may stream for minutes. Breakers
do not trip on slowness here, as the duration of an answer depends on its length.
"""

from __future__ import annotations

from harness.balancer.health.breaker import BreakerSettings
from harness.balancer.health.health_score import HealthSettings
from harness.balancer.requests.hedging import HedgeSettings
from harness.balancer.requests.retry import RetrySettings
from harness.balancer.settings import CheckSettings, Settings

LONGEST_ANSWER_S = 600.0


def live_settings() -> Settings:
    """The reference's default mechanisms with times for production; breakers do not trip on slowness."""
    return Settings(
        attempt_timeout_s=LONGEST_ANSWER_S,
        checks=CheckSettings(interval_s=1.0, timeout_s=1.0),
        breaker=BreakerSettings(failures=5, error_rate=0.5, successes=2),
        health=HealthSettings(),
        hedge=HedgeSettings(load_threshold=32.0),
        retry=RetrySettings(deadline_s=LONGEST_ANSWER_S),
    )
