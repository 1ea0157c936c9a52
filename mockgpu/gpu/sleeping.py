"""Sleep and wake-up of a GPU server, as in vLLM with ``mode=wait``.

Once told to sleep no job starts and no load begins; when those that have started have ended it falls asleep, which
takes a while, and so does waking up. Jobs that wait or come meanwhile wait until it is awake, which is what vLLM does
with them (vllm-project/vllm#45326), or are refused, as the setup says.
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
    """Whether a GPU server sleeps. ``is_quiet``: nothing runs or loads. ``slept``, ``woken``: called when it is so."""

    def __init__(
        self,
        gpu: Gpu,
        call_at: CallAt,
        emit: Callable[[Event], None],
        is_quiet: Callable[[], bool],
        slept: Callable[[float], None],
        woken: Callable[[float], None],
    ) -> None:
        self.level = 0  # from when it sleeps until it is awake again
        self._gpu = gpu
        self._call_at = call_at
        self._emit = emit
        self._is_quiet = is_quiet
        self._slept = slept
        self._woken = woken
        self._phase = _Phase.AWAKE
        self._wish = 0  # the level it was last told to sleep at; 0: to be awake

    @property
    def awake(self) -> bool:
        """Whether jobs and loads may start."""
        return self._phase is _Phase.AWAKE

    def sleep(self, at_s: float, level: Literal[1, 2]) -> None:
        """Go to sleep; what is under way ends first."""
        self._wish = level
        self.look(at_s)

    def wake(self, at_s: float) -> None:
        """Wake up: at once while jobs still run, else what is under way ends first."""
        self._wish = 0
        self.look(at_s)

    def look(self, at_s: float) -> None:
        """Do what is wished for, if nothing is under way. To be called when something has ended, too."""
        wish = self._wish
        if self._phase is _Phase.AWAKE and wish:
            self._phase = _Phase.DRAINING
        if self._phase is _Phase.DRAINING:
            if not wish:
                self._come_awake(at_s)
            elif self._is_quiet():
                self._fall_asleep(at_s)
        elif self._phase is _Phase.ASLEEP:
            if not wish:
                self._phase = _Phase.WAKING
                self._call_at(at_s + self._gpu.wake_s[self.level - 1], self._end_waking, None)
            elif wish != self.level:
                self._fall_asleep(at_s)

    def _fall_asleep(self, at_s: float) -> None:
        self._phase = _Phase.FALLING_ASLEEP
        self._call_at(at_s + self._gpu.sleep_s[self._wish - 1], self._end_falling_asleep, self._wish)

    def _end_falling_asleep(self, at_s: float, level: int) -> None:
        self._phase = _Phase.ASLEEP
        self.level = level
        self._emit(Slept(at_s, level))
        self._slept(at_s)
        self.look(at_s)

    def _end_waking(self, at_s: float, _: None) -> None:
        self.level = 0
        if self._wish:
            self._emit(Woken(at_s))
            self._phase = _Phase.DRAINING  # of nothing
            self.look(at_s)
        else:
            self._come_awake(at_s)

    def _come_awake(self, at_s: float) -> None:
        self._phase = _Phase.AWAKE
        self._emit(Woken(at_s))
        self._woken(at_s)
