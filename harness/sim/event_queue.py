"""What is to happen in a simulated run, by virtual time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Protocol, TypeVar

from harness.gateway.protocol import NowFunction

NETWORK_DELAY_S = 0.0001
"""The network takes so long from anyone to anyone."""

Subject = TypeVar("Subject")


Act = Callable[[Any], None]
Entry = tuple[float, int, Act, Any]
"""When, in which order at that time, what to do, and its argument."""


class Limited(Protocol):
    """What a time limit is set to; the limit means nothing once it is done."""

    done: bool


LimitedSubject = TypeVar("LimitedSubject", bound=Limited)


class EventQueue:
    """Acts by time; those at equal times keep the order in which they were put in. `now` is the time of the run.

    An act is a function and its one argument. What is due in the order in which it was put in needs no heap: all that
    crosses the network, and limits of one length (a lane). Limits nearly always come to nothing, so of each lane one
    alone is on the heap.
    """

    def __init__(self) -> None:
        self.now = NowFunction()
        self._heap: list[Entry] = []
        self._hops: deque[Entry] = deque()
        self._order = 0
        self._lanes: dict[float, deque[Entry]] = {}
        """Limits by length; a lane is here as long as one of its limits, perhaps of something done, is on the heap."""

    @property
    def empty(self) -> bool:
        """Whether nothing is to come."""
        return not self._heap and not self._hops

    def at(self, at_s: float, act: Callable[[Subject], None], subject: Subject) -> None:
        """Do something at `at_s`, or now if that has passed."""
        self._order = order = self._order + 1
        now_s = self.now.now_s
        heappush(self._heap, (at_s if at_s > now_s else now_s, order, act, subject))

    def before(self, at_s: float, act: Callable[[Subject], None], subject: Subject) -> None:
        """As `at`, but before all else of that time. One at a time, as for a schedule of which only the next is in."""
        now_s = self.now.now_s
        heappush(self._heap, (at_s if at_s > now_s else now_s, 0, act, subject))

    def later(self, delay_s: float, act: Callable[[Subject], None], subject: Subject) -> None:
        """Do something in `delay_s` seconds."""
        self._order = order = self._order + 1
        heappush(self._heap, (self.now.now_s + delay_s, order, act, subject))

    def after_network_delay(self, act: Callable[[Subject], None], subject: Subject) -> None:
        """Do something in `NETWORK_DELAY_S` seconds."""
        self._order = order = self._order + 1
        self._hops.append((self.now.now_s + NETWORK_DELAY_S, order, act, subject))

    def limit(self, length_s: float, act: Callable[[LimitedSubject], None], subject: LimitedSubject) -> None:
        """Do something in `length_s` seconds (below 0: now) unless `subject` is done by then."""
        self._order = order = self._order + 1
        entry = (self.now.now_s + (length_s if length_s > 0 else 0.0), order, act, subject)
        lane = self._lanes.get(length_s)
        if lane is None:
            self._lanes[length_s] = deque((entry,))
            heappush(self._heap, (entry[0], order, self._limit_over, (length_s, entry)))
            return
        while lane and lane[0][3].done:
            lane.popleft()
        lane.append(entry)

    def advance(self, last_s: float = math.inf) -> bool:
        """Go to the next act and do it; False if there is none by `last_s`."""
        heap, hops = self._heap, self._hops
        if hops and (not heap or hops[0] < heap[0]):
            if hops[0][0] > last_s:
                return False
            self.now.now_s, _, act, subject = hops.popleft()
        elif heap and heap[0][0] <= last_s:
            self.now.now_s, _, act, subject = heappop(heap)
        else:
            return False
        act(subject)
        return True

    def _limit_over(self, over: tuple[float, Entry]) -> None:
        """The one limit of its lane on the heap is over: the next takes its place there."""
        length_s, entry = over
        lane = self._lanes[length_s]
        while lane and (lane[0] is entry or lane[0][3].done):
            lane.popleft()
        if lane:
            heappush(self._heap, (lane[0][0], lane[0][1], self._limit_over, (length_s, lane[0])))
        else:
            del self._lanes[length_s]
        _, _, act, subject = entry
        if not subject.done:
            act(subject)
