"""Requests for healthy backends while the breaker of another backend is open."""

from __future__ import annotations

from harness.claims.features import Affinity, Breaker, Claims
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings, held
from suites.breaker.evidence import calls_of, own_keys, tripped
from suites.breaker.scenarios import FAULTY, MASKS, OTHERS, one_fails


@declare(
    "breaker.isolation.others-answered",
    needs=(Breaker,),
    without=MASKS,
    off=OTHERS,
    scenario=one_fails,
)
def others_are_answered(history: History, claims: Claims) -> Findings:
    """When the breaker of one backend trips, all requests for the other backends are answered.

    Known violations: one breaker for the whole service, so that one bad node of four makes the proxy reject 453 of 500
    requests although three nodes are healthy.
    """
    calls = calls_of(history, FAULTY)
    trip = tripped(history, calls, claims[Breaker])
    if trip is None:
        return
    own = own_keys(history, FAULTY, history.scenario.phase("before").end_s)
    sent = history.all_requests().sent_after(trip.latest_s)
    others = sent - (sent.with_keys(own) if Affinity in claims else sent.first_on(FAULTY))
    if not len(others):
        return
    lost, sample = len(others.lost()), len(others)
    note = f"{lost} of {sample} requests for other backends lost after {FAULTY} tripped"
    end_s = history.scenario.end_s
    yield held(lost == 0, trip.latest_s, lost, 0, until_s=end_s, sample=sample, note=note)
