"""The fault plan blackhole: one backend accepts connections and does not answer."""

from __future__ import annotations

from harness.claims.features import Claims, Failover
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings
from harness.scenario.model import Scenario
from suites.chaos.checks import answers_belong, contained, recovers
from suites.chaos.scenarios import fault_plan

FLEET = 3
LEAST_S = 1.5


def blackhole(claims: Claims) -> Scenario:
    """One of three backends accepts connections and is silent for as long as a failover may take, at least 1.5 s."""
    return fault_plan("blackhole", FLEET, claims, max(LEAST_S, claims[Failover].within_s))


@declare("chaos.blackhole.recovers", needs=(Failover,), scenario=blackhole)
def blackhole_recovers(history: History, claims: Claims) -> Findings:
    """After a silent backend answers again, every request sent later than the claimed time is answered.

    Requests sent during the silence fail only at their timeout, which is after the fault has healed. A balancer that
    counts those failures excludes a healthy backend; that does no harm while other backends serve.
    """
    yield from recovers(history, claims)


@declare("chaos.blackhole.contained", needs=(Failover,), scenario=blackhole)
def blackhole_contained(history: History, claims: Claims) -> Findings:
    """A silent backend costs at most its own share of requests.

    Requests that wait for it must not delay others. A connection pool, a queue or a number of workers shared by all
    backends fills up with hanging requests.
    """
    yield from contained(history, claims)


@declare("chaos.blackhole.answers-belong", needs=(Failover,), scenario=blackhole)
def blackhole_answers_belong(history: History, claims: Claims) -> Findings:
    """Through a silence and its end, every answer belongs to its request and no update reaches a backend twice.

    A connection abandoned during the silence may still deliver its answer later; if it is reused, another client gets
    that answer.
    """
    yield from answers_belong(history, claims)
