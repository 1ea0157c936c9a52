"""What a breaker's work looks like from outside: calls at one backend, trips, probes. No property is declared here.

When the balancer knew of an answer is bounded from both sides: not before the answer left the backend (`end_s`), not
after the client had it (`told_s`). Where the order of two answers matters, each rule takes the side that no delay
between them can turn into a false alarm.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from harness.claims.features import Affinity, Breaker, Claims
from harness.evidence.history import History
from harness.scenario.model import Ending

BOOKKEEPING_S = 0.005
"""A request sent this much later than a client was told of an answer meets a balancer that has counted the answer."""

HANDOVER_S = 0.02
"""A backend hears this much later, at most, that a call was given up, while the next one may be on its way already."""

SILENT_SHARE = 0.5
"""A backend without a call for this share of the shortest open time is silent: only a breaker explains it.

Scenarios send enough traffic that no chance does; a breaker that opens for less counts as one that never does.
"""

EDGE_CALLS = 2
"""So many calls may stand on the other side of a window's edge, or of a trip, for the balancer than for its backend."""

SURELY_SLOW = 0.05
"""With this share of calls above a bound their p99 is above it, whichever way it is read off."""

PATIENT_REQUESTS = 40
"""Where no key ties requests to a backend, one of so many is taken to be meant for it: (3/4)^40 = 1e-5."""


@dataclass(frozen=True, slots=True)
class ObservedCall:
    """One attempt at the backend in question. Times in seconds of the run; `told_s`: its client had its end."""

    request: int
    sent_s: float
    start_s: float
    end_s: float
    told_s: float
    good: bool
    failed: bool
    aborted: bool


@dataclass(frozen=True, slots=True)
class Trip:
    """A breaker opened no sooner than `earliest_s` and had done so when `told_s` was over."""

    earliest_s: float
    told_s: float


def calls_of(history: History, backend: str) -> list[ObservedCall]:
    """All calls that `backend` saw, by arrival there. Foreign ones are left out."""
    number = history.scenario.backend_ids.index(backend)
    rows = history.attempts[(history.attempts["backend"] == number) & (history.attempts["request"] >= 0)]
    calls = []
    for row in rows:
        request = history.requests[row["request"]]
        status, ending = int(row["status"]), int(row["ending"])
        failed = status >= 500 or ending == Ending.CUT
        calls.append(
            ObservedCall(
                request=int(row["request"]),
                sent_s=float(request["sent_s"]),
                start_s=float(row["start_s"]),
                end_s=float(row["end_s"]),
                told_s=float(request["end_s"]),
                good=ending == Ending.ANSWERED and 200 <= status < 300,
                failed=failed,
                aborted=ending == Ending.CLIENT_GONE,
            )
        )
    return sorted(calls, key=lambda call: call.start_s)


def by_end(calls: Sequence[ObservedCall]) -> list[ObservedCall]:
    """The calls that ended good or failed, in that order."""
    return sorted((call for call in calls if call.good or call.failed), key=lambda call: call.end_s)


def silent_s(breaker: Breaker) -> float:
    """How long a silence is at least."""
    return SILENT_SHARE * breaker.shortest_open_s


def opening(calls: Sequence[ObservedCall], breaker: Breaker, load_end_s: float) -> tuple[list[ObservedCall], bool]:
    """The calls up to the first silence, and whether there was one before the load ended."""
    longest_s = silent_s(breaker)
    for position, call in enumerate(calls):
        following_s = calls[position + 1].start_s if position + 1 < len(calls) else load_end_s
        if following_s - call.start_s >= longest_s:
            return list(calls[: position + 1]), True
    return list(calls), False


def longest_gap_s(calls: Sequence[ObservedCall], start_s: float, end_s: float) -> float:
    """The longest time within [start_s, end_s] in which no call arrived."""
    inside = [call.start_s for call in calls if start_s <= call.start_s <= end_s]
    points = [start_s, *inside, end_s]
    return max(later - sooner for sooner, later in pairwise(points))


