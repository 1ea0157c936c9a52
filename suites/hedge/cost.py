"""Cost and benefit of hedging: how many hedges are sent, when none may be sent, and how much latency they save."""

from __future__ import annotations

import math

import numpy as np

from harness.claims.features import Breaker, Claims, Hedge, Retry
from harness.evidence.history import History
from harness.evidence.queries import RequestSelection
from harness.evidence.tables import UNSEEN, Times
from harness.property.declare import declare
from harness.property.findings import Finding, Findings, held
from harness.scenario.model import Kind
from suites.hedge.evidence import hedges, outlasted, probes, winners
from suites.hedge.scenarios import BREAKER_OTHERS, LONG, OTHERS, SHORT, half_open, overload, overloaded, stalls
from suites.margins import COUNTED_S, margins_s

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
    hedge = claims[Hedge]
    start_s = np.sort(history.all_attempts().later()["start_s"])
    if not len(start_s):
        return
    fresh = np.searchsorted(np.sort(history.requests["sent_s"]), start_s, side="right")
    allowed = np.floor(np.round(hedge.share * fresh, 6))
    sent = np.arange(1, len(start_s) + 1)
    called_for = len(outlasted(history, claims, Kind.INFERENCE))
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
    seen_s = np.sort(history.all_requests().reached().reached_s())
    sent = np.arange(1, len(start_s) + 1)
    by_then = share * np.searchsorted(np.sort(history.requests["sent_s"]), start_s, side="right")
    before = share * np.searchsorted(seen_s, start_s - margins_s(history, COUNTED_S, start_s), side="left")
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
    attempts, won = history.all_attempts(), winners(history)
    winner = won[attempts["request"]]
    lost = attempts.where((winner != UNSEEN) & (winner != attempts.rows))
    spent_s = np.nansum(history.attempts["end_s"] - history.attempts["start_s"])
    return float(np.nansum(lost["end_s"] - lost["start_s"]) / max(spent_s, 1e-9))


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
    hedged = _waiting(history).due_between(phase.start_s, phase.end_s)
    if not hedged:
        return
    alone = _waiting(history.baseline("ring")).due_between(phase.start_s, phase.end_s)
    count = max(1, round((1 - claims[Hedge].quantile) * len(hedged)))
    hedged_s, baseline_s = _slowest_s(hedged, count), _slowest_s(alone, count)
    bound_s = CUT * baseline_s
    note = f"the slowest {count} took {hedged_s * 1000:.0f} ms on average, {baseline_s * 1000:.0f} ms without hedging"
    yield held(hedged_s <= bound_s, phase.start_s, hedged_s, bound_s, until_s=phase.end_s, sample=count, note=note)


def _waiting(history: History) -> RequestSelection:
    """Requests of the streams whose clients wait for an answer."""
    names = [stream.name for stream in history.scenario.load.streams]
    return history.requests_in(*(name for name in names if name.startswith((SHORT, LONG))))


def _slowest_s(requests: RequestSelection, count: int) -> float:
    """Geometric mean latency of the slowest `count` of these requests; a client's timeout where it got no answer."""
    times_s = [requests.answered().latencies_s(), requests.tables.timeouts_s()[requests.lost()["stream"]]]
    return float(np.exp(np.log(np.sort(np.concatenate(times_s))[-count:]).mean()))


@declare("hedge.update.never", needs=(Hedge,), without=(Retry,), off=OTHERS, scenario=stalls)
def update_never(history: History, claims: Claims) -> Findings:
    """An update is never hedged, however slow it is.

    A hedged update would be carried out twice. Judged where updates were slower than the quantile after which an
    inference is hedged. Known violations: joshrotenberg/tower-resilience#393 (no test of what may be sent twice).
    """
    slow = len(outlasted(history, claims, Kind.UPDATE))
    if not slow:
        return
    twice = history.all_attempts().updates().later()
    at_s = float(twice["start_s"][0]) if twice else 0.0
    note = f"{slow} updates were slow, {len(twice)} were sent again"
    yield held(not twice, at_s, len(twice), 0, exact=True, sample=slow, note=note)


@declare("hedge.overload.off", needs=(Hedge,), without=(Retry,), off=OTHERS, scenario=overload)
def overload_off(history: History, claims: Claims) -> Findings:
    """While the whole fleet is overloaded nothing is hedged.

    Every request is slow then, and more attempts for the same answers slow all of them further: hedging tips a fleet
    over (at 72 % load with losers that run on, 20,000 requests and 13,325 hedges take 1,620 ms each instead of 16). A
    fleet is overloaded if backends have on average 1.25 times the claimed threshold in flight, or 64 requests where no
    threshold is claimed, which is beyond any. Judged while requests that outlast their delay are among them. Seen
    broken: llm-d/llm-d-router#646 lists it as a risk.
    """
    requests = history.all_requests()
    full = math.ceil(overloaded(claims[Hedge]) * history.scenario.backends)
    slow = outlasted(history, claims, Kind.INFERENCE)
    slow = slow.where(requests.in_flight_at(slow["sent_s"]) >= full)
    if not slow:
        return
    sent = hedges(history)
    during = len(sent.where(requests.in_flight_at(sent["start_s"]) >= full))
    note = f"{during} hedges with {full} or more requests in flight; {len(slow)} slow requests arrived meanwhile"
    at_s, until_s = float(slow["sent_s"].min()), float(slow["sent_s"].max())
    yield held(not during, at_s, during, 0, until_s=until_s, sample=len(slow), note=note)


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
    attempts, counts = history.attempts, history.all_requests().attempt_counts()
    slow = set(outlasted(history, claims, Kind.INFERENCE).rows.tolist())
    for row in probes(history, claims[Breaker]):
        request, at_s = int(attempts["request"][row]), float(attempts["start_s"][row])
        others = int(counts[request]) - 1
        if request not in slow and not others:
            continue
        note = f"request {request}, the probe of gpu-{attempts['backend'][row]}, had {others} other attempts"
        yield held(not others, at_s, others, 0, until_s=float(history.requests["end_s"][request]), note=note)
