"""Probes through a half-open breaker."""

from __future__ import annotations

import numpy as np

from harness.claims.features import Breaker, Claims
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings, held, within
from suites.breaker.evidence import (
    calls_of,
    due_s,
    excess_s,
    load_end_s,
    open_times,
    own_keys,
    probing,
    too_early,
    tripped,
)
from suites.breaker.scenarios import FAULTY, MASKS, OTHER, OTHERS, lingering_probe_s, one_fails, probes_linger
from suites.margins import BOOKKEEPING_S, HANDOVER_S

LONG_SHARE = 0.5
"""Shortest long probe, as a share of its intended duration; other requests arrive during a long probe."""


@declare(
    "breaker.half-open.failed-probe-reopens",
    needs=(Breaker,),
    without=MASKS,
    off=OTHERS,
    scenario=one_fails,
)
def failed_probe_reopens(history: History, claims: Claims) -> Findings:
    """One failed probe opens a breaker again.

    The rules that trip a closed breaker do not apply. No request sent after a client received the probe's failure
    reaches the backend before the shortest open time has passed. Known violations: nodeshift/opossum#119 (the full
    threshold must be met again).
    """
    breaker, calls = claims[Breaker], calls_of(history, FAULTY)
    trip = tripped(history, calls, breaker)
    if trip is None:
        return
    for item in open_times(calls, trip)[1:]:
        until_s = item.trip.earliest_s + breaker.shortest_open_s
        if until_s > load_end_s(history):
            continue
        early = too_early(calls, item.trip, breaker)
        note = f"{len(early)} reached {FAULTY} too soon after probe {item.turn} had failed"
        yield held(not early, item.trip.latest_s, len(early), 0, until_s=until_s, sample=1, note=note)


def _at_most_claimed_probes(history: History, claims: Claims, backend: str) -> Findings:
    """Finding that a half-open breaker never has more probes in flight than claimed, if some probe is long."""
    breaker, calls = claims[Breaker], calls_of(history, backend)
    trip = tripped(history, calls, breaker)
    if trip is None:
        return
    intended_s = lingering_probe_s(history.scenario)
    probes, closed_s = probing(calls, trip, breaker)
    long = [call for call in probes if not call.end_s - call.start_s < LONG_SHARE * intended_s]
    if not long:
        return
    until_s = min(closed_s, load_end_s(history))
    above_s = excess_s(probes, breaker.probes, until_s)
    note = f"{backend}: {len(probes)} probes, {len(long)} of them long; more than {breaker.probes} at once for"
    note += f" {above_s * 1000:.0f} ms"
    yield within(above_s, 0.0, HANDOVER_S, long[0].start_s, until_s=until_s, sample=len(long), note=note)


@declare(
    "breaker.half-open.one-slow-probe",
    needs=(Breaker,),
    without=MASKS,
    off=OTHERS,
    scenario=probes_linger,
)
def one_slow_probe(history: History, claims: Claims) -> Findings:
    """A half-open breaker with a slow probe in flight lets no more requests through than its claimed probes.

    The backend counts as faulty until the probe is answered. Known violations: App-vNext/Polly#216; three inference
    routers that sent fourteen to twenty requests at once to a half-open backend.
    """
    yield from _at_most_claimed_probes(history, claims, FAULTY)


@declare(
    "breaker.half-open.one-hung-probe",
    needs=(Breaker,),
    without=MASKS,
    off=OTHERS,
    scenario=probes_linger,
)
def one_hung_probe(history: History, claims: Claims) -> Findings:
    """A half-open breaker with a hung probe lets no more requests through than its claimed probes.

    Clients abort the hung probes; an abort is neither success nor failure of the backend. The next probe may start
    after the abort but must not overlap the hung one. Known violations: a router that sends one probe at a time while
    probes fail fast, but eleven at once while they hang.
    """
    yield from _at_most_claimed_probes(history, claims, OTHER)


@declare(
    "breaker.half-open.abort-frees-slot",
    needs=(Breaker,),
    without=MASKS,
    off=OTHERS,
    scenario=probes_linger,
)
def abort_frees_slot(history: History, claims: Claims) -> Findings:
    """A probe that its client aborted frees its slot for another probe.

    The next probe must follow by the end of the next open time, which allows a balancer to count the abort as a
    failure. Known violations: resilience4j/resilience4j#544, resilience4j/resilience4j#935, Netflix/Hystrix#1621 (only
    success or failure frees the slot, so the breaker rejects for ever).
    """
    breaker, calls = claims[Breaker], calls_of(history, OTHER)
    trip = tripped(history, calls, breaker)
    if trip is None:
        return
    own = own_keys(history, OTHER, history.scenario.phase("before").end_s)
    probes, _ = probing(calls, trip, breaker)
    for probe in (call for call in probes if call.aborted):
        aborted_s = probe.client_end_s
        due = due_s(history, claims, own, aborted_s + breaker.open_band_s(1)[1])
        following = next((call for call in calls if call.sent_s > aborted_s), None)
        if following is None and not np.isfinite(due):
            continue
        ended_s = load_end_s(history) if following is None else following.start_s
        latest_s = (due if np.isfinite(due) else ended_s) + BOOKKEEPING_S
        note = f"probed again {(ended_s - aborted_s) * 1000:.0f} ms after the probe was aborted"
        note = "never probed again" if following is None else note
        yield within(ended_s - aborted_s, 0.0, latest_s - aborted_s, aborted_s, until_s=ended_s, note=note)
