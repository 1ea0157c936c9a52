"""Features that the judge switches off: those of the property, limits, and switches without a claim."""

from __future__ import annotations

from harness.claims.features import Claims, Limits, Retry
from harness.judge import Judge
from tests.harness.test_judge import GOOD, FakeTarget, promise


def test_what_no_claim_is_about_is_switched_off() -> None:
    """A switch without a claim: no property can take it into account."""
    target = FakeTarget(Claims((Retry(),)), switches=frozenset({"retry", "slow_start"}))
    assert Judge(target, 1, {}).scenario_of(promise([GOOD])).off == {"slow_start"}
    assert Judge(target, 1, {}).scenario_of(promise([GOOD], without=(Retry,))).off == {"slow_start", "retry"}


def test_limits_are_off_where_nobody_asks_for_them() -> None:
    target = FakeTarget(Claims((Limits(),)), switches=frozenset({"limits"}))
    assert Judge(target, 1, {}).scenario_of(promise([GOOD])).off == {"limits"}
    assert Judge(target, 1, {}).scenario_of(promise([GOOD], needs=(Limits,))).off == frozenset()
