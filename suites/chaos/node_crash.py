"""The fault plan node-crash: one backend is killed and returns."""

from __future__ import annotations

from dataclasses import replace

from harness.claims.features import Claims, Failover
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings
from harness.scenario.model import Chats, Keys, Scenario, Stream
from suites.chaos.checks import answers_belong, contained, keeps_pace, recovers
from suites.chaos.scenarios import KEYS, PATIENCE_S, fault_plan

FLEET = 3
FOR_S = 1.5

CROWD = "crowd"
"""Stream of the virtual users."""

VIRTUAL_USERS = 30
THINK_S = 0.1


def node_crash(claims: Claims) -> Scenario:
    """One of three backends is killed and returns 1.5 s later, under open-loop and closed-loop load.

    The closed loop has 30 virtual users that wait for their answers and think for 0.1 s on average.
    """
    scenario = fault_plan("node-crash", FLEET, claims, FOR_S)
    chats = Chats(VIRTUAL_USERS, THINK_S, scenario.end_s)
    rate_per_s = VIRTUAL_USERS / THINK_S
    crowd = Stream(CROWD, 0.0, rate_per_s, KEYS, Keys(KEYS, "uniform"), timeout_s=PATIENCE_S, chats=chats)
    return replace(scenario, load=replace(scenario.load, streams=(*scenario.load.streams, crowd)))


@declare("chaos.node-crash.recovers", needs=(Failover,), scenario=node_crash)
def node_crash_recovers(history: History, claims: Claims) -> Findings:
    """After a crashed backend has returned, every request sent later than the claimed time is answered.

    The claimed time is the longest of failover, open breaker, ejection and health checks. Observed is the send time of
    the last lost request, in seconds after the return. No request may be lost before the crash either; otherwise the
    run proves little.
    """
    yield from recovers(history, claims)


@declare("chaos.node-crash.contained", needs=(Failover,), scenario=node_crash)
def node_crash_contained(history: History, claims: Claims) -> Findings:
    """A crash costs at most the crashed backend's share of requests for as long as it is away.

    A balancer without health information loses that much. A balancer that loses more lets the failure of one backend
    spread to the others: by retries without a budget, by a breaker shared by all backends, or by blocked workers.
    """
    yield from contained(history, claims)


@declare("chaos.node-crash.answers-belong", needs=(Failover,), scenario=node_crash)
def node_crash_answers_belong(history: History, claims: Claims) -> Findings:
    """Through a crash and a return, every answer belongs to its request and no update reaches a backend twice.

    Connections break during answers, and the balancer sends requests again; that is when answers get mixed up. Checked
    as in `integrity.answer-belongs-to-request`.
    """
    yield from answers_belong(history, claims)


@declare("chaos.node-crash.crowd-keeps-its-pace", needs=(Failover,), scenario=node_crash)
def crowd_keeps_its_pace(history: History, claims: Claims) -> Findings:
    """Virtual users send requests at their former pace once the claimed time after the return has passed.

    A closed loop can suffer without any lost request, because a user that waits longer sends less. A balancer answers
    everything and still serves less if it keeps trying a dead backend first, has lost request slots together with the
    backend, or limits its traffic after the crash. The counts are compared allowing for chance, at nine tenths of the
    pace.
    """
    yield from keeps_pace(history, claims, CROWD)
