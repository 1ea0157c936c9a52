"""The fault plan packet-misery: every link is bad but loses no byte."""

from __future__ import annotations

from harness.claims.features import Claims, Failover
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings
from harness.scenario.model import Scenario, World
from suites.chaos.checks import answers_belong, nothing_lost, recovers
from suites.chaos.scenarios import fault_plan

FLEET = 4
FOR_S = 1.5


def packet_misery(claims: Claims) -> Scenario:
    """The link to each of four backends has high latency, low bandwidth, or delivers answers in slices."""
    return fault_plan("packet-misery", FLEET, claims, FOR_S)


@declare("chaos.packet-misery.recovers", needs=(Failover,), scenario=packet_misery, worlds=(World.SIM,))
def packet_misery_recovers(history: History, claims: Claims) -> Findings:
    """After the network has recovered, every request sent later than the claimed time is answered."""
    yield from recovers(history, claims)


@declare("chaos.packet-misery.nothing-lost", needs=(Failover,), scenario=packet_misery, worlds=(World.SIM,))
def packet_misery_nothing_lost(history: History, claims: Claims) -> Findings:
    """A network with high latency, low bandwidth and sliced answers costs no request.

    It loses no byte. Every backend is affected, so a balancer that excludes slow backends has none left.
    """
    yield from nothing_lost(history, claims)


@declare("chaos.packet-misery.answers-belong", needs=(Failover,), scenario=packet_misery, worlds=(World.SIM,))
def packet_misery_answers_belong(history: History, claims: Claims) -> Findings:
    """Over a bad network, every answer belongs to its request and no update reaches a backend twice."""
    yield from answers_belong(history, claims)
