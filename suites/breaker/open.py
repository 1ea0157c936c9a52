"""Requests while a breaker is open, and the length of its open time."""

from __future__ import annotations

import numpy as np

from harness.claims.features import Breaker, Claims
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings, held, within
from suites.breaker.evidence import (
    calls_of,
    open_time_finding,
    open_times,
    own_keys,
    too_early,
    tripped,
)
from suites.breaker.scenarios import FAULTY, MASKS, OTHERS, all_fail, one_fails
from suites.margins import BOOKKEEPING_S, margin_s

FAST_S = 0.02
"""Longest time for the balancer's own answer: it takes milliseconds, the rest is network delay in both directions."""

USUAL = 0.95
"""Quantile of the balancer's own answers that is judged, so that one pause of the machine does not decide."""


@declare("breaker.open.gets-nothing", needs=(Breaker,), without=MASKS, off=OTHERS, scenario=one_fails)
def open_gets_nothing(history: History, claims: Claims) -> Findings:
    """An open breaker lets no request through before the shortest claimed open time has passed.

    Only requests sent after a client received the failure that tripped the breaker count. Known violations: an open
    breaker whose backend still gets requests on another path (sgl-project/sglang#31206).
    """
    breaker, calls = claims[Breaker], calls_of(history, FAULTY)
    trip = tripped(history, calls, breaker)
    if trip is None:
        return
    own = own_keys(history, FAULTY, history.scenario.phase("before").end_s)
    until_s = trip.earliest_s + breaker.shortest_open_s
    after_trip = history.all_requests().sent_after(trip.latest_s + margin_s(history, BOOKKEEPING_S, trip.latest_s))
    due = len(after_trip.sent_between(-np.inf, until_s).with_keys(own))
    if not due:
        return
    early = too_early(calls, trip, breaker)
    note = f"{len(early)} reached {FAULTY} while open; {due} requests of its keys were sent then"
    yield held(not early, trip.latest_s, len(early), 0, until_s=until_s, sample=due, note=note)


@declare("breaker.open.fails-fast", needs=(Breaker,), without=MASKS, off=OTHERS, scenario=all_fail)
def open_fails_fast(history: History, claims: Claims) -> Findings:
    """When every breaker is open, the balancer rejects requests within milliseconds.

    The 95th percentile of the rejection times of requests that reached no backend is judged. Known violations: with all
    breakers open, each request waits for four retry backoffs before it gets its 503.
    """
    rejected = history.all_requests().sent_after(history.scenario.phase("failing").start_s).unreached()
    if not len(rejected):
        return
    took_s = rejected["end_s"] - rejected["sent_s"]
    usual_s = float(np.quantile(took_s, USUAL))
    at_s, until_s = float(rejected["sent_s"].min()), float(rejected["sent_s"].max())
    note = f"{len(took_s)} rejected, the slowest after {float(took_s.max()) * 1000:.1f} ms"
    yield within(usual_s, 0.0, FAST_S, at_s, until_s=until_s, sample=len(took_s), note=note)


@declare("breaker.open.for-its-time", needs=(Breaker,), without=MASKS, off=OTHERS, scenario=all_fail)
def open_for_its_time(history: History, claims: Claims) -> Findings:
    """A breaker stays open for its claimed time, within its jitter, and then probes with the next request.

    The time from the failure that tripped the breaker to the next call at the backend is judged; the upper bound
    includes the wait for a request that is due there. Known violations: routers whose breakers leave a healthy backend
    unused for a minute after a short fault.
    """
    breaker = claims[Breaker]
    for backend in history.scenario.backend_ids:
        calls = calls_of(history, backend)
        trip = tripped(history, calls, breaker)
        if trip is None:
            continue
        finding = open_time_finding(history, claims, backend, open_times(calls, trip)[0])
        if finding is not None:
            yield finding


@declare(
    "breaker.open.ignores-late-failures",
    needs=(Breaker,),
    without=MASKS,
    off=OTHERS,
    scenario=one_fails,
)
def ignores_late_failures(history: History, claims: Claims) -> Findings:
    """Failures that arrive while a breaker is open do not lengthen its open time.

    They belong to calls that began before the trip; here these calls hang until they are reset. Known violations: each
    such failure restarts the open time, which delays recovery as long as late failures arrive; results of calls from
    before the trip decide the state after it (App-vNext/Polly#217).
    """
    breaker, calls = claims[Breaker], calls_of(history, FAULTY)
    trip = tripped(history, calls, breaker)
    if trip is None:
        return
    until_s = trip.earliest_s + breaker.shortest_open_s
    late = [call for call in calls if call.failed and call.start_s < trip.latest_s < call.end_s < until_s]
    finding = open_time_finding(history, claims, FAULTY, open_times(calls, trip)[0])
    if late and finding is not None:
        shift_s = late[-1].end_s - trip.latest_s
        note = f"{len(late)} failures until {shift_s * 1000:.0f} ms after the trip; {finding.note}"
        yield within(finding.observed_s, finding.low_s, finding.high_s, finding.at_s, finding.until_s, len(late), note)
