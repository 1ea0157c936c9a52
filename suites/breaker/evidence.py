"""A breaker observed from outside: calls at one backend, trips, probes. Declares no property.

The balancer learns of an answer after it left the backend (`end_s`) and before the client has it (`client_end_s`).
Where the order of two answers matters, each rule uses the bound with which no delay between them causes a false alarm.
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
from harness.property.findings import Within, within
from harness.scenario.model import Ending
from suites.margins import BOOKKEEPING_S

SILENT_SHARE = 0.5
"""A backend without a call for this share of the shortest open time is silent, which only a breaker explains.

Scenarios send enough traffic to rule out chance. A breaker that opens for less counts as one that never opens.
"""

EDGE_CALLS = 2
"""Number of calls on which the balancer and its backend may disagree at each edge of a window, or at a trip."""

SURELY_SLOW = 0.05
"""With this share of calls above a bound, their p99 exceeds it under any method of computing quantiles."""

PATIENT_REQUESTS = 40
"""Without affinity, at least one of this many requests is assumed to be due at a given backend: (3/4)^40 = 1e-5."""


@dataclass(frozen=True, slots=True)
class ObservedCall:
    """One attempt at the backend under test. Times are in seconds of the run; `client_end_s`: its client's end.

    `slack_s`: the slack when it was sent.
    """

    request: int
    sent_s: float
    start_s: float
    end_s: float
    client_end_s: float
    good: bool
    failed: bool
    aborted: bool
    slack_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Trip:
    """A breaker opened between `earliest_s` and `latest_s`, in seconds of the run."""

    earliest_s: float
    latest_s: float


def calls_of(history: History, backend: str) -> list[ObservedCall]:
    """All calls at `backend` that belong to requests of the load, in order of arrival."""
    calls, slack_s = [], history.slack_at(history.requests["sent_s"])
    for row in history.attempts_on(backend):
        request = history.requests[row["request"]]
        status, ending = int(row["status"]), int(row["ending"])
        failed = status >= 500 or ending == Ending.CUT
        calls.append(
            ObservedCall(
                request=int(row["request"]),
                sent_s=float(request["sent_s"]),
                start_s=float(row["start_s"]),
                end_s=float(row["end_s"]),
                client_end_s=float(request["end_s"]),
                good=ending == Ending.ANSWERED and 200 <= status < 300,
                failed=failed,
                aborted=ending == Ending.CLIENT_GONE,
                slack_s=float(slack_s[row["request"]]),
            )
        )
    return sorted(calls, key=lambda call: call.start_s)


def by_end(calls: Sequence[ObservedCall]) -> list[ObservedCall]:
    """The calls that succeeded or failed, in order of their end."""
    return sorted((call for call in calls if call.good or call.failed), key=lambda call: call.end_s)


def silent_s(breaker: Breaker) -> float:
    """Shortest silence, in seconds."""
    return SILENT_SHARE * breaker.shortest_open_s


def opening(calls: Sequence[ObservedCall], breaker: Breaker, load_end_s: float) -> tuple[list[ObservedCall], bool]:
    """The calls up to the first silence, and whether there was a silence before the load ended."""
    longest_s = silent_s(breaker)
    for position, call in enumerate(calls):
        following_s = calls[position + 1].start_s if position + 1 < len(calls) else load_end_s
        if following_s - call.start_s >= longest_s:
            return list(calls[: position + 1]), True
    return list(calls), False


def longest_gap_s(calls: Sequence[ObservedCall], start_s: float, end_s: float) -> float:
    """The longest time without an arriving call within [start_s, end_s], in seconds."""
    inside = [call.start_s for call in calls if start_s <= call.start_s <= end_s]
    points = [start_s, *inside, end_s]
    return max(later - earlier for earlier, later in pairwise(points))


def load_end_s(history: History) -> float:
    """Time of the last request sent; 0 if none was."""
    sent_s = history.requests["sent_s"]
    return float(np.nanmax(sent_s)) if np.isfinite(sent_s).any() else 0.0


# --- trips: required and permitted -------------------------------------------------------------------------


def closing_run(calls: Sequence[ObservedCall]) -> tuple[list[ObservedCall], list[ObservedCall]]:
    """The failures in a row at the end of `calls`: the possible members of the run, and the certain ones.

    A good call certainly ends the run of failures that clients had when its answer left the backend. It possibly ends
    the run of all failures that had left the backend when its own client had the answer.
    """
    ended = by_end(calls)
    last_good = max((call for call in ended if call.good), key=lambda call: call.end_s, default=None)
    failed = [call for call in ended if call.failed]
    if last_good is None:
        return failed, failed
    good_known_s = max(call.client_end_s for call in ended if call.good)
    return (
        [call for call in failed if call.client_end_s > last_good.end_s],
        [call for call in failed if call.end_s > good_known_s],
    )


def by_count(calls: Sequence[ObservedCall], breaker: Breaker) -> Trip | None:
    """The trip by failures in a row, for calls that all fail from some time on."""
    if breaker.failures is None:
        return None
    possible, certain = closing_run(calls)
    if len(certain) < breaker.failures:
        return None
    latest_s = sorted(call.client_end_s for call in certain)[breaker.failures - 1]
    return Trip(possible[breaker.failures - 1].end_s, latest_s)


def longest_run(calls: Sequence[ObservedCall]) -> int:
    """The largest number of failures in a row, in the order in which answers left the backend."""
    run = longest = 0
    for call in by_end(calls):
        run = run + 1 if call.failed else 0
        longest = max(longest, run)
    return longest


def windows(
    calls: Sequence[ObservedCall], span_s: float, bad: Callable[[ObservedCall], bool]
) -> Iterator[tuple[ObservedCall, int, int]]:
    """Each ended call with the number of calls and of bad calls in the window of `span_s` seconds up to its end."""
    inside: deque[ObservedCall] = deque()
    count = 0
    for call in by_end(calls):
        inside.append(call)
        count += bad(call)
        while call.end_s - inside[0].end_s >= span_s:
            count -= bad(inside.popleft())
        yield call, len(inside), count


def by_rate(calls: Sequence[ObservedCall], breaker: Breaker, certain: bool = True) -> ObservedCall | None:
    """The call with which the window certainly reaches the error rate, for any calls at its edges; None if none does.

    With `certain` false: the call with which it possibly does. Only a window that lies within the run is certain,
    because the balancer may have had calls before the run.
    """
    if breaker.error_rate is None:
        return None
    for call, count, bad in windows(calls, breaker.window_s, lambda call: call.failed):
        if certain and call.end_s < breaker.window_s:
            continue
        edge = EDGE_CALLS if certain else -EDGE_CALLS
        if count - edge >= breaker.minimum_calls and bad >= breaker.error_rate * (count + edge):
            return call
    return None


def by_latency(calls: Sequence[ObservedCall], breaker: Breaker, certain: bool = True) -> ObservedCall | None:
    """As `by_rate`, for the call with which the p99 of the window exceeds its bound."""
    bound_s = breaker.slow_p99_s
    if bound_s is None:
        return None
    for call, count, slow in windows(calls, breaker.window_s, lambda call: call.end_s - call.start_s > bound_s):
        edge, share = (EDGE_CALLS, SURELY_SLOW) if certain else (-EDGE_CALLS, 0.0)
        if count - edge >= breaker.minimum_calls and slow and slow >= share * count:
            return call
    return None


def tripped(history: History, calls: Sequence[ObservedCall], breaker: Breaker) -> Trip | None:
    """The first trip of a backend that fails from some time on: as claimed, or at an earlier first silence."""
    first, silence = opening(calls, breaker, load_end_s(history))
    trips = [by_count(first, breaker)]
    if (reached := by_rate(first, breaker)) is not None:
        trips.append(Trip(reached.end_s, reached.client_end_s))
    # A trip after a whole silence cannot have caused that silence.
    silent_by_s = max((call.start_s for call in first), default=0.0) + silent_s(breaker)
    found = [trip for trip in trips if trip is not None and trip.earliest_s < silent_by_s]
    if found:
        return min(found, key=lambda trip: trip.latest_s)
    failed = [call for call in first if call.failed]
    return Trip(failed[-1].end_s, failed[-1].client_end_s) if silence and failed else None


# --- after a trip ------------------------------------------------------------------------------------------


def after(calls: Sequence[ObservedCall], trip: Trip) -> list[ObservedCall]:
    """The calls whose requests were sent after the balancer must have tripped."""
    return [call for call in calls if call.sent_s > trip.latest_s + BOOKKEEPING_S + call.slack_s]


def too_early(calls: Sequence[ObservedCall], trip: Trip, breaker: Breaker) -> list[ObservedCall]:
    """The calls after a trip that arrived before the shortest open time had passed."""
    return [call for call in after(calls, trip) if call.start_s < trip.earliest_s + breaker.shortest_open_s]


@dataclass(frozen=True, slots=True)
class OpenTime:
    """Open time number `turn` (0: the first after closed), and the call that ended it (None if no call followed)."""

    turn: int
    trip: Trip
    following: ObservedCall | None


def open_times(calls: Sequence[ObservedCall], trip: Trip) -> list[OpenTime]:
    """Open times in order: the first begins with `trip`, each further one with a failed probe."""
    found: list[OpenTime] = []
    current: Trip | None = trip
    while current is not None:
        following = next(iter(after(calls, current)), None)
        found.append(OpenTime(len(found), current, following))
        failed = following is not None and following.failed
        current = Trip(following.end_s, following.client_end_s) if following is not None and failed else None
    return found


def own_keys(history: History, backend: str, until_s: float) -> frozenset[int]:
    """Keys of the requests sent before `until_s` whose first attempt went to `backend`."""
    return frozenset(history.all_requests().sent_between(-math.inf, until_s).first_on(backend)["key"].tolist())


def due_s(history: History, claims: Claims, own: frozenset[int], after_s: float) -> float:
    """Send time of the first request after `after_s` that is due at the owner of the keys `own`; inf if none is."""
    later = history.all_requests().sent_after(after_s)
    times, needed = (later.with_keys(own), 1) if Affinity in claims else (later, PATIENT_REQUESTS)
    return float(np.sort(times["sent_s"])[needed - 1]) if len(times) >= needed else math.inf


def open_time_finding(history: History, claims: Claims, backend: str, item: OpenTime) -> Within | None:
    """Finding that an open time ended within its band, plus the wait for a request that could serve as the probe.

    None if the load ended before such a request was due.
    """
    _, high_s = band = claims[Breaker].open_band_s(item.turn)
    own = own_keys(history, backend, history.scenario.phase("before").end_s)
    due = due_s(history, claims, own, item.trip.latest_s + high_s)
    began_s = item.trip.earliest_s
    if item.following is None and not np.isfinite(due):
        return None
    ended_s = load_end_s(history) if item.following is None else item.following.start_s
    latest_s = max(due if np.isfinite(due) else 0.0, item.trip.latest_s + high_s) + BOOKKEEPING_S
    note = f"{backend}, open time {item.turn + 1}: claimed {band[0]:.2f} to {band[1]:.2f} s"
    note += "; no call followed" if item.following is None else ""
    return within(ended_s - began_s, band[0], latest_s - began_s, began_s, until_s=ended_s, note=note)


def probing(calls: Sequence[ObservedCall], trip: Trip, breaker: Breaker) -> tuple[list[ObservedCall], float]:
    """The calls after a trip until good ones in a row may have closed the breaker, and that time (inf: never)."""
    later = after(calls, trip)
    good = 0
    for call in by_end(later):
        good = good + 1 if call.good else 0
        if good >= breaker.successes:
            return [item for item in later if item.start_s < call.end_s], call.end_s
    return later, math.inf


def excess_s(calls: Sequence[ObservedCall], at_once: int, until_s: float) -> float:
    """The longest time, in seconds up to `until_s`, with more than `at_once` of the calls in flight at the backend."""
    changes = [(min(call.start_s, until_s), 1) for call in calls]
    changes += [(until_s if math.isnan(call.end_s) else min(call.end_s, until_s), -1) for call in calls]
    in_flight, longest_s, since_s = 0, 0.0, 0.0
    for at_s, change in sorted(changes):
        if in_flight > at_once:
            longest_s = max(longest_s, at_s - since_s)
        if in_flight <= at_once < in_flight + change:
            since_s = at_s
        in_flight += change
    return longest_s
