"""The event queue of a simulated run, ordered by virtual time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Protocol, TypeVar

from harness.gateway.protocol import NowFunction

NETWORK_DELAY_S = 0.0001
"""One-way network delay between any two parties, in seconds."""

Subject = TypeVar("Subject")


Callback = Callable[[Any], None]
Entry = tuple[float, int, Callback, Any]
"""Time in seconds, order among equal times, callback, and its argument."""


class Limited(Protocol):
    """Subject of a time limit. The limit is void once `done` is true."""

    done: bool


LimitedSubject = TypeVar("LimitedSubject", bound=Limited)


class EventQueue:
    """Callbacks, each with one argument, by time; equal times keep insertion order. `now` is the time of the run.

    Entries that are inserted in the order of their times need no heap: network deliveries, and time limits of equal
    length (a lane). Most limits are void before they expire, so only one entry of each lane is on the heap.
    """

    def __init__(self) -> None:
        self.now = NowFunction()
        self._heap: list[Entry] = []
        self._deliveries: deque[Entry] = deque()
        self._order = 0
        self._lanes: dict[float, deque[Entry]] = {}
        """Limits by length in seconds. A lane exists while one of its limits, possibly void, is on the heap."""

    @property
    def empty(self) -> bool:
        """Whether no entry is left."""
        return not self._heap and not self._deliveries

    def at(self, at_s: float, callback: Callable[[Subject], None], subject: Subject) -> None:
        """Schedule `callback(subject)` at `at_s`, or now if that time has passed."""
        self._order = order = self._order + 1
        now_s = self.now.now_s
        heappush(self._heap, (at_s if at_s > now_s else now_s, order, callback, subject))

    def before(self, at_s: float, callback: Callable[[Subject], None], subject: Subject) -> None:
        """As `at`, but ahead of all other entries of that time. At most one such entry may be queued at a time."""
        now_s = self.now.now_s
        heappush(self._heap, (at_s if at_s > now_s else now_s, 0, callback, subject))

    def later(self, delay_s: float, callback: Callable[[Subject], None], subject: Subject) -> None:
        """Schedule `callback(subject)` in `delay_s` seconds."""
        self._order = order = self._order + 1
        heappush(self._heap, (self.now.now_s + delay_s, order, callback, subject))

    def after_network_delay(self, callback: Callable[[Subject], None], subject: Subject) -> None:
        """Schedule `callback(subject)` in `NETWORK_DELAY_S` seconds."""
        self._order = order = self._order + 1
        self._deliveries.append((self.now.now_s + NETWORK_DELAY_S, order, callback, subject))

    def limit(self, length_s: float, callback: Callable[[LimitedSubject], None], subject: LimitedSubject) -> None:
        """Schedule `callback(subject)` in `length_s` seconds (below 0: now), skipped if `subject.done` by then."""
        self._order = order = self._order + 1
        entry = (self.now.now_s + (length_s if length_s > 0 else 0.0), order, callback, subject)
        lane = self._lanes.get(length_s)
        if lane is None:
            self._lanes[length_s] = deque((entry,))
            heappush(self._heap, (entry[0], order, self._limit_expired, (length_s, entry)))
            return
        while lane and lane[0][3].done:
            lane.popleft()
        lane.append(entry)

    def advance(self, last_s: float = math.inf) -> bool:
        """Advance to the next entry and run it. False if none is due by `last_s`."""
        heap, deliveries = self._heap, self._deliveries
        if deliveries and (not heap or deliveries[0] < heap[0]):
            if deliveries[0][0] > last_s:
                return False
            self.now.now_s, _, callback, subject = deliveries.popleft()
        elif heap and heap[0][0] <= last_s:
            self.now.now_s, _, callback, subject = heappop(heap)
        else:
            return False
        callback(subject)
        return True

    def _limit_expired(self, expired: tuple[float, Entry]) -> None:
        """Expire the limit of a lane that is on the heap, and push the lane's next one."""
        length_s, entry = expired
        lane = self._lanes[length_s]
        while lane and (lane[0] is entry or lane[0][3].done):
            lane.popleft()
        if lane:
            heappush(self._heap, (lane[0][0], lane[0][1], self._limit_expired, (length_s, lane[0])))
        else:
            del self._lanes[length_s]
        _, _, callback, subject = entry
        if not subject.done:
            callback(subject)
