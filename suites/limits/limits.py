"""Limits: no more is admitted than claimed, requests within the limits are admitted, rejections are immediate.

Retry-After is not judged: a client's record of an answer does not contain its headers.
"""

from __future__ import annotations

import numpy as np

from harness.claims.features import Claims, Limits
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings, held, undecided, within
from harness.scenario.model import Failure
from suites.limits.scenarios import CALM_STREAM, CRITICAL, HOT, NORMAL, crowd, hot_second
from suites.margins import TRAVEL_S, clock_difference_s
from suites.scenarios import DISTURBING

REJECTION_STATUSES = (429, 503)
REJECTED_WITHIN_S = 0.02
REJECTED_QUANTILE = 0.95

SMALL_BURST = 5
ADMITTED_SHARE, ADMITTED_SHARE_SMALL_BURST = 0.9, 0.5
"""Smallest share of the requests within the claimed rate that must be admitted; the second value applies to a smaller
burst, since a full bucket earns no tokens: with a burst of one, 3 / (3 + 1) of the rate is left for random arrivals."""

LOADED_TIMES = 4
"""Smallest multiple of the claimed concurrency that must have reached backends; otherwise the limit was not under load.
"""

FEW = 10
"""With fewer rejections than this, a quantile of their latencies is meaningless."""


# --- rate ---------------------------------------------------------------------------------------------------


@declare("limits.rate.every-window", needs=(Limits,), off=DISTURBING, scenario=hot_second)
def rate_every_window(history: History, claims: Claims) -> Findings:
    """In every time window no more requests reach backends than the claimed burst and rate allow.

    In t seconds that is at most burst + rate × t, wherever the window begins: a counter that is reset each second lets
    twice the rate through around each full second. The check takes the worst of all windows that begin and end with an
    arrival, widened by the measured slack. Known violations: matrix-org/synapse#13018 (tokens were earned twice).
    """
    limits, phase = claims[Limits], history.scenario.phase(HOT)
    if limits.rate_per_s is None:
        return
    sent = len(history.requests_in(HOT))
    if sent <= limits.burst + limits.rate_per_s * (phase.end_s - phase.start_s):
        return
    times_s = np.sort(history.all_requests().reached().reached_s())
    if not len(times_s):
        return
    ahead = np.arange(len(times_s)) - limits.rate_per_s * times_s  # how far counts run ahead of the rate
    last = int((ahead - np.minimum.accumulate(ahead)).argmax())
    first = int(ahead[: last + 1].argmin())
    admitted, lasted_s = last - first + 1, float(times_s[last] - times_s[first])
    allowed = int(limits.burst + limits.rate_per_s * (lasted_s + clock_difference_s(history)) + 1e-6)
    yield held(
        admitted <= allowed,
        at_s=float(times_s[first]),
        until_s=float(times_s[last]),
        observed=admitted,
        bound=allowed,
        sample=len(times_s),
        note=f"{admitted} admitted in {lasted_s:.3f} s, allowed {allowed}: {limits.burst} and {limits.rate_per_s:g}/s",
    )


@declare("limits.rate.let-in", needs=(Limits,), off=DISTURBING, scenario=hot_second)
def rate_let_in(history: History, claims: Claims) -> Findings:
    """Requests within the rate are admitted: nearly all at half the rate, and nearly the full rate under higher load.

    At least nine tenths of either, or half if the burst is below five. A limiter that charges rejected requests admits
    none once the rate is exceeded too often. Known violations: svix/diom#115 (a bucket that was asked all the time
    never filled).
    """
    limits = claims[Limits]
    if limits.rate_per_s is None:
        return
    difference_s = clock_difference_s(history)
    share = ADMITTED_SHARE if limits.burst >= SMALL_BURST else ADMITTED_SHARE_SMALL_BURST
    for name in (CALM_STREAM, HOT):
        phase, mine = history.scenario.phase(name), history.requests_in(name)
        sent, admitted = len(mine), len(mine.reached())
        sent_s = mine.sent_between(0.0, np.inf)["sent_s"]
        lasts_s = (float(sent_s.max()) if len(sent_s) else phase.start_s) - phase.start_s - difference_s
        due = max(0.0, min(sent - limits.rate_per_s * difference_s, limits.rate_per_s * lasts_s))
        yield held(
            admitted >= share * due,
            at_s=phase.start_s,
            until_s=phase.end_s,
            observed=admitted,
            bound=share * due,
            sample=sent,
            note=f"{name}: {admitted} of {sent} admitted, the rate allows {due:.0f}",
        )


