"""Breakers, second half: what an open one keeps away, when it probes and how, how it backs off and recovers."""

from __future__ import annotations

import numpy as np

from harness.claims.features import Affinity, Breaker, Claims
from harness.evidence.history import UNSEEN, History
from harness.property.declare import declare
from harness.property.findings import Findings, Within, held, sampled, within
from harness.scenario.model import UnsupportedError
from harness.stats import ALPHA
from suites.breaker.evidence import (
    BOOKKEEPING_S,
    HANDOVER_S,
    OpenTime,
    calls_of,
    crowded_s,
    due_s,
    load_end_s,
    open_band,
    open_times,
    own_keys,
    probing,
    too_early,
    tripped,
)
from suites.breaker.scenarios import MASKS, OTHER, OTHERS, SICK, all_fail, one_fails, probes_linger

FAST_S = 0.02
"""An answer of the balancer's own comes within milliseconds; the rest is the way there and back."""

USUAL = 0.95
"""This quantile of the balancer's own answers is judged, so that a single hiccup of a machine decides nothing."""

LONG_SHARE = 0.5
"""A probe that stayed for half of the time that the scenario meant it to is one during which others came by."""


def _wait(history: History, claims: Claims, backend: str, item: OpenTime) -> Within | None:
    """Whether an open time ended within its band, the wait for a request that could probe included; None: too late."""
    _, high_s = band = open_band(claims[Breaker], item.turn)
    own = own_keys(history, backend, history.scenario.phase("before").end_s)
    due = due_s(history, claims, own, item.trip.told_s + high_s)
    began_s = item.trip.earliest_s
    if item.following is None and not np.isfinite(due):
        return None
    ended_s = load_end_s(history) if item.following is None else item.following.start_s
    latest_s = max(due if np.isfinite(due) else 0.0, item.trip.told_s + high_s) + BOOKKEEPING_S
    note = f"{backend}, open time {item.turn + 1}: claimed {band[0]:.2f} to {band[1]:.2f} s"
    note += "; nothing came any more" if item.following is None else ""
    return within(ended_s - began_s, band[0], latest_s - began_s, began_s, until_s=ended_s, note=note)


@declare("breaker.open.gets-nothing", needs=(Breaker,), without=MASKS, off=OTHERS, scenario=one_fails)
def open_gets_nothing(history: History, claims: Claims) -> Findings:
    """An open breaker lets nothing through before the shortest open time that is claimed is over.

    Counted are requests that were sent when a client already had the failure that tripped it. Seen broken: an
    open breaker whose backend is still dispatched to on another path (sgl-project/sglang#31206).
    """
    breaker, calls = claims[Breaker], calls_of(history, SICK)
    trip = tripped(history, calls, breaker)
    if trip is None:
        return
    own = own_keys(history, SICK, history.scenario.phase("before").end_s)
    sent_s, keys = history.requests["sent_s"], history.requests["key"]
    while_open = (sent_s > trip.told_s + BOOKKEEPING_S) & (sent_s < trip.earliest_s + breaker.shortest_open_s)
    meant = int(np.count_nonzero(while_open & np.isin(keys, list(own))))
    if not meant:
        return
    intruders = too_early(calls, trip, breaker)
    until_s = trip.earliest_s + breaker.shortest_open_s
    note = f"{len(intruders)} reached {SICK} while open; {meant} requests of its keys were sent then"
    yield held(not intruders, trip.told_s, len(intruders), 0, until_s=until_s, sample=meant, note=note)


@declare("breaker.open.fails-fast", needs=(Breaker,), without=MASKS, off=OTHERS, scenario=all_fail)
def open_fails_fast(history: History, claims: Claims) -> Findings:
    """When every breaker is open, a request is rejected within milliseconds and reaches no backend.

    The 95th percentile is judged. Seen broken: all breakers open, and each request sleeps through four backoffs of its
    retries before it gets its 503.
    """
    requests = history.requests
    rejected = (history.first_backends() == UNSEEN) & np.isfinite(requests["sent_s"])
    rejected &= requests["sent_s"] > history.scenario.phase("failing").start_s
    if not rejected.any():
        return
    took_s = (requests["end_s"] - requests["sent_s"])[rejected]
    usual_s = float(np.quantile(took_s, USUAL))
    at_s, until_s = float(requests["sent_s"][rejected].min()), float(requests["sent_s"][rejected].max())
    note = f"{len(took_s)} rejected, the slowest after {float(took_s.max()) * 1000:.1f} ms"
    yield within(usual_s, 0.0, FAST_S, at_s, until_s=until_s, sample=len(took_s), note=note)


