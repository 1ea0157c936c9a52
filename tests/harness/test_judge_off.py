"""What the judge switches off: what a property asks for, limits, and what no claim is about."""

from __future__ import annotations

from harness.claims.features import Claims, Limits, Retry
from harness.judge import Judge
from tests.harness.test_judge import GOOD, FakeTarget, promise


def test_what_no_claim_is_about_is_switched_off() -> None:
    """No property could allow for it."""
    target = FakeTarget(Claims((Retry(),)), switches=frozenset({"retry", "slow_start"}))
    assert Judge(target, 1, {}).scenario_of(promise([GOOD])).off == {"slow_start"}
    assert Judge(target, 1, {}).scenario_of(promise([GOOD], without=(Retry,))).off == {"slow_start", "retry"}


def test_limits_are_off_where_nobody_asks_for_them() -> None:
    target = FakeTarget(Claims((Limits(),)), switches=frozenset({"limits"}))
    assert Judge(target, 1, {}).scenario_of(promise([GOOD])).off == {"limits"}
    assert Judge(target, 1, {}).scenario_of(promise([GOOD], needs=(Limits,))).off == frozenset()
