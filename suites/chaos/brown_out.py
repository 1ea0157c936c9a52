"""The fault plan brown-out: half of the fleet is slow and rejects requests."""

from __future__ import annotations

from harness.claims.features import Claims, Failover
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings
from harness.scenario.model import Scenario, World
from suites.chaos.checks import answers_belong, contained, recovers
from suites.chaos.scenarios import fault_plan

FLEET = 4
FOR_S = 1.5


def brown_out(claims: Claims) -> Scenario:
    """Two of four backends are eight times as slow and reject a quarter of their requests."""
    return fault_plan("brown-out", FLEET, claims, FOR_S)


@declare("chaos.brown-out.recovers", needs=(Failover,), scenario=brown_out, worlds=(World.SIM,))
def brown_out_recovers(history: History, claims: Claims) -> Findings:
    """After a brown-out of half the fleet, every request sent later than the claimed time is answered."""
    yield from recovers(history, claims)


@declare("chaos.brown-out.contained", needs=(Failover,), scenario=brown_out, worlds=(World.SIM,))
def brown_out_contained(history: History, claims: Claims) -> Findings:
    """A brown-out of half the fleet costs at most the requests of that half.

    The other half goes on serving. Seen elsewhere: retries of requests rejected by the degraded half overload the
    healthy half, and the whole fleet fails.
    """
    yield from contained(history, claims)


@declare("chaos.brown-out.answers-belong", needs=(Failover,), scenario=brown_out, worlds=(World.SIM,))
def brown_out_answers_belong(history: History, claims: Claims) -> Findings:
    """While half of the fleet rejects requests, every answer belongs to its request and no update arrives twice."""
    yield from answers_belong(history, claims)