@declare("breaker.open.for-its-time", needs=(Breaker,), without=MASKS, off=OTHERS, scenario=all_fail)
def open_for_its_time(history: History, claims: Claims) -> Findings:
    """A breaker stays open for its claimed time, within its jitter, and then probes with the next request.

    The time from the failure that tripped it to the next call there, with the wait for a request that the backend must
    get on top. Seen broken: routers whose breakers leave a healthy backend unused for a minute after a short fault.
    """
    breaker = claims[Breaker]
    for backend in history.scenario.backend_ids:
        calls = calls_of(history, backend)
        trip = tripped(history, calls, breaker)
        if trip is None:
            continue
        finding = _wait(history, claims, backend, open_times(calls, trip)[0])
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
    """Failures that come in while a breaker is open do not lengthen its open time.

    They belong to calls that began before the trip: here they hang until they are reset. Seen broken: each such
    failure refreshes the time of opening, so that recovery is pushed away for as long as stragglers come; results
    of calls from before the trip decide what comes after it (App-vNext/Polly#217).
    """
    breaker, calls = claims[Breaker], calls_of(history, SICK)
    trip = tripped(history, calls, breaker)
    if trip is None:
        return
    until_s = trip.earliest_s + breaker.shortest_open_s
    late = [call for call in calls if call.failed and call.start_s < trip.told_s < call.end_s < until_s]
    finding = _wait(history, claims, SICK, open_times(calls, trip)[0])
    if late and finding is not None:
        shift_s = late[-1].end_s - trip.told_s
        note = f"{len(late)} failures until {shift_s * 1000:.0f} ms after the trip; {finding.note}"
        yield within(finding.observed_s, finding.low_s, finding.high_s, finding.at_s, finding.until_s, len(late), note)


@declare(
    "breaker.half-open.failed-probe-reopens",
    needs=(Breaker,),
    without=MASKS,
    off=OTHERS,
    scenario=one_fails,
)
def failed_probe_reopens(history: History, claims: Claims) -> Findings:
    """One failed probe opens a breaker again: it is not judged by the rules that trip a closed one.

    Nothing that was sent when a client already had the probe's failure reaches the backend before the shortest open
    time is over. Seen broken: nodeshift/opossum#119 (the full threshold must be met again).
    """
    breaker, calls = claims[Breaker], calls_of(history, SICK)
    trip = tripped(history, calls, breaker)
    if trip is None:
        return
    for item in open_times(calls, trip)[1:]:
        until_s = item.trip.earliest_s + breaker.shortest_open_s
        if until_s > load_end_s(history):
            continue
        intruders = too_early(calls, item.trip, breaker)
        note = f"{len(intruders)} reached {SICK} soon after probe {item.turn} had failed"
        yield held(not intruders, item.trip.told_s, len(intruders), 0, until_s=until_s, sample=1, note=note)


def _one_at_a_time(history: History, claims: Claims, backend: str) -> Findings:
    breaker, calls = claims[Breaker], calls_of(history, backend)
    trip = tripped(history, calls, breaker)
    if trip is None:
        return
    meant_s = history.scenario.intervals_s[-1]
    probes, closed_s = probing(calls, trip, breaker)
    long = [call for call in probes if not call.end_s - call.start_s < LONG_SHARE * meant_s]
    if not long:
        return
    until_s = min(closed_s, load_end_s(history))
    over_s = crowded_s(probes, breaker.probes, until_s)
    note = f"{backend}: {len(probes)} probes, {len(long)} of them long; more than {breaker.probes} at once for"
    note += f" {over_s * 1000:.0f} ms"
    yield within(over_s, 0.0, HANDOVER_S, long[0].start_s, until_s=until_s, sample=len(long), note=note)


