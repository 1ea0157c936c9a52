"""The production settings."""

from __future__ import annotations

from harness.balancer.settings import Settings
from harness.proxy.settings import LONGEST_ANSWER_S, live_settings
from harness.targets.reference import ReferenceTarget

BASE = live_settings()


def test_every_mechanism_of_the_reference_is_on() -> None:
    assert ReferenceTarget(BASE).claims.names == ReferenceTarget(Settings()).claims.names


def test_a_completion_may_stream_for_minutes() -> None:
    assert BASE.retry is not None and BASE.breaker is not None
    assert min(BASE.attempt_timeout_s, BASE.retry.deadline_s) == LONGEST_ANSWER_S >= 300
    assert BASE.breaker.slow_p99_s is None
