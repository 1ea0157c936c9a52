"""Sleep and wake-up of a GPU server, as in vLLM with ``mode=wait``.

After a sleep request no job and no load starts; once those in progress have ended, the server falls asleep. Falling
asleep and waking up take time (``Gpu.sleep_s``, ``Gpu.wake_s``). Jobs that wait or arrive meanwhile wait until it is
awake, as in vLLM (vllm-project/vllm#45326), or are refused (``Gpu.refuse_asleep``).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Literal

from mockgpu.gpu.events import Event, Slept, Woken
from mockgpu.gpu.scheduler_task import CallAt
from mockgpu.gpu.setup import Gpu


class _Phase(Enum):
    AWAKE = auto()
    DRAINING = auto()
    FALLING_ASLEEP = auto()
    ASLEEP = auto()
    WAKING = auto()


class Sleeper:
    """Sleep state of a GPU server. ``is_quiet``: nothing runs or loads. ``slept``, ``woken``: called on the change."""

    def __init__(
        self,
        gpu: Gpu,
        call_at: CallAt,
        emit: Callable[[Event], None],
        is_quiet: Callable[[], bool],
        slept: Callable[[float], None],
        woken: Callable[[float], None],
    ) -> None:
        self.level = 0  # level last fallen asleep at, until awake again; 0 else
        self._gpu = gpu
        self._call_at = call_at
        self._emit = emit
        self._is_quiet = is_quiet
        self._slept = slept
        self._woken = woken
        self._phase = _Phase.AWAKE
        self._target_level = 0  # last requested level; 0: awake

    @property
    def awake(self) -> bool:
        """Whether jobs and loads may start."""
        return self._phase is _Phase.AWAKE

    def sleep(self, at_s: float, level: Literal[1, 2]) -> None:
        """Request sleep; a transition in progress is completed first."""
        self._target_level = level
        self.proceed(at_s)

    def wake(self, at_s: float) -> None:
        """Request wake-up: immediate while jobs still run, else a transition in progress is completed first."""
        self._target_level = 0
        self.proceed(at_s)

    def proceed(self, at_s: float) -> None:
        """Move towards the requested level unless a transition is in progress. Also call it when a job or load ends."""
        target = self._target_level
        if self._phase is _Phase.AWAKE and target:
            self._phase = _Phase.DRAINING
        if self._phase is _Phase.DRAINING:
            if not target:
                self._finish_waking(at_s)
            elif self._is_quiet():
                self._fall_asleep(at_s)
        elif self._phase is _Phase.ASLEEP:
            if not target:
                self._phase = _Phase.WAKING
                self._call_at(at_s + self._gpu.wake_s[self.level - 1], self._end_waking, None)
            elif target != self.level:
                self._fall_asleep(at_s)

    def _fall_asleep(self, at_s: float) -> None:
        self._phase = _Phase.FALLING_ASLEEP
        self._call_at(at_s + self._gpu.sleep_s[self._target_level - 1], self._end_falling_asleep, self._target_level)

    def _end_falling_asleep(self, at_s: float, level: int) -> None:
        self._phase = _Phase.ASLEEP
        self.level = level
        self._emit(Slept(at_s, level))
        self._slept(at_s)
        self.proceed(at_s)

    def _end_waking(self, at_s: float, _: None) -> None:
        self.level = 0
        if self._target_level:
            self._emit(Woken(at_s))
            self._phase = _Phase.DRAINING  # nothing runs
            self.proceed(at_s)
        else:
            self._finish_waking(at_s)

    def _finish_waking(self, at_s: float) -> None:
        self._phase = _Phase.AWAKE
        self._emit(Woken(at_s))
        self._woken(at_s)