@declare(
    "breaker.half-open.one-slow-probe",
    needs=(Breaker,),
    without=MASKS,
    off=OTHERS,
    scenario=probes_linger,
)
def one_slow_probe(history: History, claims: Claims) -> Findings:
    """While a slow probe is out, a half-open breaker lets no more requests through than it claims probes.

    Until the answer is known the backend is presumed sick. Seen broken: App-vNext/Polly#216; three inference routers
    that sent fourteen to twenty requests at once into a backend on probation.
    """
    yield from _one_at_a_time(history, claims, SICK)


@declare(
    "breaker.half-open.one-hung-probe",
    needs=(Breaker,),
    without=MASKS,
    off=OTHERS,
    scenario=probes_linger,
)
def one_hung_probe(history: History, claims: Claims) -> Findings:
    """While a probe hangs, a half-open breaker lets no more requests through than it claims probes.

    Each probe here is given up by its client, which says nothing about the backend; the next may follow then, never
    beside it. Seen broken: a router with one probe at a time as long as probes fail fast, and eleven once they hang.
    """
    yield from _one_at_a_time(history, claims, OTHER)


@declare(
    "breaker.half-open.abort-frees-slot",
    needs=(Breaker,),
    without=MASKS,
    off=OTHERS,
    scenario=probes_linger,
)
def abort_frees_slot(history: History, claims: Claims) -> Findings:
    """A probe that its client gave up frees its slot: the backend is probed again.

    At the latest after the next open time, for a balancer that takes the abort for a failure. Seen broken:
    resilience4j/resilience4j#544, resilience4j/resilience4j#935, Netflix/Hystrix#1621 (a slot that is freed only by
    success or failure; the breaker rejects for ever).
    """
    breaker, calls = claims[Breaker], calls_of(history, OTHER)
    trip = tripped(history, calls, breaker)
    if trip is None:
        return
    own = own_keys(history, OTHER, history.scenario.phase("before").end_s)
    probes, _ = probing(calls, trip, breaker)
    for probe in (call for call in probes if call.aborted):
        due = due_s(history, claims, own, probe.told_s + open_band(breaker, 1)[1])
        following = next((call for call in calls if call.sent_s > probe.told_s), None)
        if following is None and not np.isfinite(due):
            continue
        ended_s = load_end_s(history) if following is None else following.start_s
        latest_s = (due if np.isfinite(due) else ended_s) + BOOKKEEPING_S
        note = f"probed again {(ended_s - probe.told_s) * 1000:.0f} ms after the probe was given up"
        note = "never probed again" if following is None else note
        yield within(ended_s - probe.told_s, 0.0, latest_s - probe.told_s, probe.told_s, until_s=ended_s, note=note)


@declare("breaker.backoff.grows", needs=(Breaker,), without=MASKS, off=OTHERS, scenario=one_fails)
def backoff_grows(history: History, claims: Claims) -> Findings:
    """Each failed probe makes the open time longer by the claimed factor, within its jitter and up to its cap.

    Every open time lies in its own band: open_s × multiplier^k, plus or minus the jitter, never above the cap. With a
    factor of 2 and a jitter of 20 % the bands do not touch, so that the second open time settles the factor. A recovery
    that probes at one pace for ever hammers a backend that needs a rest.
    """
    breaker = claims[Breaker]
    if breaker.backoff.multiplier == 1.0:
        raise UnsupportedError("claims no backoff that grows")
    calls = calls_of(history, SICK)
    trip = tripped(history, calls, breaker)
    if trip is None:
        return
    for item in open_times(calls, trip)[1:]:
        finding = _wait(history, claims, SICK, item)
        if finding is not None:
            yield finding