def load_end_s(history: History) -> float:
    """When the last request was sent."""
    sent_s = history.requests["sent_s"]
    return float(np.nanmax(sent_s)) if np.isfinite(sent_s).any() else 0.0


# --- when a breaker must trip, and when it may -------------------------------------------------------------


def closing_run(calls: Sequence[ObservedCall]) -> tuple[list[ObservedCall], list[ObservedCall]]:
    """The failures in a row at the end of `calls`: those that may belong to the run, and those that surely do.

    A good call surely ends the run of failures that had been told when its answer left, and may end that of all whose
    answers had left when it was told.
    """
    ended = by_end(calls)
    last_good = max((call for call in ended if call.good), key=lambda call: call.end_s, default=None)
    failed = [call for call in ended if call.failed]
    if last_good is None:
        return failed, failed
    told_s = max(call.told_s for call in ended if call.good)
    return (
        [call for call in failed if call.told_s > last_good.end_s],
        [call for call in failed if call.end_s > told_s],
    )


def by_count(calls: Sequence[ObservedCall], breaker: Breaker) -> Trip | None:
    """The trip by failures in a row of calls that all fail from some moment on."""
    if breaker.failures is None:
        return None
    possible, sure = closing_run(calls)
    if len(sure) < breaker.failures:
        return None
    told_s = sorted(call.told_s for call in sure)[breaker.failures - 1]
    return Trip(possible[breaker.failures - 1].end_s, told_s)


def longest_run(calls: Sequence[ObservedCall]) -> int:
    """The most failures in a row, in the order in which answers left the backend."""
    run = longest = 0
    for call in by_end(calls):
        run = run + 1 if call.failed else 0
        longest = max(longest, run)
    return longest


def windows(
    calls: Sequence[ObservedCall], span_s: float, bad: Callable[[ObservedCall], bool]
) -> Iterator[tuple[ObservedCall, int, int]]:
    """Each ended call with the number of calls, and of bad ones, in the window that it closes."""
    inside: deque[ObservedCall] = deque()
    count = 0
    for call in by_end(calls):
        inside.append(call)
        count += bad(call)
        while call.end_s - inside[0].end_s >= span_s:
            count -= bad(inside.popleft())
        yield call, len(inside), count


def by_rate(calls: Sequence[ObservedCall], breaker: Breaker, sure: bool = True) -> ObservedCall | None:
    """The call with which the error rate is reached, whatever calls at the edges do; not `sure`: might be reached.

    Sure is only a window that began with the run or later: the balancer may have been tried out before.
    """
    if breaker.error_rate is None:
        return None
    for call, count, bad in windows(calls, breaker.window_s, lambda call: call.failed):
        if sure and call.end_s < breaker.window_s:
            continue
        edge = EDGE_CALLS if sure else -EDGE_CALLS
        if count - edge >= breaker.minimum_calls and bad >= breaker.error_rate * (count + edge):
            return call
    return None


def by_latency(calls: Sequence[ObservedCall], breaker: Breaker, sure: bool = True) -> ObservedCall | None:
    """The call with which the p99 of the window surely exceeds its bound; not `sure`: may exceed it."""
    bound_s = breaker.slow_p99_s
    if bound_s is None:
        return None
    for call, count, slow in windows(calls, breaker.window_s, lambda call: call.end_s - call.start_s > bound_s):
        edge, share = (EDGE_CALLS, SURELY_SLOW) if sure else (-EDGE_CALLS, 0.0)
        if count - edge >= breaker.minimum_calls and slow and slow >= share * count:
            return call
    return None


def tripped(history: History, calls: Sequence[ObservedCall], breaker: Breaker) -> Trip | None:
    """The first trip of a backend that fails from some moment on: by its claim, or with the first silence if sooner."""
    first, silence = opening(calls, breaker, load_end_s(history))
    trips = [by_count(first, breaker)]
    if (reached := by_rate(first, breaker)) is not None:
        trips.append(Trip(reached.end_s, reached.told_s))
    # What came about only when a whole silence had passed is not what silenced it.
    latest_s = max((call.start_s for call in first), default=0.0) + silent_s(breaker)
    found = [trip for trip in trips if trip is not None and trip.earliest_s < latest_s]
    if found:
        return min(found, key=lambda trip: trip.told_s)
    failed = [call for call in first if call.failed]
    return Trip(failed[-1].end_s, failed[-1].told_s) if silence and failed else None


