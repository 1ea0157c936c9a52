"""The fault plan rolling-restart: every backend restarts in turn."""

from __future__ import annotations

from harness.claims.features import Claims, Failover
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings
from harness.scenario.model import Scenario, World
from suites.chaos.checks import answers_belong, recovers
from suites.chaos.scenarios import fault_plan

FLEET = 4
FOR_S = 4.0
"""One second for each of four backends."""


def rolling_restart(claims: Claims) -> Scenario:
    """Four backends restart, one each second."""
    return fault_plan("rolling-restart", FLEET, claims, FOR_S)


@declare("chaos.rolling-restart.recovers", needs=(Failover,), scenario=rolling_restart, worlds=(World.SIM,))
def rolling_restart_recovers(history: History, claims: Claims) -> Findings:
    """After every backend has restarted in turn, every request sent later than the claimed time is answered.

    A balancer that never readmits a restarted backend has no backend left at the end.
    """
    yield from recovers(history, claims)


@declare("chaos.rolling-restart.answers-belong", needs=(Failover,), scenario=rolling_restart, worlds=(World.SIM,))
def rolling_restart_answers_belong(history: History, claims: Claims) -> Findings:
    """Through a rolling restart, every answer belongs to its request and no update reaches a backend twice."""
    yield from answers_belong(history, claims)
