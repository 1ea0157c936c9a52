"""The fault plan thundering-return: all backends are unreachable, then return at once."""

from __future__ import annotations

from harness.claims.features import Claims, Failover
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings
from harness.scenario.model import Scenario, World
from suites.chaos.checks import answers_belong, recovers
from suites.chaos.scenarios import fault_plan

FLEET = 4
FOR_S = 1.0


def thundering_return(claims: Claims) -> Scenario:
    """All backends are unreachable for a second, then return at the same moment."""
    return fault_plan("thundering-return", FLEET, claims, FOR_S)


@declare("chaos.thundering-return.recovers", needs=(Failover,), scenario=thundering_return, worlds=(World.SIM,))
def thundering_return_recovers(history: History, claims: Claims) -> Findings:
    """After all backends have returned at once, every request sent later than the claimed time is answered.

    Requests lost during the outage had no backend to go to. Later losses are the balancer's: retries that outlast the
    outage, breakers that open again under the rush, or no backend that counts as healthy.
    """
    yield from recovers(history, claims)


@declare("chaos.thundering-return.answers-belong", needs=(Failover,), scenario=thundering_return, worlds=(World.SIM,))
def thundering_return_answers_belong(history: History, claims: Claims) -> Findings:
    """Through an outage and return of all backends, every answer belongs to its request and no update arrives twice."""
    yield from answers_belong(history, claims)
