"""Scheduler of a GPU server: admission, execution and event order. The rules are in ``mockgpu.gpu.model``."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from typing import Any

from mockgpu.gpu.adapters import Adapters
from mockgpu.gpu.continuous_batching import BatchingHooks, ContinuousBatching
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
from mockgpu.gpu.residency import ResidencyHooks, ResidentSet
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
    """Job handling of ``GpuServer``. ValueError if time runs backwards."""

    def __init__(self, setup: Setup) -> None:
        self._gpu = gpu = setup.gpu
        self._default = setup.default_model
        self._specs = {model.name: model for model in setup.models}
        # Slots in which a job can start. With pools a job frees its prefill slot while it still runs.
        self._limit = gpu.max_running if gpu.pools is None else gpu.pools.prefill_slots
        slots = gpu.max_running if gpu.pools is None else gpu.pools.prefill_slots + gpu.pools.decode_slots
        self._inside_limit = None if gpu.queue_limit is None else slots + gpu.queue_limit
        self._now_s = float("-inf")
        self._events: list[Event] = []
        self._order = 0  # grows with every heap entry, so that ties are first come, first served
        self._tasks: dict[int, SchedulerTask] = {}
        self._ready: list[tuple[int, SchedulerTask]] = []  # heap of tasks that wait for a slot or KV blocks
        self._timers: list[tuple[float, int, SchedulerTask | ScheduledAction]] = []  # heap by time
        self._running = 0
        self._batch_sizes: dict[str, int] = {}  # sequences of running inferences by model
        self._pending_tokens = 0
        self._prompt_tokens_done = 0
        self._output_tokens_done = 0
        self._unloaded: set[str] = set()
        hooks = (self._emit, self._call_at, self._finish, self._requeue, self._add_prefill_slots, self._fill_slots)
        self._batching = ContinuousBatching(gpu, BatchingHooks(*hooks))
        self._space_mb = gpu.weights_mb
        self._models = ResidentSet(
            self._space_mb,
            gpu.loads_at_once,
            self._measure,
            self._call_at,
            ResidencyHooks(self._on_loading, self._on_loaded, self._on_evicted, self._on_load_failed),
        )
        self._adapters = Adapters(gpu, self._call_at, self._emit, self._has_model, self._make_ready)
        self._sleeper = Sleeper(gpu, self._call_at, self._emit, self._is_quiet, self._on_slept, self._on_woken)
        specs = (self._default, *setup.models)
        # Plain: the size of a job fixes its service time, and it waits for slots and loads only.
        self._all_plain = not any(self._batching.handles(spec) or spec.max_model_tokens is not None for spec in specs)
        self._simple = self._all_plain  # plain, and no sleep, unload or pin is in effect

    # -- public interface ------------------------------------------------------------------------------------

    def submit(self, now_s: float, job: Job) -> None:
        """Accept a job or refuse it; events report the outcome. ValueError if its id is in the server already."""
        self._run_to(now_s)
        if job.id in self._tasks:
            raise ValueError(f"job id {job.id} is in the server already, expected a new one")
        spec = self._specs.get(job.model, self._default) if job.kind == "inference" else None
        if not self._simple or job.adapter or (spec is not None and spec.weights_mb > self._space_mb):
            reason = self._refusal_reason(job, spec)
            if reason is not None:
                self._events.append(Refused(now_s, job.id, reason))
                return
        if self._inside_limit is not None and len(self._tasks) >= self._inside_limit:
            self._events.append(Refused(now_s, job.id, "queue_full"))
            return
        self._order = order = self._order + 1
        if spec is not None and (job.adapter or (not self._all_plain and self._batching.handles(spec))):
            task: SchedulerTask = SteppedTask(job, order, now_s, spec)
            if job.adapter:
                self._adapters.add_job(job.adapter)
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
            self._models.acquire(resident)
            task.resident = resident
        if type(task) is SteppedTask and job.adapter and not self._adapters.acquire(now_s, task):
            return
        if self._running < self._limit and (self._simple or (not self._ready and self._can_start(task))):
            self._start(now_s, task)
        else:
            heappush(self._ready, (order, task))

    def cancel(self, now_s: float, job_id: int) -> None:
        """Remove a job without an event; its slot, KV blocks, place in the queue and hold on a model are freed at once.

        Does nothing for a job that has ended or was never there.
        """
        self._run_to(now_s)
        task = self._tasks.get(job_id)
        if task is None:
            return
        was_running = task.stage != WAITING
        self._dismiss(now_s, task, was_running)
        if not was_running:
            self._fill_slots(now_s)  # it may have blocked others while it waited for KV blocks

    def next_event_s(self) -> float | None:
        """Time of the next call of ``advance``, in seconds; None if nothing is scheduled.

        If events are ready already, the time of the last call, i.e. now.
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
        """All events since the last call and up to ``now_s``, each with its exact time."""
        self._run_to(now_s)
        events = self._events
        self._events = []
        return events

    # -- time ------------------------------------------------------------------------------------------------

    def _call_at(self, at_s: float, action: Callable[[float, Any], None], subject: Any) -> ScheduledAction:
        timer = ScheduledAction(at_s, action, subject)
        self._order = order = self._order + 1
        heappush(self._timers, (at_s, order, timer))
        return timer

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
        """Start a task in a running slot."""
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
            self._batching.start(at_s, task)
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
                self._batching.kv.invalidate(job.model)
        elif job.output_tokens:
            self._output_tokens_done += job.output_tokens * job.sequences
        else:
            self._prompt_tokens_done += job.prompt_tokens
        self._remove(task)
        self._settle(at_s, task, True)

    def _dismiss(self, at_s: float, task: SchedulerTask, was_running: bool) -> None:
        """Remove an unfinished task; the tokens it produced are counted."""
        self._output_tokens_done += self._tokens_produced(at_s, task)
        self._remove(task)
        self._models.unpark(at_s, task.job.model, task)
        self._settle(at_s, task, was_running)

    def _tokens_produced(self, at_s: float, task: SchedulerTask) -> int:
        """Number of output tokens produced over all sequences of a task."""
        job, spec = task.job, task.spec
        if spec is None:
            return 0
        if isinstance(task, SteppedTask):
            return self._batching.tokens_out(at_s, task) * job.sequences
        step_s = spec.decode_step_s * job.slowness
        if task.stage != DECODE or not job.output_tokens:
            return 0
        # A billionth of a step as in ``Batch.tokens_out``; the first token is produced regardless of rounding.
        left = math.ceil((task.finish_s - at_s) / step_s - 1e-9) if step_s > 0 else 0
        return min(max(job.output_tokens - left, 1), job.output_tokens) * job.sequences

    def _remove(self, task: SchedulerTask) -> None:
        """Forget a task at any stage."""
        job = task.job
        del self._tasks[job.id]
        self._pending_tokens -= job.prompt_tokens + job.output_tokens * job.sequences
        task.stage = GONE

    def _settle(self, at_s: float, task: SchedulerTask, was_running: bool) -> None:
        """Release what a removed task held: slot, KV blocks, adapter and model; start the tasks that can start."""
        if was_running:
            self._free_slot(at_s, task)
            self._fill_slots(at_s)
        if type(task) is SteppedTask and task.job.adapter:
            self._adapters.remove_job(at_s, task)
        resident = task.resident
        if resident is not None:
            self._models.release(at_s, resident)
        if not self._simple:
            self._sleeper.proceed(at_s)

    def _free_slot(self, at_s: float, task: SchedulerTask) -> None:
        if type(task) is SteppedTask:
            self._batching.stop(at_s, task)
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
            elif self._simple or self._can_start(task):
                heappop(ready)
                self._start(at_s, task)
            else:
                return

    def _can_start(self, task: SchedulerTask) -> bool:
        """Whether the head of the queue may start; if so its KV blocks are allocated."""
        if type(task) is not SteppedTask:
            return self._sleeper.awake
        # Preempted tasks end before the server sleeps.
        return (self._sleeper.awake or task.started) and self._batching.allocate(task)

    def _refusal_reason(self, job: Job, spec: Model | None) -> Reason | None:
        """Reason to refuse a job at admission; None to admit it."""
        if self._gpu.refuse_asleep and not self._sleeper.awake:
            return "asleep"
        if spec is None:
            return None
        if job.model in self._unloaded or (job.adapter and self._adapters.known.get(job.adapter) != job.model):
            return "not_found"
        if not self._models.can_ever_fit(job.model):
            return "out_of_memory"
        if self._batching.is_too_long(spec, job):
            return "too_long"
        return None

    # -- callbacks of the parts --------------------------------------------------------------------------------

    def _emit(self, event: Event) -> None:
        self._events.append(event)
        if isinstance(event, FirstToken):
            self._prompt_tokens_done += self._tasks[event.job_id].job.prompt_tokens

    def _requeue(self, at_s: float, task: SteppedTask) -> None:
        """Put a preempted task at the head of the queue."""
        self._free_slot(at_s, task)
        task.stage = WAITING
        self._order = order = self._order + 1
        heappush(self._ready, (-order, task))

    def _add_prefill_slots(self, slots: int) -> None:
        self._limit += slots

    def _make_ready(self, at_s: float, tasks: list[SchedulerTask]) -> None:
        for task in tasks:
            heappush(self._ready, (task.order, task))
        self._fill_slots(at_s)
        self._sleeper.proceed(at_s)

    def _measure(self, name: str) -> tuple[int, float]:
        spec = self._specs.get(name, self._default)
        return spec.weights_mb, spec.load_s

    def _has_model(self, name: str) -> bool:
        return name in self._models.resident or self._specs.get(name, self._default).always_resident

    def _on_loading(self, at_s: float, name: str) -> None:
        self._events.append(Loading(at_s, name))

    def _on_loaded(self, at_s: float, resident: Resident, tasks: list[SchedulerTask]) -> None:
        self._events.append(Loaded(at_s, resident.name))
        ready = []
        for task in tasks:
            task.resident = resident
            if not isinstance(task, SteppedTask) or not task.job.adapter or self._adapters.acquire(at_s, task):
                ready.append(task)
        self._make_ready(at_s, ready)

    def _on_evicted(self, at_s: float, name: str) -> None:
        self._events.append(Evicted(at_s, name))
        self._batching.kv.invalidate(name)
        self._adapters.base_evicted(at_s, name)

    def _on_load_failed(self, at_s: float, name: str, tasks: list[SchedulerTask]) -> None:
        """Refuse the tasks of a model that pinned models leave no room for."""
        self._events.append(LoadFailed(at_s, name))
        self._refuse(at_s, tasks, "out_of_memory")

    def _refuse(self, at_s: float, tasks: list[SchedulerTask], reason: Reason) -> None:
        """Remove `tasks` from the queue and refuse each with `reason`."""
        for task in tasks:
            self._events.append(Refused(at_s, task.job.id, reason))
            self._dismiss(at_s, task, False)

    def _is_quiet(self) -> bool:
        preempted = bool(self._ready) and self._ready[0][0] < 0
        return not (self._running or preempted or self._models.loading or self._adapters.slots.loading)

    def _on_slept(self, at_s: float) -> None:
        self._batching.kv.clear()

    def _on_woken(self, at_s: float) -> None:
        self._models.paused = self._adapters.slots.paused = False
        self._update_simple()
        self._fill_slots(at_s)
        self._models.start_loads(at_s)
        self._adapters.slots.start_loads(at_s)

    def _update_simple(self) -> None:
        """Recompute whether a job needs only a slot and its model."""
        self._simple = self._all_plain and self._sleeper.awake and not self._unloaded and not self._models.pinned
