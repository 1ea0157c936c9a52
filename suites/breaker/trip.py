"""Conditions that trip a breaker, and conditions that must not. Each backend has its own breaker."""

from __future__ import annotations

from harness.claims.features import Affinity, Breaker, Claims
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings, Within, held, undecided, within
from harness.scenario.model import UnsupportedError
from suites.breaker.evidence import (
    ObservedCall,
    by_count,
    by_end,
    by_latency,
    by_rate,
    calls_of,
    closing_run,
    load_end_s,
    longest_gap_s,
    longest_run,
    opening,
    silent_s,
    windows,
)
from suites.breaker.scenarios import FAULTY, MASKS, OTHER, OTHERS, REJECTING, all_fail, one_slow, share_fails
from suites.margins import BOOKKEEPING_S


def _late_s(calls: list[ObservedCall], known_s: float) -> float:
    """Time from `known_s`, when the trip was known, to the last send of these calls; 0 if all were sent before."""
    return max(0.0, max(call.sent_s for call in calls) - known_s)


@declare("breaker.trip.at-count", needs=(Breaker,), without=MASKS, off=OTHERS, scenario=all_fail)
def trips_at_count(history: History, claims: Claims) -> Findings:
    """A breaker trips with exactly the claimed number of failures in a row.

    Every backend fails all requests from some time on. Two observations break the promise: fewer failures before the
    silence, and a request that reaches the backend although it was sent after a client received the last of those
    failures. Known violations: a counter of failures in a row that is never used; a trip that needs thousands of
    failures because old successes never expire (travis-ci/jupiter-brain#12).
    """
    breaker = claims[Breaker]
    if breaker.failures is None:
        raise UnsupportedError("the breaker does not count failures in a row")
    for backend in history.scenario.backend_ids:
        calls, silence = opening(calls_of(history, backend), breaker, load_end_s(history))
        possible, _ = closing_run(calls)
        by_share = by_rate(calls, breaker, certain=False)
        trip = by_count(calls, breaker)
        if not possible or (by_share is not None and (trip is None or by_share.end_s <= trip.earliest_s)):
            continue
        at_s = possible[-1].end_s if trip is None else trip.latest_s
        if trip is None and not silence:
            continue
        note = f"{backend} fell silent after {len(possible)} failures in a row"
        enough = len(possible) >= breaker.failures
        yield held(enough, at_s, len(possible), breaker.failures, sample=len(possible), note=note)
        if trip is not None:
            late_s = _late_s(calls, trip.latest_s)
            note = f"{backend}: last request sent {late_s * 1000:.0f} ms after failure {breaker.failures} was known"
            yield within(late_s, 0.0, BOOKKEEPING_S, at_s, sample=len(possible), note=note)


def _judged_by_share(history: History, claims: Claims) -> list[tuple[str, list[ObservedCall], bool]]:
    """Each judged backend of `share_fails` with its calls up to the first silence, and whether there was a silence.

    Only backends with steady traffic until their trip are judged: with affinity, the owner of the key.
    """
    breaker, end_s = claims[Breaker], load_end_s(history)
    observed = [(backend, calls_of(history, backend)) for backend in history.scenario.backend_ids]
    used = sorted((item for item in observed if item[1]), key=lambda item: item[1][0].start_s)
    chosen = used[:1] if Affinity in claims else used
    return [(backend, *opening(calls, breaker, end_s)) for backend, calls in chosen]


def _possibly_by_count(run: int, breaker: Breaker) -> bool:
    """Whether a run of failures may have tripped the breaker, in the order in which the balancer received the answers.

    The scenario's pattern has no such run, but a machine that delays requests and releases them together can cause it.
    """
    return breaker.failures is not None and run >= breaker.failures - 1


@declare("breaker.trip.at-rate", needs=(Breaker,), without=MASKS, off=OTHERS, scenario=share_fails)
def trips_at_rate(history: History, claims: Claims) -> Findings:
    """A breaker trips when the claimed share of the calls in its window has failed.

    Good answers come in between, so that no run of failures is long enough to trip it. Known violations: routers that
    count only failures in a row and never open at any share of failures; lifetime counters
    (travis-ci/jupiter-brain#12).
    """
    breaker = claims[Breaker]
    for backend, calls, silence in _judged_by_share(history, claims):
        certain = by_rate(calls, breaker)
        reached = certain or (by_rate(calls, breaker, certain=False) if silence else None)
        counted = [call for call in by_end(calls) if reached is None or call.end_s <= reached.end_s]
        run = longest_run(counted)
        if silence and _possibly_by_count(run, breaker):
            yield undecided(f"{backend} failed {run} times in a row before the rate was reached", calls[-1].start_s)
            continue
        if reached is None:
            continue
        late_s = _late_s(calls, reached.client_end_s) if certain else 0.0
        note = f"{backend}: last request sent {late_s * 1000:.0f} ms after the rate was certain, at most {run} in a row"
        yield within(late_s, 0.0, BOOKKEEPING_S, reached.client_end_s, sample=len(counted), note=note)


