"""Jobs and time in a GPU server: admission, execution, event order. The rules are in ``mockgpu.gpu.model``."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from typing import Any

from mockgpu.gpu import continuous_batching as stepping
from mockgpu.gpu import residency
from mockgpu.gpu.adapters import Adapters
from mockgpu.gpu.events import (
    Event,
    Evicted,
    Finished,
    FirstToken,
    Job,
    Loaded,
    LoadFailed,
    Loading,
    Reason,
    Refused,
    Resumed,
    Started,
)
from mockgpu.gpu.scheduler_task import (
    DECODE,
    GONE,
    PREFILL,
    WAITING,
    Resident,
    ScheduledAction,
    SchedulerTask,
    SteppedTask,
)
from mockgpu.gpu.setup import Model, Setup
from mockgpu.gpu.sleeping import Sleeper


class Scheduler:
    """What ``GpuServer`` does with jobs. Time must not run backwards: that raises ValueError."""

    def __init__(self, setup: Setup) -> None:
        self._gpu = gpu = setup.gpu
        self._default = setup.default_model
        self._specs = {model.name: model for model in setup.models}
        # Slots in which a job can start. With pools a job leaves its prefill slot behind while it still runs.
        self._limit = gpu.max_running if gpu.pools is None else gpu.pools.prefill_slots
        slots = gpu.max_running if gpu.pools is None else gpu.pools.prefill_slots + gpu.pools.decode_slots
        self._inside_limit = None if gpu.queue_limit is None else slots + gpu.queue_limit
        self._now_s = float("-inf")
        self._events: list[Event] = []
        self._order = 0  # grows with every heap entry: ties go first come, first served
        self._tasks: dict[int, SchedulerTask] = {}
        self._ready: list[tuple[int, SchedulerTask]] = []  # heap of tasks that wait for a slot only, or for KV blocks
        self._timers: list[tuple[float, int, SchedulerTask | ScheduledAction]] = []  # heap of what happens next
        self._running = 0
        self._batch_sizes: dict[str, int] = {}  # sequences of running inferences by model
        self._pending_tokens = 0
        self._prompt_tokens_done = 0
        self._output_tokens_done = 0
        self._unloaded: set[str] = set()
        self._stepper = stepping.ContinuousBatching(
            gpu,
            stepping.BatchingHooks(
                self._emit, self._call_at, self._finish, self._requeue, self._widen, self._fill_slots
            ),
        )
        self._space_mb = gpu.weights_mb
        self._models = residency.ResidentSet(
            self._space_mb,
            gpu.loads_at_once,
            self._measure,
            self._call_at,
            residency.ResidencyHooks(self._note_loading, self._note_loaded, self._note_evicted, self._give_up),
        )
        self._adapters = Adapters(gpu, self._call_at, self._emit, self._has_model, self._make_ready)
        self._sleeper = Sleeper(gpu, self._call_at, self._emit, self._is_quiet, self._note_slept, self._note_woken)
        specs = (self._default, *setup.models)
        # Plain: a job takes the time that its size says, and nothing but slots and loads keeps it waiting.
        self._all_plain = not any(self._stepper.takes(spec) or spec.max_model_tokens is not None for spec in specs)
        self._simple = self._all_plain  # the same, and nothing that was done to the server has changed it

    # -- what a caller does ----------------------------------------------------------------------------------

    def submit(self, now_s: float, job: Job) -> None:
        """Take in a job, or refuse it; either way events tell. A job id that is inside raises ValueError."""
        self._run_to(now_s)
        if job.id in self._tasks:
            raise ValueError(f"job id {job.id} is inside already, expected a new one")
        spec = self._specs.get(job.model, self._default) if job.kind == "inference" else None
        if not self._simple or job.adapter or (spec is not None and spec.weights_mb > self._space_mb):
            reason = self._objection(job, spec)
            if reason is not None:
                self._events.append(Refused(now_s, job.id, reason))
                return
        if self._inside_limit is not None and len(self._tasks) >= self._inside_limit:
            self._events.append(Refused(now_s, job.id, "queue_full"))
            return
        self._order = order = self._order + 1
        if spec is not None and (job.adapter or (not self._all_plain and self._stepper.takes(spec))):
            task: SchedulerTask = SteppedTask(job, order, now_s, spec)
            if job.adapter:
                self._adapters.need(job.adapter)
        else:
            task = SchedulerTask(job, order, now_s, spec)
        self._tasks[job.id] = task
        self._pending_tokens += job.prompt_tokens + job.output_tokens * job.sequences
        if spec is not None and not spec.always_resident:
            resident = self._models.resident.get(job.model)
            if resident is None:
                task.cold = True
                self._models.park(now_s, job.model, task)
                return
            self._models.take(resident)
            task.resident = resident
        if type(task) is SteppedTask and job.adapter and not self._adapters.enter(now_s, task):
            return
        if self._running < self._limit and (self._simple or (not self._ready and self._has_place(task))):
            self._start(now_s, task)
        else:
            heappush(self._ready, (order, task))

    def cancel(self, now_s: float, job_id: int) -> None:
        """Let a job go, with no event; its slot, KV blocks, queue place and hold on a model are free at once.

        Does nothing for a job that has ended or was never there.
        """
        self._run_to(now_s)
        task = self._tasks.get(job_id)
        if task is None:
            return
        was_running = task.stage != WAITING
        self._dismiss(now_s, task, was_running)
        if not was_running:
            self._fill_slots(now_s)  # it may have been the one that waited for KV blocks, and others behind it

    def next_event_s(self) -> float | None:
        """When to call ``advance`` next, in seconds; None if nothing is to come.

        Events that wait there already make it the time of the last call, that is: now.
        """
        if self._events:
            return self._now_s
        timers = self._timers
        while timers:
            at_s, _, subject = timers[0]
            if subject.action is not None if type(subject) is ScheduledAction else subject.stage != GONE:
                return at_s
            heappop(timers)
        return None

    def advance(self, now_s: float) -> list[Event]:
        """Everything that happened up to ``now_s``, since the last time, each event with its exact time."""
        self._run_to(now_s)
        events = self._events
        self._events = []
        return events

    # -- the passing of time ---------------------------------------------------------------------------------

    def _call_at(self, at_s: float, action: Callable[[float, Any], None], subject: Any) -> ScheduledAction:
        alarm = ScheduledAction(at_s, action, subject)
        self._order = order = self._order + 1
        heappush(self._timers, (at_s, order, alarm))
        return alarm

    def _run_to(self, now_s: float) -> None:
        if now_s < self._now_s:
            raise ValueError(f"time ran backwards: {now_s} after {self._now_s}")
        self._now_s = now_s
        timers = self._timers
        while timers and timers[0][0] <= now_s:
            at_s, _, subject = timers[0]
            if type(subject) is ScheduledAction:
                heappop(timers)
                if subject.action is not None:
                    subject.action(at_s, subject.subject)
            elif subject.stage == PREFILL:
                self._events.append(FirstToken(at_s, subject.job.id))
                self._prompt_tokens_done += subject.job.prompt_tokens
                subject.stage = DECODE
                self._order = order = self._order + 1
                heapreplace(timers, (subject.finish_s, order, subject))
            else:
                heappop(timers)
                if subject.stage == DECODE:
                    self._finish(at_s, subject)

    def _start(self, at_s: float, task: SchedulerTask) -> None:
        """Give a task a running slot."""
        job, spec = task.job, task.spec
        self._running += 1
        batch = 0
        if spec is not None:
            batch = self._batch_sizes.get(job.model, 0) + job.sequences
            self._batch_sizes[job.model] = batch
        if type(task) is SteppedTask:
            if task.started:
                self._events.append(Resumed(at_s, job.id))
            else:
                task.started = True
                waited_s = at_s - task.submitted_s
                self._events.append(Started(at_s, job.id, task.cold, waited_s, batch, task.cached_tokens))
            self._stepper.start(at_s, task)
            return
        self._events.append(Started(at_s, job.id, task.cold, at_s - task.submitted_s, batch))
        if spec is None:
            wake_s = task.finish_s = at_s + self._gpu.update_service_s(job.update) * job.slowness
            task.stage = DECODE
        else:
            decode_step_s = spec.decode_step_s * job.slowness
            wake_s = at_s + job.prompt_tokens / spec.prefill_tokens_per_s * job.slowness
            task.finish_s = wake_s + job.output_tokens * decode_step_s
            if job.output_tokens > 0:
                wake_s += decode_step_s
                task.stage = PREFILL
            else:
                task.stage = DECODE
        self._order = order = self._order + 1
        heappush(self._timers, (wake_s, order, task))

    def _finish(self, at_s: float, task: SchedulerTask) -> None:
        job = task.job
        self._events.append(Finished(at_s, job.id))
        if task.spec is None:
            if job.update == "weights":
                self._stepper.kv.invalidate(job.model)
        elif job.output_tokens:
            self._output_tokens_done += job.output_tokens * job.sequences
        else:
            self._prompt_tokens_done += job.prompt_tokens
        self._remove(task)
        self._settle(at_s, task, True)

    def _dismiss(self, at_s: float, task: SchedulerTask, was_running: bool) -> None:
        """Take out a task that is not done; what it has made counts."""
        self._output_tokens_done += self._made(at_s, task)
        self._remove(task)
        self._models.unpark(at_s, task.job.model, task)
        self._settle(at_s, task, was_running)

    def _made(self, at_s: float, task: SchedulerTask) -> int:
        """How many output tokens of all its sequences are out."""
        job, spec = task.job, task.spec
        if spec is None:
            return 0
        if isinstance(task, SteppedTask):
            return self._stepper.tokens_out(at_s, task) * job.sequences
        step_s = spec.decode_step_s * job.slowness
        if task.stage != DECODE or not job.output_tokens:
            return 0
        # A billionth of a step, as in ``Batch.tokens_out``. The first one is out, whatever rounding says.
        left = math.ceil((task.finish_s - at_s) / step_s - 1e-9) if step_s > 0 else 0
        return min(max(job.output_tokens - left, 1), job.output_tokens) * job.sequences

    def _remove(self, task: SchedulerTask) -> None:
        """Forget a task, wherever it stands."""
        job = task.job
        del self._tasks[job.id]
        self._pending_tokens -= job.prompt_tokens + job.output_tokens * job.sequences
        task.stage = GONE

    def _settle(self, at_s: float, task: SchedulerTask, was_running: bool) -> None:
        """Hand on what a removed task held: its slot, what it had there, and its hold on a model and an adapter."""
        if was_running:
            self._free_slot(at_s, task)
            self._fill_slots(at_s)
        if type(task) is SteppedTask and task.job.adapter:
            self._adapters.leave(at_s, task)
        resident = task.resident
        if resident is not None:
            self._models.release(at_s, resident)
        if not self._simple:
            self._sleeper.look(at_s)

    def _free_slot(self, at_s: float, task: SchedulerTask) -> None:
        if type(task) is SteppedTask:
            self._stepper.stop(at_s, task)
        self._running -= 1
        if task.spec is not None:
            name = task.job.model
            left = self._batch_sizes[name] - task.job.sequences
            if left:
                self._batch_sizes[name] = left
            else:
                del self._batch_sizes[name]

    def _fill_slots(self, at_s: float) -> None:
        ready = self._ready
        while ready and self._running < self._limit:
            task = ready[0][1]
            if task.stage == GONE:
                heappop(ready)
            elif self._simple or self._has_place(task):
                heappop(ready)
                self._start(at_s, task)
            else:
                return

    def _has_place(self, task: SchedulerTask) -> bool:
        """Whether the head of the queue may start; if so it has its KV blocks."""
        if type(task) is not SteppedTask:
            return self._sleeper.awake
        # What was preempted ends before the server sleeps.
        return (self._sleeper.awake or task.started) and self._stepper.make_room(task)

    def _objection(self, job: Job, spec: Model | None) -> Reason | None:
        """Why a job is not to be served, if so."""
        if self._gpu.refuse_asleep and not self._sleeper.awake:
            return "asleep"
        if spec is None:
            return None
        if job.model in self._unloaded or (job.adapter and self._adapters.known.get(job.adapter) != job.model):
            return "not_found"
        if not self._models.can_ever_fit(job.model):
            return "out_of_memory"
        if self._stepper.is_too_long(spec, job):
            return "too_long"
        return None

    # -- what the parts of the server tell it ------------------------------------------------------------------

    def _emit(self, event: Event) -> None:
        self._events.append(event)
        if isinstance(event, FirstToken):
            self._prompt_tokens_done += self._tasks[event.job_id].job.prompt_tokens

    def _requeue(self, at_s: float, task: SteppedTask) -> None:
        """A task, which its KV blocks were taken from, waits again, before all others."""
        self._free_slot(at_s, task)
        task.stage = WAITING
        self._order = order = self._order + 1
        heappush(self._ready, (-order, task))

    def _widen(self, slots: int) -> None:
        self._limit += slots

    def _make_ready(self, at_s: float, tasks: list[SchedulerTask]) -> None:
        for task in tasks:
            heappush(self._ready, (task.order, task))
        self._fill_slots(at_s)
        self._sleeper.look(at_s)

    def _measure(self, name: str) -> tuple[int, float]:
        spec = self._specs.get(name, self._default)
        return spec.weights_mb, spec.load_s

    def _has_model(self, name: str) -> bool:
        return name in self._models.resident or self._specs.get(name, self._default).always_resident

    def _note_loading(self, at_s: float, name: str) -> None:
        self._events.append(Loading(at_s, name))

    def _note_loaded(self, at_s: float, resident: Resident, tasks: list[SchedulerTask]) -> None:
        self._events.append(Loaded(at_s, resident.name))
        ready = []
        for task in tasks:
            task.resident = resident
            if not isinstance(task, SteppedTask) or not task.job.adapter or self._adapters.enter(at_s, task):
                ready.append(task)
        self._make_ready(at_s, ready)

    def _note_evicted(self, at_s: float, name: str) -> None:
        self._events.append(Evicted(at_s, name))
        self._stepper.kv.invalidate(name)
        self._adapters.base_gone(at_s, name)

    def _give_up(self, at_s: float, name: str, tasks: list[SchedulerTask]) -> None:
        """A model can't be made to fit any more."""
        self._events.append(LoadFailed(at_s, name))
        self._refuse(at_s, tasks, "out_of_memory")

    def _refuse(self, at_s: float, tasks: list[SchedulerTask], reason: Reason) -> None:
        """Send away tasks that wait."""
        for task in tasks:
            self._events.append(Refused(at_s, task.job.id, reason))
            self._dismiss(at_s, task, False)

    def _is_quiet(self) -> bool:
        preempted = bool(self._ready) and self._ready[0][0] < 0
        return not (self._running or preempted or self._models.loading or self._adapters.slots.loading)

    def _note_slept(self, at_s: float) -> None:
        self._stepper.kv.clear()

    def _note_woken(self, at_s: float) -> None:
        self._models.paused = self._adapters.slots.paused = False
        self._judge_simple()
        self._fill_slots(at_s)
        self._models.start_loads(at_s)
        self._adapters.slots.start_loads(at_s)

    def _judge_simple(self) -> None:
        """Whether a job that comes or is next needs only a slot and its model."""
        self._simple = self._all_plain and self._sleeper.awake and not self._unloaded and not self._models.pinned
