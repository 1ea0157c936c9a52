"""Clock of one model's running batch, in decode steps.

All jobs of a batch produce one token per step, and a step takes longer with more jobs. Measured in steps, the time
at which a token is due does not depend on later changes of the batch. So when a job joins or leaves, only the
clock's rate changes and only the timer of the earliest milestone is reset. A change costs O(log n).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from mockgpu.gpu.scheduler_task import CallAt, ScheduledAction, SteppedTask
from mockgpu.gpu.setup import Model


class _RateChange(NamedTuple):
    """From ``steps`` (at ``at_s``) on, a step takes ``step_s``."""

    steps: float
    at_s: float
    step_s: float


class Batch:
    """Jobs of one model that share its decode steps. ``reached`` is called when a task reaches its milestone.

    With b sequences a step takes ``decode_step_s`` + (b - 1) * ``decode_slope_s``. ``next_entry`` returns a new number
    at each call, unique over all batches, because a task may move from one batch to another.
    """

    def __init__(
        self,
        at_s: float,
        model: Model,
        call_at: CallAt,
        reached: Callable[[float, SteppedTask], None],
        next_entry: Callable[[], int],
    ) -> None:
        self.size = 0
        self._model = model
        self._call_at = call_at
        self._reached = reached
        # Steps at ``_since_s``, when the rate last changed or the clock was last set.
        self._steps = 0.0
        self._since_s = at_s
        self._step_s = model.decode_step_s
        self._rate_changes = [_RateChange(0.0, at_s, self._step_s)]
        self._trim_at = 64
        self._decoding: dict[int, SteppedTask] = {}  # in order of ``base_steps``
        self._heap: list[tuple[float, int, SteppedTask]] = []
        self._next_entry = next_entry
        self._timer: ScheduledAction | None = None
        self._firing = False

    def join(self, at_s: float, sequences: int = 1) -> None:
        """Add a job of ``sequences`` sequences."""
        self._resize(at_s, self.size + sequences)

    def leave(self, at_s: float, task: SteppedTask) -> None:
        """Remove a job and its milestone."""
        task.entry = 0
        self._decoding.pop(task.job.id, None)
        self._resize(at_s, self.size - task.job.sequences)

    def start_decode(self, at_s: float, task: SteppedTask) -> None:
        """Let a task that has joined produce tokens from now on."""
        task.base_steps = self.steps(at_s)
        self._decoding[task.job.id] = task

    def schedule_milestone(self, at_s: float, task: SteppedTask) -> None:
        """Schedule ``reached`` for the task's ``milestone``."""
        task.entry = self._next_entry()
        heappush(self._heap, (self._due_steps(task, task.milestone), task.entry, task))
        self._arm(at_s)

    def steps(self, at_s: float) -> float:
        """Steps of the clock at ``at_s``, which must not lie in the past."""
        if self._step_s == 0:
            return self._steps
        return self._steps + (at_s - self._since_s) / self._step_s

    @property
    def step_s(self) -> float:
        """Current duration of a step, in seconds."""
        return self._step_s

    def tokens_out(self, at_s: float, task: SteppedTask) -> int:
        """Number of tokens that a decoding task has produced."""
        elapsed = self.steps(at_s) - task.base_steps
        slowness = task.job.slowness
        # A billionth of a step against rounding: a token due at this instant counts as produced.
        produced = int(elapsed / slowness + 1e-9) if slowness > 0 else task.milestone
        return min(task.done_before + produced, task.milestone)

    def due_s(self, task: SteppedTask, token: int) -> float:
        """Time at which a token of a decoding task was produced, or will be if the batch does not change."""
        steps = self._due_steps(task, token)
        if steps >= self._steps:
            return self._since_s + (steps - self._steps) * self._step_s
        index = bisect_right(self._rate_changes, steps, key=lambda change: change.steps) - 1
        change = self._rate_changes[max(0, index)]
        return change.at_s + (steps - change.steps) * change.step_s

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
            self._rate_changes.append(_RateChange(self._steps, at_s, step_s))
            if len(self._rate_changes) > self._trim_at:
                self._trim()
        self._arm(at_s)

    def _trim(self) -> None:
        """Drop rate changes older than the earliest first token among the decoding tasks."""
        oldest = min((task.base_steps for task in self._decoding.values()), default=self._steps)
        del self._rate_changes[: bisect_right(self._rate_changes, oldest, key=lambda change: change.steps) - 1]
        self._trim_at = 2 * len(self._rate_changes) + 64

    def _arm(self, at_s: float) -> None:
        """Set the timer to the earliest milestone."""
        if self._firing:
            return
        heap = self._heap
        while heap and heap[0][2].entry != heap[0][1]:
            heappop(heap)
        timer = self._timer
        if not heap:
            if timer is not None:
                timer.cancel()
                self._timer = None
            return
        due_s = max(at_s, self._since_s + (heap[0][0] - self._steps) * self._step_s)
        if timer is not None:
            if timer.at_s == due_s:
                return
            timer.cancel()
        self._timer = self._call_at(due_s, self._fire, None)

    def _fire(self, at_s: float, _: None) -> None:
        """Call ``reached`` once for each task whose milestone is due."""
        self._timer = None
        self._firing = True
        heap = self._heap
        # Set to the exact value, so that rounding errors do not accumulate.
        self._steps = max(self._steps, heap[0][0])
        self._since_s = at_s
        while heap and (heap[0][0] <= self._steps or heap[0][2].entry != heap[0][1]):
            entry, task = heappop(heap)[1:]
            if task.entry == entry:
                task.entry = 0
                self._reached(at_s, task)
        self._firing = False
        self._arm(at_s)
