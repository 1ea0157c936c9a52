"""Active readiness: thresholds on health checks, with one schedule per backend so that a hung one delays no other.

A health check is good if the backend answered as expected and does not report overload. Alive differs from ready: a
backend is alive if it answers at all, even if only to report that it is not ready.

**Guard.** Under overload, readiness is self-amplifying: one backend leaves rotation, the others get its load and leave
in turn, and the whole fleet cycles in and out of rotation (kubernetes/kubernetes#115917). So when less than a claimed
share of the fleet would be ready, the guard fails open: all backends that are alive and have passed a health check
before are in rotation and share the load. Keeping only those that were last ready would overload them while the others
are idle. Newcomers that never passed a check (still loading, not part of the fleet yet) and dead backends stay out,
unless no backend would be left. Source: Envoy's panic threshold (50 % by default), which also admits dead backends:
with three of four failing their checks all four get the same share.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from harness.balancer.health.health_score import free_share
from harness.balancer.health.windows import exact_ratio
from harness.gateway.expected_answer import STATUS_200, ExpectedAnswer
from harness.gateway.protocol import Action, Backend, SendHealthCheck, SetTimer


@dataclass(frozen=True, slots=True)
class RotationSettings:
    """Conditions for rotation beyond the answers to health checks. None switches a limit off.

    Overloaded: memory in use and not evictable above `memory_share` of the total, or more than `queue_depth` requests
    waiting. The guard acts below `minimum_ready_share` of the fleet (0: never). `gated`: newcomers are out until
    `healthy` health checks in a row were good. `jitter`: each interval is drawn within ± this share of itself.
    ValueError for numbers out of range.
    """

    memory_share: float | None = 0.95
    queue_depth: int | None = 100
    minimum_ready_share: float = 0.5
    gated: bool = False
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if self.memory_share is not None and not 0 < self.memory_share <= 1:
            raise ValueError(f"memory_share {self.memory_share}: expected above 0 and at most 1")
        if self.queue_depth is not None and self.queue_depth < 0:
            raise ValueError(f"queue_depth {self.queue_depth}: expected 0 or more")
        if not 0 <= self.minimum_ready_share <= 1 or not 0 <= self.jitter < 1:
            raise ValueError(
                f"minimum_ready_share {self.minimum_ready_share} and jitter {self.jitter}: expected from 0 to 1, and"
                " from 0 to below 1"
            )

    def overloaded(self, report: Backend) -> bool:
        """Whether a backend's report exceeds a limit. Impossible memory figures are ignored."""
        if self.queue_depth is not None and report.queue_depth > self.queue_depth:
            return True
        figures = (report.memory_total_mb, report.memory_used_mb, report.memory_evictable_mb)
        if self.memory_share is None or free_share(*figures) is None:
            return False
        numerator, denominator = exact_ratio(self.memory_share)
        taken_mb = report.memory_used_mb - report.memory_evictable_mb
        return taken_mb * denominator > numerator * report.memory_total_mb


CHECKS_ONLY = RotationSettings(memory_share=None, queue_depth=None, minimum_ready_share=0.0)
"""Rotation decided by the answers to health checks alone."""


@dataclass(slots=True)
class _CheckState:
    timer_id: int
    ready: bool
    failures: int = 0
    successes: int = 0
    unanswered: int = 0
    alive: bool = True
    passed: bool = False
    """Whether a health check was ever answered as expected."""
    newest_check: int = 0

    def record(self, ok: bool, good: bool, answered: bool, unhealthy: int, healthy: int) -> None:
        """Count the result of a health check."""
        self.failures = 0 if good else self.failures + 1
        self.successes = self.successes + 1 if good else 0
        self.unanswered = 0 if answered else self.unanswered + 1
        self.alive = self.unanswered < unhealthy
        if self.ready:
            self.ready = self.failures < unhealthy
        else:
            self.ready = self.successes >= healthy
        self.passed |= ok


