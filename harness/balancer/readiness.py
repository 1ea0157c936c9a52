"""Active readiness: thresholds on check-ups, one schedule per backend so that a hung one delays no other."""

from __future__ import annotations

from dataclasses import dataclass

from harness.balancer.protocol import Action, CheckUp, SetTimer


@dataclass(slots=True)
class _Watched:
    timer_id: int
    ready: bool = True
    failures: int = 0
    successes: int = 0


class Readiness:
    """Who is ready. A newcomer counts as ready until its first checks say otherwise.

    `interval_s` from one check's start to the next, `timeout_s` for its answer; out after `unhealthy` failures in a
    row, back after `healthy` successes in a row.
    """

    def __init__(self, interval_s: float, timeout_s: float, unhealthy: int, healthy: int) -> None:
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._unhealthy = unhealthy
        self._healthy = healthy
        self._watched: dict[str, _Watched] = {}
        self._timers: dict[int, str] = {}
        self._checks: dict[int, str] = {}
        self._next_id = 0

    def set_backends(self, backends: tuple[str, ...], now_s: float) -> list[Action]:
        """Watch exactly `backends`; those watched already keep their state."""
        for gone in set(self._watched) - set(backends):
            self._timers.pop(self._watched.pop(gone).timer_id)
        # A check-up that was out when its backend left says nothing about the one that returns under that name.
        self._checks = {number: name for number, name in self._checks.items() if name in self._watched}
        actions: list[Action] = []
        for name in backends:
            if name in self._watched:
                continue
            self._next_id += 1
            self._watched[name] = _Watched(timer_id=self._next_id)
            self._timers[self._next_id] = name
            actions.append(SetTimer(self._next_id, now_s))
        return actions

    def timer_fired(self, timer_id: int, now_s: float) -> list[Action]:
        """Start the check that is due and set the timer of the next; nothing for a timer of a backend that left."""
        name = self._timers.get(timer_id)
        if name is None:
            return []
        self._next_id += 1
        self._checks[self._next_id] = name
        return [CheckUp(self._next_id, name, self._timeout_s), SetTimer(timer_id, now_s + self._interval_s)]

    def result(self, check_id: int, ok: bool) -> None:
        """Take note of a check's result; results of backends that left are ignored."""
        watched = self._watched.get(self._checks.pop(check_id, ""))
        if watched is None:
            return
        watched.failures = 0 if ok else watched.failures + 1
        watched.successes = watched.successes + 1 if ok else 0
        if watched.ready and watched.failures >= self._unhealthy:
            watched.ready = False
        elif not watched.ready and watched.successes >= self._healthy:
            watched.ready = True

    def ready(self, backend: str) -> bool:
        """Whether `backend` may get traffic."""
        watched = self._watched.get(backend)
        return watched is not None and watched.ready
