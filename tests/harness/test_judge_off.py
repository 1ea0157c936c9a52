"""Features that the judge switches off: those of the property, limits, and switches without a claim."""

from __future__ import annotations

from harness.claims.features import Claims, Failover, Limits, Retry
from harness.evidence.history import History
from harness.judge import Judge
from harness.property.findings import Findings
from harness.scenario.model import Scenario, World
from tests.harness.test_judge import GOOD, SCENARIO, FakeTarget, FakeWorld, promise


def test_what_no_claim_is_about_is_switched_off() -> None:
    """A switch without a claim: no property can take it into account."""
    target = FakeTarget(Claims((Retry(),)), switches=frozenset({"retry", "slow_start"}))
    assert Judge(target, 1, {}).scenario_of(promise([GOOD])).off == {"slow_start"}
    assert Judge(target, 1, {}).scenario_of(promise([GOOD], without=(Retry,))).off == {"slow_start", "retry"}


def test_limits_are_off_where_nobody_asks_for_them() -> None:
    target = FakeTarget(Claims((Limits(),)), switches=frozenset({"limits"}))
    assert Judge(target, 1, {}).scenario_of(promise([GOOD])).off == {"limits"}
    assert Judge(target, 1, {}).scenario_of(promise([GOOD], needs=(Limits,))).off == frozenset()


def test_scenario_and_check_get_the_claims_that_are_on() -> None:
    seen = []

    def scenario(claims: Claims) -> Scenario:
        seen.append(claims.names)
        return SCENARIO

    def check(history: History, claims: Claims) -> Findings:
        seen.append(claims.names)
        yield GOOD

    target = FakeTarget(Claims((Failover(), Limits(), Retry())), switches=frozenset({"limits", "retry"}))
    Judge(target, 1, {World.SIM: FakeWorld()}).judge(promise(check, scenario=scenario, off=(Retry,)), World.SIM)
    assert seen == [("failover",), ("failover",)]