class Readiness:
    """Readiness of the backends. Unless gated, a newcomer counts as ready until its first checks fail.

    `interval_s`: from one check's start to the next. `timeout_s`: time for its answer. A backend leaves rotation after
    `unhealthy` failures in a row and re-enters after `healthy` successes in a row. `rotation`: limits and guard; see
    the module. `generator` draws the jitter. `expected`: criterion of a good answer. ValueError for numbers out of
    range.
    """

    def __init__(
        self,
        interval_s: float,
        timeout_s: float,
        unhealthy: int,
        healthy: int,
        rotation: RotationSettings = CHECKS_ONLY,
        generator: Random | None = None,
        expected: ExpectedAnswer = STATUS_200,
    ) -> None:
        if not interval_s > 0 or not timeout_s > 0 or unhealthy < 1 or healthy < 1:
            raise ValueError(
                f"interval_s {interval_s}, timeout_s {timeout_s}, unhealthy {unhealthy} and healthy {healthy}: expected"
                " above 0, and 1 or more"
            )
        if rotation.jitter and generator is None:
            raise ValueError(f"jitter {rotation.jitter} without a generator to draw it")
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._unhealthy = unhealthy
        self._healthy = healthy
        self._settings = rotation
        self._random = generator
        self._expected = expected
        self._states: dict[str, _CheckState] = {}
        self._timers: dict[int, str] = {}
        self._checks: dict[int, str] = {}
        self._next_id = 0
        self._rotation: frozenset[str] = frozenset()
        self._guarded = False

    @property
    def guarded(self) -> bool:
        """Whether the guard acts now, so that backends that are not ready may be in rotation too."""
        return self._guarded

    @property
    def rotation(self) -> frozenset[str]:
        """Backends in rotation; the same object until the set is recomputed."""
        return self._rotation

    def set_backends(self, backends: tuple[str, ...], now_s: float) -> list[Action]:
        """Check exactly `backends`; those checked already keep their state. Returns the timers of new ones."""
        for gone in set(self._states) - set(backends):
            self._timers.pop(self._states.pop(gone).timer_id)
        # A check in flight when its backend left must not count for a backend that returns under the same name.
        self._checks = {number: name for number, name in self._checks.items() if name in self._states}
        actions: list[Action] = []
        for name in backends:
            if name in self._states:
                continue
            self._next_id += 1
            self._states[name] = _CheckState(timer_id=self._next_id, ready=not self._settings.gated)
            self._timers[self._next_id] = name
            actions.append(SetTimer(self._next_id, now_s))
        self._decide_rotation()
        return actions

    def timer_fired(self, timer_id: int, now_s: float) -> list[Action]:
        """Start the check that is due and set the next timer; no actions for a timer of a backend that left."""
        name = self._timers.get(timer_id)
        if name is None:
            return []
        self._next_id += 1
        self._checks[self._next_id] = name
        check = SendHealthCheck(self._next_id, name, self._timeout_s, self._expected)
        return [check, SetTimer(timer_id, now_s + self._drawn_interval_s())]

    def result(self, check_id: int, ok: bool, report: Backend | None = None, *, answered: bool | None = None) -> bool:
        """Record a check's result. Returns whether it brought its backend (back) into rotation, with cold caches.

        `ok`: answered as expected and in time. `report`: if the backend sent one. `answered`: whether there was any
        answer; by default, if it is ok or there is a report. Ignored are results of backends that left and of checks
        that began before one whose result is known, as the late timeout of a hang that is over is no evidence.
        """
        name = self._checks.pop(check_id, "")
        state = self._states.get(name)
        if state is None or check_id < state.newest_check:
            return False
        state.newest_check = check_id
        good = ok and (report is None or not self._settings.overloaded(report))
        was_answered = (ok or report is not None) if answered is None else answered
        was_in = name in self._rotation
        before = (state.ready, state.alive, state.passed)
        state.record(ok, good, was_answered, self._unhealthy, self._healthy)
        if before != (state.ready, state.alive, state.passed):
            self._decide_rotation()
        # A backend kept in rotation by the guard has been serving all along, so it does not re-enter when ready again.
        return state.ready and not was_in

    def ready(self, backend: str) -> bool:
        """Whether `backend` may receive traffic, by its own health checks or by the guard."""
        return backend in self._rotation

    def passing(self, backend: str) -> bool:
        """Whether `backend` is ready by its own health checks, regardless of the guard."""
        state = self._states.get(backend)
        return state is not None and state.ready

    def alive(self, backend: str) -> bool:
        """Whether `backend` answers its health checks at all; dead after `unhealthy` unanswered ones in a row."""
        state = self._states.get(backend)
        return state is not None and state.alive

    def _drawn_interval_s(self) -> float:
        if not self._settings.jitter or self._random is None:
            return self._interval_s
        return self._interval_s * self._random.uniform(1 - self._settings.jitter, 1 + self._settings.jitter)

    def _decide_rotation(self) -> None:
        """Recompute the rotation. Called only when a backend's state changed, so that queries are cheap."""
        chosen = {name for name, state in self._states.items() if state.ready}
        proven = {name for name, state in self._states.items() if state.passed}
        numerator, denominator = exact_ratio(self._settings.minimum_ready_share)
        self._guarded = len(chosen) * denominator < numerator * len(chosen | proven)
        if self._guarded:
            chosen |= {name for name in proven if self._states[name].alive}
        self._rotation = frozenset(chosen or proven) if self._guarded else frozenset(chosen)
