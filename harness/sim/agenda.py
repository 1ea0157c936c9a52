"""What is to happen in a simulated run, by virtual time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from harness.balancer.protocol import NowFunction

HOP_S = 0.0001
"""The network takes so long from anyone to anyone."""


class Agenda:
    """Acts by time; those at equal times keep the order in which they were put in. `now` is the time of the run."""

    def __init__(self) -> None:
        self.now = NowFunction()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0

    @property
    def next_s(self) -> float | None:
        """When the next act is due; None if there is none."""
        return self._heap[0][0] if self._heap else None

    def at(self, at_s: float, act: Callable[[], None]) -> None:
        """Do something at `at_s`, or now if that has passed."""
        self._order += 1
        heappush(self._heap, (max(at_s, self.now.now_s), self._order, act))

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do something in `delay_s` seconds."""
        self.at(self.now.now_s + delay_s, act)

    def advance(self) -> None:
        """Go to the next act and do it. IndexError if there is none."""
        self.now.now_s, _, act = heappop(self._heap)
        act()
