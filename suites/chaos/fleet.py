"""Chaos fault plans that strike more than one backend, or one again and again; in virtual time.

`steelyard chaos --plan NAME --world live` plays them live.
"""

from __future__ import annotations

from harness.claims.features import Claims, Failover
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings
from harness.scenario.model import Scenario, World
from suites.chaos.evidence import answers_belong, contained, fault_plan, nothing_lost, recovers

FLEET = 4
FOR_S = 1.5
ROLLING_S = 4.0
"""A second for each of four."""

SIM = (World.SIM,)


def rolling_restart(claims: Claims) -> Scenario:
    """Four backends restart, a second after one another."""
    return fault_plan("rolling-restart", FLEET, claims, ROLLING_S)


def flapping(claims: Claims) -> Scenario:
    """The way to one of four backends is closed and opened three times in 1.5 s."""
    return fault_plan("flapping", FLEET, claims, FOR_S)


def brown_out(claims: Claims) -> Scenario:
    """Two of four backends are eight times as slow and refuse a quarter of what they are sent."""
    return fault_plan("brown-out", FLEET, claims, FOR_S)


def packet_misery(claims: Claims) -> Scenario:
    """The ways to all backends are late, thin, or bring answers in slices."""
    return fault_plan("packet-misery", FLEET, claims, FOR_S)


def thundering_return(claims: Claims) -> Scenario:
    """All backends are out of reach for a second, then all of them are there again."""
    return fault_plan("thundering-return", FLEET, claims, 1.0)


@declare("chaos.rolling-restart.recovers", needs=(Failover,), scenario=rolling_restart, worlds=SIM)
def rolling_restart_recovers(history: History, claims: Claims) -> Findings:
    """When every backend has restarted in turn, every request sent later than the claimed time is answered.

    A balancer that takes none of them back has none left at the end.
    """
    yield from recovers(history, claims)


@declare("chaos.rolling-restart.answers-belong", needs=(Failover,), scenario=rolling_restart, worlds=SIM)
def rolling_restart_answers_belong(history: History, claims: Claims) -> Findings:
    """Through a rolling restart every answer is its own request's, and no update reaches a backend twice."""
    yield from answers_belong(history, claims)


@declare("chaos.flapping.recovers", needs=(Failover,), scenario=flapping, worlds=SIM)
def flapping_recovers(history: History, claims: Claims) -> Findings:
    """When a backend no longer comes and goes, every request sent later than the claimed time is answered."""
    yield from recovers(history, claims)


@declare("chaos.flapping.contained", needs=(Failover,), scenario=flapping, worlds=SIM)
def flapping_contained(history: History, claims: Claims) -> Findings:
    """A backend that comes and goes costs at most its own share.

    Each return invites requests back and each loss throws them out again; a balancer that rebuilds connections to all
    backends at every change makes everybody pay for it.
    """
    yield from contained(history, claims)


@declare("chaos.flapping.answers-belong", needs=(Failover,), scenario=flapping, worlds=SIM)
def flapping_answers_belong(history: History, claims: Claims) -> Findings:
    """While a backend comes and goes every answer is its own request's, and no update reaches a backend twice."""
    yield from answers_belong(history, claims)


@declare("chaos.brown-out.recovers", needs=(Failover,), scenario=brown_out, worlds=SIM)
def brown_out_recovers(history: History, claims: Claims) -> Findings:
    """When a brown-out of half the fleet is over, every request sent later than the claimed time is answered."""
    yield from recovers(history, claims)


@declare("chaos.brown-out.contained", needs=(Failover,), scenario=brown_out, worlds=SIM)
def brown_out_contained(history: History, claims: Claims) -> Findings:
    """Half of the fleet short of power costs at most what that half is sent: the other half goes on.

    Seen elsewhere: retries of what the weak half refuses push the strong half over, and all of it goes down.
    """
    yield from contained(history, claims)


@declare("chaos.brown-out.answers-belong", needs=(Failover,), scenario=brown_out, worlds=SIM)
def brown_out_answers_belong(history: History, claims: Claims) -> Findings:
    """While half of the fleet refuses requests every answer is its own request's, and no update arrives twice."""
    yield from answers_belong(history, claims)


@declare("chaos.packet-misery.recovers", needs=(Failover,), scenario=packet_misery, worlds=SIM)
def packet_misery_recovers(history: History, claims: Claims) -> Findings:
    """When the network is well again, every request sent later than the claimed time is answered."""
    yield from recovers(history, claims)


@declare("chaos.packet-misery.nothing-lost", needs=(Failover,), scenario=packet_misery, worlds=SIM)
def packet_misery_nothing_lost(history: History, claims: Claims) -> Findings:
    """A network that is late, thin and comes in slices costs no request, for it loses no byte.

    Every backend is struck in its own way, so that a balancer which shuts out whoever is late has nobody left.
    """
    yield from nothing_lost(history, claims)


@declare("chaos.packet-misery.answers-belong", needs=(Failover,), scenario=packet_misery, worlds=SIM)
def packet_misery_answers_belong(history: History, claims: Claims) -> Findings:
    """Over a bad network every answer is its own request's, and no update reaches a backend twice."""
    yield from answers_belong(history, claims)


@declare("chaos.thundering-return.recovers", needs=(Failover,), scenario=thundering_return, worlds=SIM)
def thundering_return_recovers(history: History, claims: Claims) -> Findings:
    """When all backends are back at once, every request sent later than the claimed time is answered.

    What was lost meanwhile had nowhere to go. What is lost later is the balancer's own: retries that outlast the
    outage, breakers that open again under the rush, nobody left that is held for well.
    """
    yield from recovers(history, claims)


@declare("chaos.thundering-return.answers-belong", needs=(Failover,), scenario=thundering_return, worlds=SIM)
def thundering_return_answers_belong(history: History, claims: Claims) -> Findings:
    """When everybody comes back at once every answer is its own request's, and no update reaches a backend twice."""
    yield from answers_belong(history, claims)
