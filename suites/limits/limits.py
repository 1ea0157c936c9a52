"""Limits: no more is let in than claimed, what is within them is, and who is refused is told so at once.

Retry-After is not judged: what clients note of an answer does not contain its headers.
"""

from __future__ import annotations

import numpy as np

from harness.claims.features import Claims, Limits
from harness.evidence.history import UNSEEN, History, Mask, Times
from harness.property.declare import declare
from harness.property.findings import Findings, held, undecided, within
from harness.scenario.model import Failure
from suites.limits.scenarios import CALM_STREAM, CRITICAL, HOT, NORMAL, crowd, hot_second
from suites.scenarios import CALM

REFUSALS = (429, 503)
TOLD_WITHIN_S = 0.02
TOLD_QUANTILE = 0.95

TRAVEL_S = 0.02
"""Over sockets, what is on its way between balancer and backend may differ by so much beside the measured slack."""

SMALL_BURST = 5
LET_IN, LET_IN_SINGLY = 0.9, 0.5
"""Of what the claimed rate lets in, at least so much must be let in; the latter with a smaller burst, since a full
bucket earns nothing: with a burst of one, 3 / (3 + 1) of the rate is left for what comes at random times."""

CROWDS = 4
"""So many times the claimed number must have reached backends, or the crowd never pressed."""

FEW = 10
"""With fewer refusals than this a quantile of the time they took says nothing."""


def _late_s(history: History) -> float:
    """By how much the times of what backends saw may differ from those in the balancer; 0 in virtual time."""
    slack_s = history.worst_slack_s(0.0, history.scenario.end_s)
    return slack_s + TRAVEL_S if slack_s else 0.0


def _reached_s(history: History) -> Times:
    """For each request when a backend first saw it; nan where none did."""
    rows = history.first_attempts()
    times_s = np.full(len(rows), np.nan)
    times_s[rows != UNSEEN] = history.attempts["start_s"][rows[rows != UNSEEN]]
    return times_s


def _refused(history: History) -> Mask:
    """Requests that were answered and that no backend saw."""
    mask: Mask = (history.first_attempts() == UNSEEN) & (history.requests["failure"] == Failure.NONE)
    return mask


# --- rate ---------------------------------------------------------------------------------------------------


@declare("limits.rate.every-window", needs=(Limits,), off=CALM, scenario=hot_second)
def rate_every_window(history: History, claims: Claims) -> Findings:
    """In every window of time no more requests reach backends than the claimed burst and rate allow.

    In t seconds at most burst + rate × t, wherever the window begins: what counts by the clock lets twice the rate
    through around each full second. Judged is the worst of all windows that begin and end with an arrival, widened by
    the measured slack. Seen broken: matrix-org/synapse#13018 (tokens were earned twice).
    """
    limits, phase = claims[Limits], history.scenario.phase(HOT)
    if limits.rate_per_s is None:
        return
    asked = int(np.count_nonzero(history.in_stream(HOT)))
    if asked <= limits.burst + limits.rate_per_s * (phase.end_s - phase.start_s):
        return
    reached_s = _reached_s(history)
    times_s = np.sort(reached_s[~np.isnan(reached_s)])
    if not len(times_s):
        return
    ahead = np.arange(len(times_s)) - limits.rate_per_s * times_s  # how far counts run ahead of the rate
    last = int((ahead - np.minimum.accumulate(ahead)).argmax())
    first = int(ahead[: last + 1].argmin())
    seen, lasted_s = last - first + 1, float(times_s[last] - times_s[first])
    allowed = int(limits.burst + limits.rate_per_s * (lasted_s + _late_s(history)) + 1e-6)
    yield held(
        seen <= allowed,
        at_s=float(times_s[first]),
        until_s=float(times_s[last]),
        observed=seen,
        bound=allowed,
        sample=len(times_s),
        note=f"{seen} let in within {lasted_s:.3f} s, allowed {allowed}: {limits.burst} and {limits.rate_per_s:g}/s",
    )


@declare("limits.rate.let-in", needs=(Limits,), off=CALM, scenario=hot_second)
def rate_let_in(history: History, claims: Claims) -> Findings:
    """What is within the rate is let in: nearly all at half the rate, and nearly the rate while more is asked.

    At least nine tenths of either, or half if the burst is below five. What debits requests that it refuses lets
    nothing through once it is asked too often. Seen broken: svix/diom#115 (a bucket that was asked all the time never
    filled).
    """
    limits = claims[Limits]
    if limits.rate_per_s is None:
        return
    reached = history.first_attempts() != UNSEEN
    share = LET_IN if limits.burst >= SMALL_BURST else LET_IN_SINGLY
    for name in (CALM_STREAM, HOT):
        phase, mine = history.scenario.phase(name), history.in_stream(name)
        asked, seen = int(np.count_nonzero(mine)), int(np.count_nonzero(mine & reached))
        sent_s = history.requests["sent_s"][mine & ~np.isnan(history.requests["sent_s"])]
        lasts_s = (float(sent_s.max()) if len(sent_s) else phase.start_s) - phase.start_s - _late_s(history)
        due = max(0.0, min(asked - limits.rate_per_s * _late_s(history), limits.rate_per_s * lasts_s))
        yield held(
            seen >= share * due,
            at_s=phase.start_s,
            until_s=phase.end_s,
            observed=seen,
            bound=share * due,
            sample=asked,
            note=f"{name}: {seen} of {asked} let in, where the rate calls for {due:.0f}",
        )