@declare(
    "breaker.trip.not-below-rate",
    needs=(Breaker,),
    without=MASKS,
    off=OTHERS,
    scenario=share_fails,
)
def stays_closed_below_rate(history: History, claims: Claims) -> Findings:
    """A breaker stays closed while fewer calls than the claimed share fail or fewer calls than its minimum have ended.

    At first, half of the claimed share fails, then more. The breaker may trip only when the share over its whole
    window is reached. Known violations: good answers that do not clear a run of failures, so that old failures trip a
    healthy backend; a rate judged on the first few calls.
    """
    breaker = claims[Breaker]
    for backend, calls, silence in _judged_by_share(history, claims):
        shares = [bad / count for _, count, bad in windows(calls, breaker.window_s, lambda call: call.failed)]
        if len(shares) < breaker.minimum_calls and not silence:
            continue
        permitted, run = by_rate(calls, breaker, certain=False) is not None, longest_run(calls)
        if silence and not permitted and _possibly_by_count(run, breaker):
            yield undecided(f"{backend} failed {run} times in a row and may have tripped on that", calls[-1].start_s)
            continue
        observed = shares[-1] if shares else 0.0
        note = f"{backend}: {observed:.2f} of the window failed {'when it fell silent' if silence else 'at the end'}"
        bound = breaker.error_rate or 1.0
        yield held(permitted or not silence, calls[-1].start_s, observed, bound, sample=len(shares), note=note)


@declare("breaker.trip.at-latency", needs=(Breaker,), without=MASKS, off=OTHERS, scenario=one_slow)
def trips_at_latency(history: History, claims: Claims) -> Findings:
    """A breaker trips when the p99 of its window exceeds the claimed bound.

    Every answer is good. The breaker must have tripped when a twentieth of the window is too slow, which allows any
    method of computing quantiles. Known violations: the latency of the last health check used instead of a quantile
    over requests.
    """
    breaker = claims[Breaker]
    calls, silence = opening(calls_of(history, FAULTY), breaker, load_end_s(history))
    certain = by_latency(calls, breaker)
    reached = certain or (by_latency(calls, breaker, certain=False) if silence else None)
    if reached is None:
        return
    late_s = _late_s(calls, reached.client_end_s) if certain else 0.0
    note = f"{FAULTY}: last request sent {late_s * 1000:.0f} ms after the p99 was certainly above its bound"
    yield within(late_s, 0.0, BOOKKEEPING_S, reached.client_end_s, sample=len(calls), note=note)


@declare(
    "breaker.trip.not-below-latency",
    needs=(Breaker,),
    without=MASKS,
    off=OTHERS,
    scenario=one_slow,
)
def stays_closed_below_latency(history: History, claims: Claims) -> Findings:
    """A breaker stays closed while a backend is slower than before but within the claimed bound.

    Service takes half of the bound, and no silence may follow. If a call took longer than the bound anyway, the check
    is undecided.
    """
    breaker = claims[Breaker]
    phase = history.scenario.phase("slow")
    calls = [call for call in calls_of(history, OTHER) if call.start_s >= phase.start_s]
    gap_s = longest_gap_s(calls, phase.start_s, load_end_s(history))
    if len(calls) < breaker.minimum_calls and gap_s < silent_s(breaker):
        return
    worst_s = max((call.client_end_s - call.sent_s for call in calls), default=0.0)
    if breaker.slow_p99_s is not None and worst_s > breaker.slow_p99_s:
        yield undecided(f"a call took {worst_s * 1000:.0f} ms, intended to take half of the bound", phase.start_s)
        return
    yield _no_silence(history, calls, phase.start_s, breaker, f"slowest answer after {worst_s * 1000:.0f} ms")


@declare(
    "breaker.trip.not-by-client-errors",
    needs=(Breaker,),
    without=MASKS,
    off=OTHERS,
    scenario=one_slow,
)
def stays_closed_on_client_errors(history: History, claims: Claims) -> Findings:
    """Client errors (4xx) do not trip a breaker.

    One backend answers every request with 404 from some time on. Known violations: sixty bad requests opened every
    breaker of a fleet for a minute (sgl-project/sglang#25811).
    """
    breaker = claims[Breaker]
    step = history.step("FailingStatus", REJECTING)
    if step is None:
        return
    rejected = len(history.attempts_on(REJECTING).with_status(*range(400, 500)))
    calls = calls_of(history, REJECTING)
    gap_s = longest_gap_s(calls, step.effective_s, load_end_s(history))
    if rejected < (breaker.failures or breaker.minimum_calls) and gap_s < silent_s(breaker):
        return
    yield _no_silence(history, calls, step.effective_s, breaker, f"{rejected} answers 404")


def _no_silence(history: History, calls: list[ObservedCall], start_s: float, breaker: Breaker, detail: str) -> Within:
    """Finding that the longest time without a call, from `start_s` to the end of the load, is no silence."""
    end_s = load_end_s(history)
    gap_s = longest_gap_s(calls, start_s, end_s)
    note = f"{detail}; longest time without a call {gap_s * 1000:.0f} ms"
    return within(gap_s, 0.0, silent_s(breaker), start_s, until_s=end_s, sample=len(calls), note=note)