# --- rejections ---------------------------------------------------------------------------------------------


@declare("limits.refusals.told-at-once", needs=(Limits,), off=DISTURBING, scenario=hot_second)
def refusals_told_at_once(history: History, claims: Claims) -> Findings:
    """A request rejected by a limit is answered with 429 or 503, within milliseconds.

    The check has two findings: all requests that no backend saw were answered with one of these statuses, and 95 % of
    those answers came within 20 ms. Known violations: by construction only.
    """
    unseen = history.requests_in(HOT).unreached()
    if not unseen:
        return
    told = unseen.where(unseen["failure"] == Failure.NONE).with_status(*REJECTION_STATUSES)
    phase, unanswered = history.scenario.phase(HOT), len(unseen) - len(told)
    note = f"{unanswered} of {len(unseen)} that no backend saw were not answered with 429 or 503"
    yield held(unanswered == 0, phase.start_s, unanswered, 0, until_s=phase.end_s, sample=len(unseen), note=note)
    if len(told) < FEW:
        return
    slowest_s = float(np.quantile(told["end_s"] - told["sent_s"], REJECTED_QUANTILE))
    note = f"95 % of {len(told)} rejections took up to {1000 * slowest_s:.1f} ms"
    yield within(slowest_s, 0.0, REJECTED_WITHIN_S, phase.start_s, until_s=phase.end_s, sample=len(told), note=note)


# --- concurrency --------------------------------------------------------------------------------------------


@declare("limits.concurrency.never-more", needs=(Limits,), off=DISTURBING, scenario=crowd)
def concurrency_never_more(history: History, claims: Claims) -> Findings:
    """The number of requests at backends never exceeds the claimed concurrency.

    Counted at every arrival at a backend, while twice the load is sent that the fleet can serve. Known violations:
    BerriAI/litellm#18730 (test and debit were two steps, so that several passed the same test).
    """
    limits = claims[Limits]
    attempts = history.all_attempts()
    if limits.concurrency is None or not attempts:
        return
    if len(attempts) < LOADED_TIMES * limits.concurrency:
        yield undecided(f"only {len(attempts)} requests reached a backend")
        return
    began_s = np.sort(attempts["start_s"])
    ended_s = np.sort(attempts["end_s"]) - clock_difference_s(history)  # nan, still inside, sorts last
    inside = np.arange(1, len(began_s) + 1) - np.searchsorted(ended_s, began_s, side="right")
    worst = int(inside.argmax())
    most, at_s = int(inside[worst]), float(began_s[worst])
    note = f"up to {most} at once, claimed {limits.concurrency}"
    yield held(most <= limits.concurrency, at_s, most, limits.concurrency, sample=len(began_s), note=note)


@declare("limits.urgency.critical-first", needs=(Limits,), off=DISTURBING, scenario=crowd)
def urgency_critical_first(history: History, claims: Claims) -> Findings:
    """Where urgency is claimed to count, no normal request is admitted before a critical one.

    There is a finding for each critical request that arrived while normal requests waited. It must not be rejected,
    since a normal request has to make room for it, and while it waits no normal request may be admitted. Known
    violations: by construction only.
    """
    if not claims[Limits].by_urgency:
        return
    normal, critical = history.requests_in(NORMAL), history.requests_in(CRITICAL)
    margin_s = TRAVEL_S + clock_difference_s(history)
    for request, admitted_s in zip(critical, critical.reached_s().tolist(), strict=True):
        sent_s, end_s = float(request["sent_s"]), float(request["end_s"])
        earlier = normal.sent_between(0.0, sent_s - margin_s)
        if not earlier.where(earlier.reached_s() > sent_s + margin_s):
            continue
        if np.isnan(admitted_s):
            ahead = len(earlier.where(earlier.reached_s() > end_s + margin_s))
            fate = f"rejected with {request['status']} while {ahead} normal ones waited and were admitted later"
        else:
            later = normal.where(normal.reached_s() > sent_s + margin_s)
            ahead = len(later.where(later.reached_s() < admitted_s - margin_s))
            fate = f"waited {admitted_s - sent_s:.3f} s while {ahead} normal ones were admitted"
        note = f"request {request['number']}, critical, {fate}"
        yield held(ahead == 0, sent_s, ahead, 0, until_s=end_s, note=note)