# --- refusals -----------------------------------------------------------------------------------------------


@declare("limits.refusals.told-at-once", needs=(Limits,), off=CALM, scenario=hot_second)
def refusals_told_at_once(history: History, claims: Claims) -> Findings:
    """Whoever is refused for a limit is told so: by 429 or 503, and within milliseconds.

    Two findings: all that no backend saw were answered with one of these statuses, and 95 % of those answers came
    within 20 ms. Seen broken: by construction only.
    """
    mine = history.in_stream(HOT)
    away = mine & (history.first_attempts() == UNSEEN)
    if not away.any():
        return
    told = away & _refused(history) & np.isin(history.requests["status"], REFUSALS)
    phase, rejected = history.scenario.phase(HOT), int(np.count_nonzero(away))
    untold = rejected - int(np.count_nonzero(told))
    note = f"{untold} of {rejected} that no backend saw were not told so by 429 or 503"
    yield held(untold == 0, phase.start_s, untold, 0, until_s=phase.end_s, sample=rejected, note=note)
    took_s = history.requests["end_s"][told] - history.requests["sent_s"][told]
    if len(took_s) < FEW:
        return
    slowest_s = float(np.quantile(took_s, TOLD_QUANTILE))
    note = f"95 % of {len(took_s)} refusals took up to {1000 * slowest_s:.1f} ms"
    yield within(slowest_s, 0.0, TOLD_WITHIN_S, phase.start_s, until_s=phase.end_s, sample=len(took_s), note=note)


# --- a crowd ------------------------------------------------------------------------------------------------


@declare("limits.concurrency.never-more", needs=(Limits,), off=CALM, scenario=crowd)
def concurrency_never_more(history: History, claims: Claims) -> Findings:
    """Never are more requests at backends at a time than the claimed concurrency.

    Counted at every arrival at a backend, while twice as much is sent as gets through. Seen broken:
    BerriAI/litellm#18730 (test and debit were two steps, so that several passed the same test).
    """
    limits = claims[Limits]
    attempts = history.attempts[history.attempts["request"] >= 0]
    if limits.concurrency is None or not len(attempts):
        return
    if len(attempts) < CROWDS * limits.concurrency:
        yield undecided(f"only {len(attempts)} requests reached a backend")
        return
    began_s = np.sort(attempts["start_s"])
    ended_s = np.sort(attempts["end_s"]) - _late_s(history)  # nan, still inside, sorts last
    inside = np.arange(1, len(began_s) + 1) - np.searchsorted(ended_s, began_s, side="right")
    worst = int(inside.argmax())
    most, at_s = int(inside[worst]), float(began_s[worst])
    note = f"up to {most} at a time, claimed {limits.concurrency}"
    yield held(most <= limits.concurrency, at_s, most, limits.concurrency, sample=len(began_s), note=note)


@declare("limits.urgency.critical-first", needs=(Limits,), off=CALM, scenario=crowd)
def urgency_critical_first(history: History, claims: Claims) -> Findings:
    """Where urgency is claimed to count, no normal request comes before a critical one.

    A finding for each critical request that came while normal ones waited. Turned away it must not be, as one of those
    had to make room for it; and while it waits none of them may be let in. Seen broken: by construction only.
    """
    if not claims[Limits].by_urgency:
        return
    requests, reached_s = history.requests, _reached_s(history)
    normal = history.in_stream(NORMAL)
    normal_sent_s, normal_reached_s = requests["sent_s"][normal], reached_s[normal]
    margin_s = TRAVEL_S + _late_s(history)
    for row in np.flatnonzero(history.in_stream(CRITICAL)):
        sent_s, let_in_s, end_s = float(requests["sent_s"][row]), float(reached_s[row]), float(requests["end_s"][row])
        earlier = normal_sent_s < sent_s - margin_s
        if not (earlier & (normal_reached_s > sent_s + margin_s)).any():
            continue
        if np.isnan(let_in_s):
            ahead = int(np.count_nonzero(earlier & (normal_reached_s > end_s + margin_s)))
            what = f"turned away with {requests['status'][row]} while {ahead} normal ones waited and were let in later"
        else:
            ahead = int(
                np.count_nonzero((normal_reached_s > sent_s + margin_s) & (normal_reached_s < let_in_s - margin_s))
            )
            what = f"waited {let_in_s - sent_s:.3f} s while {ahead} normal ones were let in"
        note = f"request {requests['number'][row]}, critical, {what}"
        yield held(ahead == 0, sent_s, ahead, 0, until_s=end_s, note=note)
