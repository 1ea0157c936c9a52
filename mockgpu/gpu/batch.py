"""The clock of one model's running batch, which counts decode steps.

All jobs of a batch make a token per step, and the step takes longer the more jobs there are. Counted in steps
every token is due at a time that no later change of the batch can move; so only the clock's rate changes when
a job comes or goes, and of all that is to come only the earliest has to be timed anew. A change costs O(log n).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from mockgpu.gpu.scheduler_task import CallAt, ScheduledAction, SteppedTask
from mockgpu.gpu.setup import Model


class _Turn(NamedTuple):
    """From here on a step takes ``step_s``."""

    steps: float
    at_s: float
    step_s: float


class Batch:
    """Jobs of one model that share its decode steps. ``reached`` is told when a task comes to its milestone.

    With b sequences a step takes ``decode_step_s`` + (b - 1) * ``decode_slope_s``. ``number`` gives ever new numbers:
    a task may go from one batch to another.
    """

    def __init__(
        self,
        at_s: float,
        model: Model,
        call_at: CallAt,
        reached: Callable[[float, SteppedTask], None],
        number: Callable[[], int],
    ) -> None:
        self.size = 0
        self._model = model
        self._call_at = call_at
        self._reached = reached
        # What the clock shows, and since when it goes at the present rate or was last set.
        self._steps = 0.0
        self._since_s = at_s
        self._step_s = model.decode_step_s
        self._turns = [_Turn(0.0, at_s, self._step_s)]
        self._trim_at = 64
        self._decoding: dict[int, SteppedTask] = {}  # in the order of their ``base_steps``
        self._heap: list[tuple[float, int, SteppedTask]] = []
        self._number = number
        self._alarm: ScheduledAction | None = None
        self._ringing = False

    def join(self, at_s: float, sequences: int = 1) -> None:
        """One job more, of so many sequences."""
        self._resize(at_s, self.size + sequences)

    def leave(self, at_s: float, task: SteppedTask) -> None:
        """One job less; it comes to no more milestones."""
        task.entry = 0
        self._decoding.pop(task.job.id, None)
        self._resize(at_s, self.size - task.job.sequences)

    def begin(self, at_s: float, task: SteppedTask) -> None:
        """The task, which has joined, makes tokens from now on."""
        task.base_steps = self.steps(at_s)
        self._decoding[task.job.id] = task

    def aim(self, at_s: float, task: SteppedTask) -> None:
        """Have ``reached`` called when the task comes to its ``milestone``."""
        task.entry = self._number()
        heappush(self._heap, (self._due_steps(task, task.milestone), task.entry, task))
        self._arm(at_s)

    def steps(self, at_s: float) -> float:
        """What the clock shows at a time that is not past."""
        if self._step_s == 0:
            return self._steps
        return self._steps + (at_s - self._since_s) / self._step_s

    @property
    def step_s(self) -> float:
        """How long a step takes now, in seconds."""
        return self._step_s

    def tokens_out(self, at_s: float, task: SteppedTask) -> int:
        """How many tokens of a decoding task are out now."""
        passed = self.steps(at_s) - task.base_steps
        slowness = task.job.slowness
        # A billionth of a step: what is due this instant is out, whichever way rounding went.
        made = int(passed / slowness + 1e-9) if slowness > 0 else task.milestone
        return min(task.done_before + made, task.milestone)

    def due_s(self, task: SteppedTask, token: int) -> float:
        """When a token of a decoding task came, or will if the batch stays as it is."""
        steps = self._due_steps(task, token)
        if steps >= self._steps:
            return self._since_s + (steps - self._steps) * self._step_s
        turn = self._turns[max(0, bisect_right(self._turns, steps, key=lambda turn: turn.steps) - 1)]
        return turn.at_s + (steps - turn.steps) * turn.step_s

    @staticmethod
    def _due_steps(task: SteppedTask, token: int) -> float:
        return task.base_steps + task.job.slowness * (token - task.done_before)

    def _resize(self, at_s: float, size: int) -> None:
        self.size = size
        step_s = self._model.decode_step_s + max(0, size - 1) * self._model.decode_slope_s
        if step_s != self._step_s:
            self._steps = self.steps(at_s)
            self._since_s = at_s
            self._step_s = step_s
            self._turns.append(_Turn(self._steps, at_s, step_s))
            if len(self._turns) > self._trim_at:
                self._trim()
        self._arm(at_s)

    def _trim(self) -> None:
        """Forget the turns before the first token of all that are still made."""
        oldest = min((task.base_steps for task in self._decoding.values()), default=self._steps)
        del self._turns[: bisect_right(self._turns, oldest, key=lambda turn: turn.steps) - 1]
        self._trim_at = 2 * len(self._turns) + 64

    def _arm(self, at_s: float) -> None:
        """Set the alarm to the earliest milestone."""
        if self._ringing:
            return
        heap = self._heap
        while heap and heap[0][2].entry != heap[0][1]:
            heappop(heap)
        alarm = self._alarm
        if not heap:
            if alarm is not None:
                alarm.cancel()
                self._alarm = None
            return
        due_s = max(at_s, self._since_s + (heap[0][0] - self._steps) * self._step_s)
        if alarm is not None:
            if alarm.at_s == due_s:
                return
            alarm.cancel()
        self._alarm = self._call_at(due_s, self._ring, None)

    def _ring(self, at_s: float, _: None) -> None:
        """Tell of all that is due now."""
        self._alarm = None
        self._ringing = True
        heap = self._heap
        # Set to what it must show, so that rounding does not add up.
        self._steps = max(self._steps, heap[0][0])
        self._since_s = at_s
        while heap and (heap[0][0] <= self._steps or heap[0][2].entry != heap[0][1]):
            entry, task = heappop(heap)[1:]
            if task.entry == entry:
                task.entry = 0
                self._reached(at_s, task)
        self._ringing = False
        self._arm(at_s)
