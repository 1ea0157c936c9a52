"""Checks of a run under a fault plan; `suites/chaos/properties.py` makes properties of them. Declares no property."""

from __future__ import annotations

import numpy as np

from harness.claims.features import Affinity, Claims
from harness.evidence.history import History
from harness.property.findings import Findings, held, undecided, within
from harness.stats import band, beta_binomial_pmf, binomial_pmf
from suites.chaos.evidence import (
    began_s,
    faulty_backends,
    healed_s,
    sent_during_faults,
    was_used,
)
from suites.chaos.scenarios import CROWD, recovery_s
from suites.integrity import answer_belongs_to_request
from suites.margins import before_s

SETTLED_S = 0.2
"""Virtual users begin with think time; their number in flight has settled after about this time."""

LEAST_S = 0.4
"""Shortest observation time after the recovery."""

PACE = 0.9
"""Smallest conforming pace after the recovery, as a factor of the former pace; a cold cache may slow answers."""

COARSE = 40
"""Points per backend of the ring whose shares bound the losses where no affinity is claimed."""

FAULT_PLAN_ALPHA = 1e-4


def recovers(history: History, claims: Claims) -> Findings:
    """No request is lost before the fault plan or later than the claimed time after its end.

    Observed is the send time of the last lost request, in seconds after the end.
    """
    start_s, end_s = began_s(history), healed_s(history)
    if start_s is None or end_s is None or not was_used(history, faulty_backends(history), start_s):
        return
    requests, within_s = history.all_requests(), recovery_s(claims)
    before, late = requests.sent_between(0.0, before_s(history, start_s)), requests.sent_after(end_s + within_s)
    if not len(late):
        yield undecided("no request was sent later than the claimed time after the end", end_s)
        return
    early, judged = len(before.lost()), len(late)
    note = f"{early} lost before the plan began"
    yield held(early == 0, 0.0, early, 0, until_s=start_s, sample=len(before), note=note)
    lost = requests.sent_between(end_s, np.inf).lost()
    last_s = float(lost["sent_s"].max()) - end_s if len(lost) else 0.0
    note = f"{len(lost)} lost since the end at {end_s:.2f} s, {len(late.lost())} of {judged} sent later than the bound"
    yield within(last_s, 0.0, within_s, end_s + within_s, until_s=history.scenario.end_s, sample=judged, note=note)


def answers_belong(history: History, claims: Claims) -> Findings:
    """Every answer belongs to its request, the records of both sides agree, and no update reaches a backend twice."""
    if began_s(history) is None:
        return
    yield from answer_belongs_to_request(history, claims)
    updates = history.all_attempts().updates()
    if len(updates):
        sent = len(updates.requests())
        twice = len(updates) - sent
        note = f"{twice} of {sent} updates reached a backend again"
        yield held(twice == 0, 0.0, twice, 0, exact=True, sample=sent, note=note)


def contained(history: History, claims: Claims) -> Findings:
    """Lost requests do not exceed the faulty backends' share of the requests sent during the faults."""
    start_s, end_s, faulty = began_s(history), healed_s(history), faulty_backends(history)
    if start_s is None or end_s is None or not was_used(history, faulty, start_s):
        return
    from_s, until_s = before_s(history, start_s), end_s + recovery_s(claims)
    sent = len(sent_during_faults(history))
    lost = len(history.all_requests().sent_between(from_s, until_s).lost())
    others = history.scenario.backends - len(faulty)
    points = claims[Affinity].virtual_nodes if Affinity in claims else COARSE
    _, most = band(beta_binomial_pmf(sent, points * len(faulty), points * others), 2 * FAULT_PLAN_ALPHA)
    note = f"{lost} lost; {sent} were sent while {len(faulty)} of {history.scenario.backends} backends were faulty"
    yield held(lost <= most, from_s, lost, most, until_s=until_s, sample=sent, alpha=FAULT_PLAN_ALPHA, note=note)


def nothing_lost(history: History, claims: Claims) -> Findings:
    """No request is lost in the whole run."""
    start_s, end_s = began_s(history), healed_s(history)
    if start_s is None or end_s is None or not was_used(history, faulty_backends(history), start_s):
        return
    lost, sent = len(history.all_requests().lost()), len(history.requests)
    note = f"{lost} of {sent} lost"
    yield held(lost == 0, 0.0, lost, 0, until_s=history.scenario.end_s, sample=sent, note=note)


def crowd_keeps_its_pace(history: History, claims: Claims) -> Findings:
    """The virtual users of a closed loop send as many requests per second after the claimed time as before the plan.

    With n1 requests in an interval before and n2 in one after, n2 of n1 + n2 is binomial if both counts arrive
    independently at their rates; virtual users that wait for answers vary less. `PACE` of the former pace conforms.
    """
    start_s, end_s = began_s(history), healed_s(history)
    if start_s is None or end_s is None or not was_used(history, faulty_backends(history), start_s):
        return
    earlier = (SETTLED_S, before_s(history, start_s))
    later = (end_s + recovery_s(claims), history.scenario.end_s)
    lasts_s, later_s = earlier[1] - earlier[0], later[1] - later[0]
    if later_s < LEAST_S:
        yield undecided("too little of the run is left after the claimed time", end_s)
        return
    crowd = history.requests_in(CROWD)
    if lasts_s < LEAST_S:
        yield undecided("slack leaves too little of the run before the plan", start_s)
        return
    before, after = (len(crowd.sent_between(*interval)) for interval in (earlier, later))
    share = PACE * later_s / (PACE * later_s + lasts_s)
    least, _ = band(binomial_pmf(before + after, share), 2 * FAULT_PLAN_ALPHA)
    note = f"{before / lasts_s:.0f} a second before, {after / later_s:.0f} after: {after}, {least} at least due"
    yield held(
        after >= least,
        later[0],
        after,
        least,
        until_s=history.scenario.end_s,
        sample=before + after,
        alpha=FAULT_PLAN_ALPHA,
        note=note,
    )