# --- after a trip ------------------------------------------------------------------------------------------


def after(calls: Sequence[ObservedCall], trip: Trip) -> list[ObservedCall]:
    """The calls whose requests were sent when the trip was over and done."""
    return [call for call in calls if call.sent_s > trip.told_s + BOOKKEEPING_S]


def too_early(calls: Sequence[ObservedCall], trip: Trip, breaker: Breaker) -> list[ObservedCall]:
    """The calls after a trip that arrived before the shortest open time was over."""
    return [call for call in after(calls, trip) if call.start_s < trip.earliest_s + breaker.shortest_open_s]


@dataclass(frozen=True, slots=True)
class OpenTime:
    """Open time number `turn` (0: from closed), and the call that ended it; None: none came."""

    turn: int
    trip: Trip
    following: ObservedCall | None


def open_times(calls: Sequence[ObservedCall], trip: Trip) -> list[OpenTime]:
    """Open times in order: the one that `trip` began, then one for each failed probe until the first that did not."""
    found: list[OpenTime] = []
    current: Trip | None = trip
    while current is not None:
        following = next(iter(after(calls, current)), None)
        found.append(OpenTime(len(found), current, following))
        failed = following is not None and following.failed
        current = Trip(following.end_s, following.told_s) if following is not None and failed else None
    return found


def open_band(breaker: Breaker, turn: int) -> tuple[float, float]:
    """Shortest and longest that open time number `turn` may be, seconds."""
    backoff = breaker.backoff
    nominal_s = min(breaker.open_s * backoff.multiplier**turn, backoff.max_s)
    return nominal_s * (1 - backoff.jitter), min(nominal_s * (1 + backoff.jitter), backoff.max_s)


def own_keys(history: History, backend: str, until_s: float) -> frozenset[int]:
    """Keys whose requests went to `backend` first, of those sent until `until_s`."""
    number = history.scenario.backend_ids.index(backend)
    mine = (history.first_backends() == number) & (history.requests["sent_s"] < until_s)
    return frozenset(history.requests["key"][mine].tolist())


def due_s(history: History, claims: Claims, own: frozenset[int], after_s: float) -> float:
    """When the first request after `after_s` was sent that the backend with the keys `own` must get; inf: none was."""
    requests = history.requests
    later = requests["sent_s"] > after_s
    if Affinity in claims:
        times = np.sort(requests["sent_s"][later & np.isin(requests["key"], list(own))])
        return float(times[0]) if len(times) else math.inf
    times = np.sort(requests["sent_s"][later])
    return float(times[PATIENT_REQUESTS - 1]) if len(times) >= PATIENT_REQUESTS else math.inf


def probing(calls: Sequence[ObservedCall], trip: Trip, breaker: Breaker) -> tuple[list[ObservedCall], float]:
    """The calls after a trip until enough good ones in a row may have closed the breaker, and when (inf: never)."""
    later = after(calls, trip)
    good = 0
    for call in by_end(later):
        good = good + 1 if call.good else 0
        if good >= breaker.successes:
            return [item for item in later if item.start_s < call.end_s], call.end_s
    return later, math.inf


def crowded_s(calls: Sequence[ObservedCall], at_once: int, until_s: float) -> float:
    """The longest time, up to `until_s`, for which more than `at_once` of the calls were at the backend."""
    changes = [(min(call.start_s, until_s), 1) for call in calls]
    changes += [(until_s if math.isnan(call.end_s) else min(call.end_s, until_s), -1) for call in calls]
    here, longest_s, since_s = 0, 0.0, 0.0
    for at_s, change in sorted(changes):
        if here > at_once:
            longest_s = max(longest_s, at_s - since_s)
        if here <= at_once < here + change:
            since_s = at_s
        here += change
    return longest_s
