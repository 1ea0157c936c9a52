"""Settings of the reference balancer for real use: times that fit model servers.

The reference under test has short times, so that a suite lasts seconds; a completion may stream for minutes. Slowness
is no reason to trip a breaker here: how long an answer takes depends on how long it is.
"""

from __future__ import annotations

from harness.balancer.health.breaker import BreakerSettings
from harness.balancer.health.health_score import HealthSettings
from harness.balancer.requests.hedging import HedgeSettings
from harness.balancer.requests.retry import RetrySettings
from harness.balancer.settings import CheckSettings, Settings

LONGEST_ANSWER_S = 600.0


def live_settings() -> Settings:
    """The mechanisms that the reference has on, with times for real use; no breaker trips on slowness."""
    return Settings(
        attempt_timeout_s=LONGEST_ANSWER_S,
        checks=CheckSettings(interval_s=1.0, timeout_s=1.0),
        breaker=BreakerSettings(failures=5, error_rate=0.5, successes=2),
        health=HealthSettings(),
        hedge=HedgeSettings(load_threshold=32.0),
        retry=RetrySettings(deadline_s=LONGEST_ANSWER_S),
    )