@declare("breaker.backoff.jittered", needs=(Breaker,), without=MASKS, off=OTHERS, scenario=all_fail)
def backoff_jittered(history: History, claims: Claims) -> Findings:
    """Open times are spread over their jitter, so that breakers that tripped together do not probe together.

    Broken if all of them lie closer to their middle than chance leaves one in ten thousand of conforming runs: k open
    times spread evenly over ± j are all within ± j × (1e-4)^(1/k). Delays only spread them more. Seen broken: retry
    times without jitter, which return as one herd.
    """
    breaker = claims[Breaker]
    jitter = breaker.backoff.jitter
    if not jitter:
        raise UnsupportedError("claims no jitter")
    off = []
    for backend in history.scenario.backend_ids:
        calls = calls_of(history, backend)
        trip = tripped(history, calls, breaker)
        for item in [] if trip is None else open_times(calls, trip):
            nominal_s = breaker.open_s * breaker.backoff.multiplier**item.turn
            if item.following is not None and nominal_s * (1 + jitter) <= breaker.backoff.max_s:
                off.append(abs((item.following.start_s - item.trip.earliest_s) / nominal_s - 1))
    if not off:
        return
    start_s, end_s = history.scenario.phase("failing").start_s, history.scenario.end_s
    least = jitter * ALPHA ** (1 / len(off))
    note = f"{len(off)} open times, the farthest {max(off) * 100:.1f} % off its middle"
    yield held(max(off) > least, start_s, max(off), least, until_s=end_s, sample=len(off), alpha=ALPHA, note=note)


@declare("breaker.recovery.full-share", needs=(Breaker,), without=MASKS, off=OTHERS, scenario=one_fails)
def recovers_to_full_share(history: History, claims: Claims) -> Findings:
    """A backend that is well again gets all of its traffic back, after the claimed number of good probes.

    With affinity all requests of its keys go to it again; else its share is tested against the fair one, 40 % less or
    more being a breach. Judged from when the longest open time and the probes must be over. Seen broken: permits for
    probes used up by mere looks at candidates, so that a backend is never probed again; Netflix/Hystrix#1781 (stays
    open after recovery under load).
    """
    breaker, calls = claims[Breaker], calls_of(history, SICK)
    phase = history.scenario.phase("after")
    if tripped(history, calls, breaker) is None:
        return
    own = own_keys(history, SICK, history.scenario.phase("before").end_s)
    first, number = history.first_backends(), history.scenario.backend_ids.index(SICK)
    sent = history.requests["sent_s"] >= phase.start_s
    if Affinity not in claims:
        fair = 1.0 / history.scenario.backends
        hits = (first[sent] == number).tolist()
        yield sampled(
            hits, conform=(fair, fair), violate=(0.6 * fair, 1.4 * fair), at_s=phase.start_s, until_s=phase.end_s
        )
        return
    mine = sent & np.isin(history.requests["key"], list(own))
    if not mine.any():
        return
    lost = int(np.count_nonzero(first[mine] != number))
    note = f"{lost} of {int(mine.sum())} requests of {SICK}'s keys went elsewhere after it had recovered"
    yield held(lost == 0, phase.start_s, lost, 0, until_s=phase.end_s, sample=int(mine.sum()), note=note)


@declare(
    "breaker.isolation.others-answered",
    needs=(Breaker,),
    without=MASKS,
    off=OTHERS,
    scenario=one_fails,
)
def others_are_answered(history: History, claims: Claims) -> Findings:
    """Only the backend that fails suffers: requests that are meant for the others are all answered.

    Seen broken: a breaker for the whole service, so that one bad node of four makes the proxy reject 453 of 500
    requests though three nodes are fine.
    """
    calls = calls_of(history, SICK)
    trip = tripped(history, calls, claims[Breaker])
    if trip is None:
        return
    own = own_keys(history, SICK, history.scenario.phase("before").end_s)
    number = history.scenario.backend_ids.index(SICK)
    others = history.requests["sent_s"] > trip.told_s
    if Affinity in claims:
        others &= ~np.isin(history.requests["key"], list(own))
    else:
        others &= history.first_backends() != number
    if not others.any():
        return
    lost = int(np.count_nonzero(others & ~history.answered()))
    note = f"{lost} of {int(others.sum())} requests for other backends lost after {SICK} tripped"
    end_s = history.scenario.end_s
    yield held(lost == 0, trip.told_s, lost, 0, until_s=end_s, sample=int(others.sum()), note=note)
