"""Chaos: whole-system runs under a named fault plan. What is struck costs no more than its share, and all recovers.

Node crash, blackhole and grey failure are played live, too; the other fault plans are in `suites.chaos.fleet`.
"""

from __future__ import annotations

from dataclasses import replace

from harness.claims.features import Claims, Failover
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings
from harness.scenario.model import Chats, Keys, Scenario, Stream
from suites.chaos.evidence import (
    KEYS,
    PATIENCE_S,
    answers_belong,
    contained,
    fault_plan,
    keeps_pace,
    nothing_lost,
    recovers,
)

FLEET = 3
FOR_S = 1.5

CROWD = "crowd"
CHATS = 30
THINK_S = 0.1


def node_crash(claims: Claims) -> Scenario:
    """One of three backends is killed and is back 1.5 s later, under a closed loop, too.

    That is a crowd of 30 chats that wait for their answers and think 0.1 s on average.
    """
    scenario = fault_plan("node-crash", FLEET, claims, FOR_S)
    chats = Chats(CHATS, THINK_S, scenario.end_s)
    crowd = Stream(CROWD, 0.0, CHATS / THINK_S, KEYS, Keys(KEYS, "uniform"), timeout_s=PATIENCE_S, chats=chats)
    return replace(scenario, load=replace(scenario.load, streams=(*scenario.load.streams, crowd)))


def blackhole(claims: Claims) -> Scenario:
    """One of three backends accepts connections and is silent for as long as a failover may take."""
    return fault_plan("blackhole", FLEET, claims, max(FOR_S, claims[Failover].within_s))


def grey_failure(claims: Claims) -> Scenario:
    """One of three backends takes half a second for everything, for 1.5 s."""
    return fault_plan("grey-failure", FLEET, claims, FOR_S)


@declare("chaos.node-crash.recovers", needs=(Failover,), scenario=node_crash)
def node_crash_recovers(history: History, claims: Claims) -> Findings:
    """When a crashed backend is back, every request sent later than the claimed time is answered.

    The claimed time is the longest of failover, open breaker, ejection and health checks. Observed is when the last
    lost request was sent, in seconds after the return. Nothing is lost before the crash either, or the run says little.
    """
    yield from recovers(history, claims)


@declare("chaos.node-crash.contained", needs=(Failover,), scenario=node_crash)
def node_crash_contained(history: History, claims: Claims) -> Findings:
    """A crash costs at most the share of the crashed backend for as long as it was away.

    Losing that much is what a balancer does that knows nothing of health. One that loses more has let the failure of
    one backend spread to the others, by retries without a budget, by a breaker that they all share, by workers that
    wait.
    """
    yield from contained(history, claims)


@declare("chaos.node-crash.answers-belong", needs=(Failover,), scenario=node_crash)
def node_crash_answers_belong(history: History, claims: Claims) -> Findings:
    """Through a crash and a return every answer is its own request's, and no update reaches a backend twice.

    Connections break in the middle of answers and requests are sent again: that is when answers are mixed up. Double
    entry as in `integrity.answer-belongs-to-request`.
    """
    yield from answers_belong(history, claims)


@declare("chaos.node-crash.crowd-keeps-its-pace", needs=(Failover,), scenario=node_crash)
def crowd_keeps_its_pace(history: History, claims: Claims) -> Findings:
    """Later than the claimed time after a return, a crowd that waits for its answers gets through as much as before.

    In a closed loop nothing need be lost for harm to be done: whoever waits longer asks less. A balancer that goes on
    trying the dead first, that has lost places for requests with the backend, or that has grown cautious, answers
    everything and still serves fewer people. Counts are compared with their own chance, at nine tenths of the pace.
    """
    yield from keeps_pace(history, claims, CROWD)


@declare("chaos.blackhole.recovers", needs=(Failover,), scenario=blackhole)
def blackhole_recovers(history: History, claims: Claims) -> Findings:
    """When a silent backend answers again, every request sent later than the claimed time is answered.

    What was sent into the silence fails only when its time limit is over, so after the heal: a balancer that takes
    those failures for news shuts out a backend that is well. That is no harm while others serve.
    """
    yield from recovers(history, claims)


@declare("chaos.blackhole.contained", needs=(Failover,), scenario=blackhole)
def blackhole_contained(history: History, claims: Claims) -> Findings:
    """A silent backend costs at most its own share: requests that wait for it keep no other waiting.

    A pool of connections, a queue or a number of workers that all backends share fills up with those that hang.
    """
    yield from contained(history, claims)


@declare("chaos.blackhole.answers-belong", needs=(Failover,), scenario=blackhole)
def blackhole_answers_belong(history: History, claims: Claims) -> Findings:
    """Through a silence and its end every answer is its own request's, and no update reaches a backend twice.

    A connection that was given up in the silence may still bring its answer later; used again, it brings it to
    somebody else.
    """
    yield from answers_belong(history, claims)


@declare("chaos.grey-failure.recovers", needs=(Failover,), scenario=grey_failure)
def grey_failure_recovers(history: History, claims: Claims) -> Findings:
    """When a slow backend is quick again, every request sent later than the claimed time is answered.

    Nothing failed, so nothing tells the balancer that it is over but the times of what it still sends there.
    """
    yield from recovers(history, claims)


@declare("chaos.grey-failure.nothing-lost", needs=(Failover,), scenario=grey_failure)
def grey_failure_nothing_lost(history: History, claims: Claims) -> Findings:
    """A backend that is slow but alive costs no request: it answers all that it is sent, well within clients' patience.

    A balancer may send it less, or nothing; what it may not do is give up requests that are being served, or turn
    others away because one backend is slow.
    """
    yield from nothing_lost(history, claims)


@declare("chaos.grey-failure.answers-belong", needs=(Failover,), scenario=grey_failure)
def grey_failure_answers_belong(history: History, claims: Claims) -> Findings:
    """While one backend is slow every answer is its own request's, and no update reaches a backend twice.

    Hedges and time limits leave attempts behind whose answers come later; they must reach nobody.
    """
    yield from answers_belong(history, claims)
