"""Cost and benefit of hedging: how many hedges are sent, when none may be sent, and how much latency they save."""

from __future__ import annotations

import math

import numpy as np

from harness.claims.features import Breaker, Claims, Hedge, Retry
from harness.evidence.history import History
from harness.evidence.tables import UNSEEN, Mask, Times
from harness.property.declare import declare
from harness.property.findings import Finding, Findings, held
from harness.scenario.model import Kind
from suites.hedge.evidence import hedges, in_flight, inference_hedges, outlasted, probes, winners
from suites.hedge.scenarios import BREAKER_OTHERS, LONG, OTHERS, SHORT, half_open, overload, overloaded, stalls

COUNTED_S = 0.01
"""Longest time between a balancer's charge for a hedge and the hedge's arrival at a backend."""

CUT = 0.8
"""Largest allowed latency of the slowest requests, as a share of that without hedging. A balancer that never hedges has
1; one that hedges at its quantile and within its budget has .36 on average, with a standard deviation of .06, and
stayed below .6 in 210 simulated runs."""


@declare("hedge.overhead.within-share", needs=(Hedge,), without=(Retry,), off=OTHERS, scenario=stalls)
def overhead_within_share(history: History, claims: Claims) -> Findings:
    """At no time do hedges exceed the claimed share of all requests so far.

    A quantile alone does not bound the number of hedges: it lets its share through in quiet times, by construction, and
    nearly all requests when everything is slow, when a fleet can least bear it. A token bucket that starts empty bounds
    them exactly. Where a burst is claimed, no run of requests has more hedges than its share plus that burst, so the
    budget left over from a quiet hour cannot be spent at once. Judged where more requests called for a hedge than the
    share allows. The note gives the share of the backends' time spent on unused answers. Known violations: by
    construction only.
    """
    hedge, attempts = claims[Hedge], history.attempts
    start_s = np.sort(attempts["start_s"][hedges(history)])
    if not len(start_s):
        return
    fresh = np.searchsorted(np.sort(history.requests["sent_s"]), start_s, side="right")
    allowed = np.floor(np.round(hedge.share * fresh, 6))
    sent = np.arange(1, len(start_s) + 1)
    called_for = int(np.count_nonzero(outlasted(history, claims, Kind.INFERENCE)))
    if called_for <= hedge.share * len(history.requests):
        return
    worst = int((sent - hedge.share * fresh).argmax())
    note = (
        f"{sent[worst]} hedges for {fresh[worst]} requests by {start_s[worst]:.3f} s, {allowed[worst]:.0f} allowed;"
        f" {len(start_s)} for {len(history.requests)} in all, {called_for} called for one;"
        f" {_wasted(history):.1%} of the backends' time was for answers that nobody used"
    )
    yield held(
        bool(sent[worst] <= allowed[worst]),
        at_s=float(start_s[worst]),
        observed=int(sent[worst]),
        bound=int(allowed[worst]),
        exact=True,
        sample=int(fresh[worst]),
        note=note,
    )
    if hedge.burst is not None:
        yield _worst_run(history, hedge.share, hedge.burst, start_s)


def _worst_run(history: History, share: float, burst: int, start_s: Times) -> Finding:
    """The run of hedges, sent at `start_s`, that exceeds its share of fresh requests by most.

    A request starts to count as fresh at some time between leaving its client and reaching a backend.
    """
    seen_s = history.attempts["start_s"][history.first_attempts()]
    seen_s = np.sort(seen_s[history.first_attempts() != UNSEEN])
    sent = np.arange(1, len(start_s) + 1)
    by_then = share * np.searchsorted(np.sort(history.requests["sent_s"]), start_s, side="right")
    before = share * np.searchsorted(seen_s, start_s - COUNTED_S, side="left")
    from_here = sent - 1 - before
    last = int((sent - by_then - np.minimum.accumulate(from_here)).argmax())
    first = int(from_here[: last + 1].argmin())
    count = int(sent[last] - sent[first] + 1)
    bound = burst + float(np.round(by_then[last] - before[first], 6))
    note = f"{count} hedges in a run that has {bound - burst:.1f} as its share; {burst} may be saved up"
    at_s, until_s = float(start_s[first]), float(start_s[last])
    return held(count <= bound, at_s, count, bound, until_s=until_s, sample=len(start_s), note=note)


def _wasted(history: History) -> float:
    """Share of the time spent inside backends on attempts that lost to another attempt of their request."""
    attempts, won = history.attempts, winners(history)
    spent_s = np.nan_to_num(attempts["end_s"] - attempts["start_s"])
    own = attempts["request"] >= 0
    lost = np.zeros(len(attempts), dtype=np.bool_)
    lost[own] = (won[attempts["request"][own]] != UNSEEN) & (won[attempts["request"][own]] != np.flatnonzero(own))
    return float(spent_s[lost].sum() / max(spent_s.sum(), 1e-9))


