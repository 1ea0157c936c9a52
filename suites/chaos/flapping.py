"""The fault plan flapping: the link to one backend closes and opens repeatedly."""

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


def flapping(claims: Claims) -> Scenario:
    """The link to one of four backends closes and opens three times in 1.5 s."""
    return fault_plan("flapping", FLEET, claims, FOR_S)


@declare("chaos.flapping.recovers", needs=(Failover,), scenario=flapping, worlds=(World.SIM,))
def flapping_recovers(history: History, claims: Claims) -> Findings:
    """After a backend has stopped flapping, every request sent later than the claimed time is answered."""
    yield from recovers(history, claims)


@declare("chaos.flapping.contained", needs=(Failover,), scenario=flapping, worlds=(World.SIM,))
def flapping_contained(history: History, claims: Claims) -> Findings:
    """A flapping backend costs at most its own share of requests.

    Each return attracts requests and each outage loses them again. A balancer that reopens its connections to all
    backends at every change also disturbs requests for the other backends.
    """
    yield from contained(history, claims)


@declare("chaos.flapping.answers-belong", needs=(Failover,), scenario=flapping, worlds=(World.SIM,))
def flapping_answers_belong(history: History, claims: Claims) -> Findings:
    """While a backend flaps, every answer belongs to its request and no update reaches a backend twice."""
    yield from answers_belong(history, claims)
