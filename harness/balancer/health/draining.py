"""Draining: a backend that left or became not ready gets no new requests; those in flight end by a deadline.

A draining backend has ever fewer requests in flight and so looks idle (seen broken: istio/istio#39870). Therefore
`draining` holds from `start` until the backend is back or dropped, not only while requests are in flight. An open
stream must not delay a drain for ever (seen broken: caddyserver/caddy#3818), and starting a drain again does not extend
its deadline. After a return, requests that were in flight before count like any others.
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
    """Drains by backend. `deadline_s`: maximum duration of one drain; ValueError if it is not above 0."""

    def __init__(self, deadline_s: float) -> None:
        if not deadline_s > 0:
            raise ValueError(f"deadline_s {deadline_s}: expected above 0")
        self._deadline_s = deadline_s
        self._drains: dict[str, _Drain] = {}

    def start(self, backend: str, in_flight: int, now_s: float) -> bool:
        """Drain `backend`, which has `in_flight` attempts. True if it is drained already.

        No effect on a drain that was started before.
        """
        drain = self._drains.setdefault(backend, _Drain(in_flight, now_s + self._deadline_s))
        return drain.in_flight == 0

    def ended(self, backend: str) -> bool:
        """An attempt at `backend` ended, with any result. True if it was the last one of a drain."""
        drain = self._drains.get(backend)
        if drain is None or drain.in_flight == 0:
            return False
        drain.in_flight -= 1
        return drain.in_flight == 0

    def draining(self, backend: str) -> bool:
        """Whether `backend` must get no new requests: it is draining, or drained and not back yet."""
        return backend in self._drains

    def returned(self, backend: str) -> None:
        """End the drain: `backend` is a ready member again, or its state is to be dropped."""
        self._drains.pop(backend, None)

    def keep_only(self, backends: frozenset[str]) -> None:
        """Drop drained backends that are not among `backends`; those with attempts in flight are kept."""
        self._drains = {name: drain for name, drain in self._drains.items() if drain.in_flight or name in backends}

    def expired(self, now_s: float) -> tuple[str, ...]:
        """Backends past their deadline, whose attempts in flight must be cancelled; each is returned once a drain."""
        over = [name for name, drain in self._drains.items() if self._due_s(drain) <= now_s]
        for name in over:
            self._drains[name].cut = True
        return tuple(over)

    def next_s(self) -> float | None:
        """Next time at which `expired` returns a backend; None if nothing can expire."""
        soonest_s = min(map(self._due_s, self._drains.values()), default=math.inf)
        return soonest_s if soonest_s < math.inf else None

    @staticmethod
    def _due_s(drain: _Drain) -> float:
        return drain.deadline_s if drain.in_flight and not drain.cut else math.inf
