"""A GPU model server without clock, socket or randomness: time is an argument.

The same class runs behind a socket (``mockgpu.server.server``) and in a simulator. A caller submits and cancels jobs
and collects events::

    server.submit(now_s, job)
    wake_s = server.next_event_s()      # query again after every call
    for event in server.advance(wake_s): ...

Rules
-----
- Admission: at most ``max_running`` jobs run at once, the rest wait in order of arrival. A job is refused with
  ``queue_full`` when ``max_running + queue_limit`` jobs are in the server already, running or waiting.
- An inference job needs its model in memory (``mockgpu.gpu.residency``). A missing model joins the load queue;
  loads start in queue order, at most ``loads_at_once`` at a time, and the head of the queue blocks the rest.
  A load that does not fit evicts idle models, least recently used first, if that makes it fit; else it waits.
  So the model of a job that was submitted while it was resident is not evicted before the job ends.
- Jobs whose model is resident overtake jobs that wait for a load. So a model under constant load can keep another
  one out of memory as long as that load lasts. The same applies to LoRA adapters (``mockgpu.gpu.adapters``).
- A job is refused with ``out_of_memory`` if evicting all unpinned models can't make room for its model.
- The service time of an inference is prompt_tokens / prefill_tokens_per_s + output_tokens * step; its first token
  comes after prefill and one step. A step takes ``decode_step_s`` plus ``decode_slope_s`` for every further running
  job of the model, jobs in prefill included: both share each step (``mockgpu.gpu.batch``).
- A job with KV cache starts when there are blocks for its prompt; until then it blocks the jobs behind it.
  It needs further blocks as it produces tokens and may be preempted (``mockgpu.gpu.continuous_batching``). A prefix
  shared with earlier prompts is not recomputed (``mockgpu.gpu.kv_cache``).
- An update needs no model, takes a running slot and emits no first token. When an update of weights ends, the
  prefix cache of its model is invalidated.
- A job's ``slowness`` multiplies all its times except loads.
- Events of the same instant happen in the order in which they were scheduled, and before a call made at that
  instant.

Every operation except ``progress`` costs O(log n) in the jobs in the server, and O(1) per KV block of a prompt.
Cancelled entries stay in the heaps and are skipped when they reach the top.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from mockgpu.gpu.events import LoadFailed, Refused, State
from mockgpu.gpu.scheduler import Scheduler
from mockgpu.gpu.scheduler_task import DECODE, PREFILL, WAITING, SteppedTask

__all__ = ["GpuServer", "ModelState"]

ModelState: TypeAlias = Literal["ready", "loading", "unavailable"]


class GpuServer(Scheduler):
    """One GPU server; the module docstring has the rules.

    Time must not run backwards: a call with an earlier ``now_s`` than the previous call raises ValueError.
    """

    # -- reported state ---------------------------------------------------------------------------------------

    def state(self) -> State:
        """State as of the last call. ``ready`` is always true here; the server around the model may not be ready."""
        kv = self._batching.kv
        asleep = self._sleeper.level > 0
        weights_mb = 0 if asleep else self._models.used + self._adapters.memory_mb
        idle_mb = 0 if asleep else self._models.idle_size
        return State(
            ready=True,
            memory_total_mb=self._gpu.memory_mb,
            memory_used_mb=weights_mb + (kv.used_bytes + kv.cached_bytes) // 1_000_000,
            memory_evictable_mb=idle_mb + kv.cached_bytes // 1_000_000,
            queue_depth=len(self._tasks) - self._running,
            running=self._running,
            pending_tokens=self._pending_tokens,
            models=tuple(self._models.resident),
            kv_blocks_total=kv.total_blocks((self._default, *self._specs.values())),
            kv_blocks_used=kv.used_blocks,
            kv_blocks_cached=kv.cached_blocks,
            prefix_queries_tokens=kv.queries_tokens,
            prefix_hits_tokens=kv.hits_tokens,
            preemptions=self._batching.preemptions,
            prompt_tokens_done=self._prompt_tokens_done,
            output_tokens_done=self._output_tokens_done,
            asleep_level=self._sleeper.level,
            adapters=tuple(self._adapters.known.items()),
            waiting_for_load=self._models.waiting + self._adapters.slots.waiting,
        )

    def progress(self) -> tuple[int, float]:
        """Output tokens produced so far by the jobs in the server, and their current rate in tokens per second.

        As of the last call. The only operation that costs O(n) in the jobs in the server; for reports only.
        """
        produced, per_s = 0, 0.0
        for task in self._tasks.values():
            produced += self._tokens_produced(self._now_s, task)
            if isinstance(task, SteppedTask):
                per_s += self._batching.tokens_per_s(task)
            elif task.spec is not None and task.stage == DECODE and task.job.output_tokens:
                step_s = task.spec.decode_step_s * task.job.slowness
                per_s += task.job.sequences / step_s if step_s > 0 else 0.0
        return produced, per_s

    def token_due_s(self, job_id: int, number: int) -> float | None:
        """Time at which output token ``number`` (from 0) of a job was produced or is due; None if it is not running.

        The due time is as of the last call: later jobs may delay the token, so wait until then and query again.
        Tokens that a preempted job had produced keep their times.
        """
        task = self._tasks.get(job_id)
        if task is None or task.spec is None or not 0 <= number < task.job.output_tokens:
            return None
        if isinstance(task, SteppedTask):
            return self._batching.token_due_s(self._now_s, task, number + 1)
        if task.stage == WAITING:
            return None
        due_s = task.finish_s - (task.job.output_tokens - 1 - number) * task.spec.decode_step_s * task.job.slowness
        # Counted back from the end, rounding can put the first token before its event.
        return max(due_s, math.nextafter(self._now_s, math.inf)) if task.stage == PREFILL else due_s

    def model_states(self) -> dict[str, ModelState]:
        """State of every model that the setup lists or that is resident, loading or unloaded.

        ``ready``: resident, or needs no loading. ``loading``: being loaded or in the load queue.
        """
        pending = self._models.pending
        names = dict.fromkeys([self._default.name, *self._specs, *self._models.resident, *pending, *self._unloaded])
        states: dict[str, ModelState] = {}
        for name in names:
            if name in self._unloaded:
                states[name] = "unavailable"
            elif self._has_model(name):
                states[name] = "ready"
            else:
                states[name] = "loading" if name in pending else "unavailable"
        return states

    # -- management --------------------------------------------------------------------------------------------

    def load(self, now_s: float, model: str) -> None:
        """Load a model without a job; does nothing if it is resident, loading or queued.

        It waits in the load queue like other models, and is evicted like them when idle. If pinned models leave no
        room for it, the load fails.
        """
        self._run_to(now_s)
        self._unloaded.discard(model)
        self._update_simple()
        if self._specs.get(model, self._default).always_resident:
            return
        if self._models.can_ever_fit(model):
            self._models.load(now_s, model)
        else:
            self._events.append(LoadFailed(now_s, model))

    def unload(self, now_s: float, model: str) -> None:
        """Refuse new jobs of a model until it is loaded again; evict it, pinned or not, once its jobs have ended."""
        self._run_to(now_s)
        self._unloaded.add(model)
        self._update_simple()
        if self._specs.get(model, self._default).always_resident:
            self._batching.kv.invalidate(model)
        self._models.unload(now_s, model)

    def pin(self, now_s: float, model: str, pinned: bool) -> None:
        """Protect a model from eviction, or stop doing so; it need not be resident."""
        self._run_to(now_s)
        self._models.pin(now_s, model, pinned)
        self._update_simple()

    def evict(self, now_s: float) -> None:
        """Evict all idle, unpinned models and adapters, and all cached KV blocks."""
        self._run_to(now_s)
        self._batching.kv.clear()
        self._adapters.slots.evict_idle(now_s)
        self._models.evict_idle(now_s)

    def die(self, now_s: float) -> None:
        """The engine dies: all its jobs are refused with ``engine_dead``, and its memory is emptied as by ``evict``.

        Loads in progress are completed and new jobs are served; the caller must refuse jobs while the engine is dead.
        """
        self._run_to(now_s)
        # Waiting jobs first, those for a load before those for a slot; else freed resources would start them.
        for task in sorted(self._tasks.values(), key=lambda task: (task.stage != WAITING, task.resident is not None)):
            self._events.append(Refused(now_s, task.job.id, "engine_dead"))
            self._dismiss(now_s, task, task.stage != WAITING)
        self.evict(now_s)

    def sleep(self, now_s: float, level: Literal[1, 2]) -> None:
        """Go to sleep once the running jobs have ended, see ``mockgpu.gpu.sleeping``."""
        self._run_to(now_s)
        self._models.paused = self._adapters.slots.paused = True
        self._sleeper.sleep(now_s, level)
        self._update_simple()
        if self._gpu.refuse_asleep:
            waiting = [task for task in self._tasks.values() if task.stage == WAITING]
            preempted = [task for task in waiting if isinstance(task, SteppedTask) and task.started]
            self._refuse(now_s, [task for task in waiting if task not in preempted], "asleep")

    def wake(self, now_s: float) -> None:
        """Wake up, see ``mockgpu.gpu.sleeping``; does nothing if awake."""
        self._run_to(now_s)
        self._sleeper.wake(now_s)

    def load_adapter(self, now_s: float, name: str, base: str) -> None:
        """Register a LoRA adapter; it is loaded at once if its base is resident, else on first use.

        Raises ValueError if the GPU has no adapter slots, or the adapter belongs to another base model.
        """
        self._run_to(now_s)
        self._adapters.load(now_s, name, base)

    def unload_adapter(self, now_s: float, name: str) -> None:
        """Refuse new jobs of an adapter and free its slot once its jobs have ended; does nothing if it is unknown."""
        self._run_to(now_s)
        self._adapters.unload(now_s, name)

    def invalidate(self, now_s: float, model: str) -> None:
        """Invalidate the prefix cache of a model, as new weights do."""
        self._run_to(now_s)
        self._batching.kv.invalidate(model)