@declare(
    "hedge.tail.cut",
    needs=(Hedge,),
    without=(Retry,),
    off=OTHERS,
    scenario=stalls,
    baselines=("ring",),
    attempts=False,
)
def tail_cut(history: History, claims: Claims) -> Findings:
    """While single backends stall, the slowest requests take less time than they do without hedging.

    The check compares geometric means of the slowest requests, as many as lie beyond the claimed quantile, on the same
    arrivals. A single high quantile of about a thousand requests is too noisy, and a plain mean depends on a few
    outliers. No other property detects a balancer that claims to hedge and never does. Known violations: a sketch whose
    hedge asks for the same choice again, gets the backend that is slow already, and so never hedges.
    """
    phase = history.scenario.phase("stalls")
    mine = _regular(history) & _due_in(history, phase.start_s, phase.end_s)
    if not mine.any():
        return
    count = max(1, round((1 - claims[Hedge].quantile) * int(np.count_nonzero(mine))))
    hedged_s, baseline_s = _slowest_s(history, mine, count), _slowest_s(history.baseline("ring"), mine, count)
    bound_s = CUT * baseline_s
    note = f"the slowest {count} took {hedged_s * 1000:.0f} ms on average, {baseline_s * 1000:.0f} ms without hedging"
    yield held(hedged_s <= bound_s, phase.start_s, hedged_s, bound_s, until_s=phase.end_s, sample=count, note=note)


def _regular(history: History) -> Mask:
    """Requests of the streams whose clients wait for an answer."""
    waiting = [stream.name.startswith((SHORT, LONG)) for stream in history.scenario.load.streams]
    mask: Mask = np.array(waiting)[history.requests["stream"]]
    return mask


def _due_in(history: History, start_s: float, end_s: float) -> Mask:
    """Requests whose intended send time lies in [start_s, end_s)."""
    intended_s = history.requests["intended_s"]
    mask: Mask = (intended_s >= start_s) & (intended_s < end_s)
    return mask


def _slowest_s(history: History, mask: Mask, count: int) -> float:
    """Geometric mean latency of the slowest `count` requests in `mask`; a client's timeout where it got no answer."""
    requests = history.requests
    patience_s = np.array([stream.timeout_s for stream in history.scenario.load.streams])[requests["stream"]]
    latency_s: Times = np.where(history.answered(), requests["end_s"] - requests["intended_s"], patience_s)
    return float(np.exp(np.log(np.sort(latency_s[mask])[-count:]).mean()))


@declare("hedge.update.never", needs=(Hedge,), without=(Retry,), off=OTHERS, scenario=stalls)
def update_never(history: History, claims: Claims) -> Findings:
    """An update is never hedged, however slow it is.

    A hedged update would be carried out twice. Judged where updates were slower than the quantile after which an
    inference is hedged. Known violations: joshrotenberg/tower-resilience#393 (no test of what may be sent twice).
    """
    slow = int(np.count_nonzero(outlasted(history, claims, Kind.UPDATE)))
    if not slow:
        return
    rows = hedges(history)
    twice = rows[history.attempts["kind"][rows] == Kind.UPDATE]
    at_s = float(history.attempts["start_s"][twice[0]]) if len(twice) else 0.0
    note = f"{slow} updates were slow, {len(twice)} were sent again"
    yield held(not len(twice), at_s, len(twice), 0, exact=True, sample=slow, note=note)


@declare("hedge.overload.off", needs=(Hedge,), without=(Retry,), off=OTHERS, scenario=overload)
def overload_off(history: History, claims: Claims) -> Findings:
    """While the whole fleet is overloaded nothing is hedged.

    Every request is slow then, and more attempts for the same answers slow all of them further: hedging tips a fleet
    over (at 72 % load with losers that run on, 20,000 requests and 13,325 hedges take 1,620 ms each instead of 16). A
    fleet is overloaded if backends have on average 1.25 times the claimed threshold in flight, or 64 requests where no
    threshold is claimed, which is beyond any. Judged while requests that outlast their delay are among them. Seen
    broken: llm-d/llm-d-router#646 lists it as a risk.
    """
    attempts, requests, inside = history.attempts, history.requests, overloaded(claims[Hedge])
    full = math.ceil(inside * history.scenario.backends)
    slow = outlasted(history, claims, Kind.INFERENCE) & (in_flight(history, requests["sent_s"]) >= full)
    if not slow.any():
        return
    rows = inference_hedges(history)
    during = rows[in_flight(history, attempts["start_s"][rows]) >= full]
    sent_s = requests["sent_s"][slow]
    note = f"{len(during)} hedges with {full} or more requests in flight; {len(sent_s)} slow requests arrived meanwhile"
    yield held(
        not len(during),
        at_s=float(sent_s.min()),
        until_s=float(sent_s.max()),
        observed=len(during),
        bound=0,
        sample=len(sent_s),
        note=note,
    )


@declare(
    "hedge.breaker.off",
    needs=(Hedge, Breaker),
    without=(Retry,),
    off=BREAKER_OTHERS,
    scenario=half_open,
)
def breaker_off(history: History, claims: Claims) -> Findings:
    """A probe of a half-open breaker is never hedged, however slow it is, and a hedge is never used as a probe.

    A hedge that wins discards the probe's answer, so the breaker learns nothing and the backend stays out; a hedge sent
    to a backend on probation is likely to be the slower attempt. The first attempt after a backend's breaker was open
    is a probe. Judged on probes that outlast the delay of their model. Known violations: by construction only.
    """
    attempts = history.attempts
    attempts_per_request = np.bincount(attempts["request"][attempts["request"] >= 0], minlength=len(history.requests))
    slow = outlasted(history, claims, Kind.INFERENCE)
    for row in probes(history, claims[Breaker]):
        request, at_s = int(attempts["request"][row]), float(attempts["start_s"][row])
        others = int(attempts_per_request[request]) - 1
        if not slow[request] and not others:
            continue
        note = f"request {request}, the probe of gpu-{attempts['backend'][row]}, had {others} other attempts"
        yield held(not others, at_s, others, 0, until_s=float(history.requests["end_s"][request]), note=note)
