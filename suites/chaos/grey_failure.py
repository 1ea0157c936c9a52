"""The fault plan grey-failure: one backend is slow but alive."""

from __future__ import annotations

from harness.claims.features import Claims, Failover
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings
from harness.scenario.model import Scenario
from suites.chaos.checks import answers_belong, nothing_lost, recovers
from suites.chaos.scenarios import fault_plan

FLEET = 3
FOR_S = 1.5


def grey_failure(claims: Claims) -> Scenario:
    """One of three backends takes half a second for each request, for 1.5 s."""
    return fault_plan("grey-failure", FLEET, claims, FOR_S)


@declare("chaos.grey-failure.recovers", needs=(Failover,), scenario=grey_failure)
def grey_failure_recovers(history: History, claims: Claims) -> Findings:
    """After a slow backend is fast again, every request sent later than the claimed time is answered.

    No request fails, so the balancer can observe the recovery only by the response times of requests that it still
    sends there.
    """
    yield from recovers(history, claims)


@declare("chaos.grey-failure.nothing-lost", needs=(Failover,), scenario=grey_failure)
def grey_failure_nothing_lost(history: History, claims: Claims) -> Findings:
    """A slow but live backend costs no request.

    It answers all its requests, well within the clients' timeouts. A balancer may send it fewer requests or none. It
    may not abandon requests that are being served, or reject others because one backend is slow.
    """
    yield from nothing_lost(history, claims)


@declare("chaos.grey-failure.answers-belong", needs=(Failover,), scenario=grey_failure)
def grey_failure_answers_belong(history: History, claims: Claims) -> Findings:
    """While one backend is slow, every answer belongs to its request and no update reaches a backend twice.

    Hedges and timeouts abandon attempts whose answers arrive later; no client may get those answers.
    """
    yield from answers_belong(history, claims)
