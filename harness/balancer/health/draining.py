"""Draining: who left or became not ready gets nothing new, and what is in flight there ends, by a deadline if need be.

A draining backend has less and less in flight, so that it looks idle (seen broken: istio/istio#39870). Hence `draining`
holds from `start` until the backend is back or forgotten, and not just while something is in flight. One open stream
must not hold up a drain for ever (seen broken: caddyserver/caddy#3818), and telling a drain again does not give it more
time. A backend that returns is simply back: what was in flight before counts as any other request.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class _Drain:
    in_flight: int
    deadline_s: float
    cut: bool = False


class Draining:
    """Drains by backend. `deadline_s` is how long one may take; ValueError if it is not above 0."""

    def __init__(self, deadline_s: float) -> None:
        if not deadline_s > 0:
            raise ValueError(f"deadline_s {deadline_s}: expected above 0")
        self._deadline_s = deadline_s
        self._drains: dict[str, _Drain] = {}

    def start(self, backend: str, in_flight: int, now_s: float) -> bool:
        """Drain `backend`, which has `in_flight` attempts. True if it is drained already.

        If it is draining, nothing changes.
        """
        drain = self._drains.setdefault(backend, _Drain(in_flight, now_s + self._deadline_s))
        return drain.in_flight == 0

    def ended(self, backend: str) -> bool:
        """One attempt at `backend` ended, however it did. True if that was the last one of a drain."""
        drain = self._drains.get(backend)
        if drain is None or drain.in_flight == 0:
            return False
        drain.in_flight -= 1
        return drain.in_flight == 0

    def draining(self, backend: str) -> bool:
        """Whether `backend` must get nothing new: it is draining, or drained and not back yet."""
        return backend in self._drains

    def returned(self, backend: str) -> None:
        """`backend` is a ready member again, or is to be forgotten."""
        self._drains.pop(backend, None)

    def keep_only(self, backends: frozenset[str]) -> None:
        """Forget the drained ones that are not among `backends`; those with attempts in flight stay."""
        self._drains = {name: drain for name, drain in self._drains.items() if drain.in_flight or name in backends}

    def expired(self, now_s: float) -> tuple[str, ...]:
        """Backends whose time is over with attempts in flight, which must be cut; each is named once a drain."""
        over = [name for name, drain in self._drains.items() if self._due_s(drain) <= now_s]
        for name in over:
            self._drains[name].cut = True
        return tuple(over)

    def next_s(self) -> float | None:
        """When `expired` next has something to say; None if nothing can expire."""
        soonest_s = min(map(self._due_s, self._drains.values()), default=math.inf)
        return soonest_s if soonest_s < math.inf else None

    @staticmethod
    def _due_s(drain: _Drain) -> float:
        return drain.deadline_s if drain.in_flight and not drain.cut else math.inf
