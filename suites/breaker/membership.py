"""A backend that leaves while its breaker is open, and returns."""

from __future__ import annotations

import numpy as np

from harness.claims.features import Affinity, Breaker, Claims
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings, held, undecided
from harness.scenario.faults import FailingStatus, Join, Leave
from harness.scenario.model import Load, Phase, Scenario, UnsupportedError
from suites.breaker.evidence import PATIENT_REQUESTS, after, calls_of, own_keys, tripped
from suites.breaker.scenarios import FAULTY, KEYS, MASKS, OTHERS, POOREST_SHARE, STEP_S, rate_per_s, traffic, trip_s
from suites.margins import BOOKKEEPING_S, margin_s
from suites.scenarios import key_carrier

AWAY_S = 0.03
"""Time between leave and return; the shorter it is, the more of the former open time remains at the return."""

ENOUGH = 5
"""Fewest requests for the backend that must be due between its return and the end of the open time."""


def leaves_while_open(claims: Claims) -> Scenario:
    """One of three backends fails until its breaker opens, heals, leaves and returns before the open time ends."""
    breaker = claims[Breaker]
    claims.need_membership()
    backends, rate = claims.fleet(3), rate_per_s(breaker)
    before_s = KEYS / rate + STEP_S
    earliest_s, latest_s = trip_s(breaker, rate, backends, before_s)
    heal_s = before_s + latest_s + STEP_S / 2
    leave_s = heal_s + STEP_S / 5
    join_s = leave_s + AWAY_S
    open_until_s = before_s + earliest_s + breaker.shortest_open_s
    if (open_until_s - join_s) * rate * POOREST_SHARE / backends < ENOUGH:
        raise UnsupportedError(f"opens for {breaker.open_s:g} s only, too short to leave and return in that time")
    end_s = open_until_s + 2 * STEP_S
    return Scenario(
        name="leaves-while-open",
        backends=backends,
        load=Load((traffic(rate, end_s),), key_carrier(claims)),
        timeline=(
            FailingStatus(FAULTY, before_s, 500, for_s=heal_s - before_s),
            Leave(FAULTY, leave_s),
            Join(FAULTY, join_s),
        ),
        phases=(Phase("before", 0.0, before_s), Phase("after", join_s, end_s)),
        intervals_s=(breaker.shortest_open_s,),
    )


@declare("breaker.return.starts-clean", needs=(Breaker,), without=(*MASKS, *OTHERS), scenario=leaves_while_open)
def return_starts_clean(history: History, claims: Claims) -> Findings:
    """A backend that left with an open breaker and returns under the same name starts with a closed one.

    The returned backend is a new member, often a new process, and its earlier failures do not apply to it. It gets its
    requests from its return on, although the former open time is not over. With affinity, the requests of its keys are
    judged; without, it must get any of forty requests. Known violations: a widely copied design keeps the state of a
    removed backend, so that a quickly replaced backend stays excluded.
    """
    breaker, leave, join = claims[Breaker], history.step("Leave", FAULTY), history.step("Join", FAULTY)
    if leave is None or join is None:
        return
    calls = [call for call in calls_of(history, FAULTY) if call.start_s < leave.asked_s]
    trip = tripped(history, calls, breaker)
    if trip is None or after(calls, trip):
        return  # its breaker was not open when it left
    until_s = trip.earliest_s + breaker.shortest_open_s
    known_s = margin_s(history, BOOKKEEPING_S, join.effective_s)
    due = history.all_requests().sent_after(join.effective_s + known_s).sent_between(-np.inf, until_s)
    if Affinity in claims:
        due = due.with_keys(own_keys(history, FAULTY, history.scenario.phase("before").end_s))
    count, needed = len(due), 1 if Affinity in claims else PATIENT_REQUESTS
    if count < needed:
        yield undecided(f"{count} requests for {FAULTY} between its return and the end of its open time", join.asked_s)
        return
    reached = len(due.first_on(join.backend))
    bound = count if Affinity in claims else 1
    note = f"{FAULTY} got {reached} of {count} requests after its return, {(until_s - join.effective_s) * 1000:.0f} ms"
    note += " before its former open time was over"
    yield held(reached >= bound, join.effective_s, reached, bound, until_s=until_s, sample=count, note=note)
