"""One GPU model server without clock, socket or chance: time is an argument.

The same class runs behind a socket (``mockgpu.server.server``) and in a simulator. A caller submits and cancels jobs
and collects events::

    server.submit(now_s, job)
    wake_s = server.next_event_s()      # ask again after every call
    for event in server.advance(wake_s): ...

Rules
-----
- At most ``max_running`` jobs run at once, the rest wait in order of arrival. A job is refused with
  ``queue_full`` when ``max_running + queue_limit`` jobs are inside already, running or waiting.
- An inference job needs its model in memory (``mockgpu.gpu.residency``). A missing model joins the load queue;
  loads start in that order, at most ``loads_at_once`` at a time, and the head of that queue blocks the ones
  behind it. A load that does not fit evicts idle models, least recently used first, and only if that makes it
  fit; else it waits. So a job whose model was resident when it came never finds it gone.
- Jobs whose model is resident pass jobs that wait for a load. So a model under constant load can keep another
  one out for as long as that load lasts. The same goes for LoRA adapters and their slots (``mockgpu.gpu.adapters``).
- A model for which what is not pinned can't make room is refused with ``out_of_memory``.
- Service of an inference is prompt_tokens / prefill_tokens_per_s + output_tokens * step; the first token comes
  after prefill and one step. The step is ``decode_step_s`` and ``decode_slope_s`` more for every further
  job of the model that runs, in prefill too: both share each step (``mockgpu.gpu.batch``).
- A job with KV cache starts when there are blocks for its prompt; until then it keeps those behind it waiting.
  It needs further blocks as it makes tokens; ``mockgpu.gpu.continuous_batching`` says what happens when there are
  none. What a prompt has in common with earlier ones is not computed again (``mockgpu.gpu.kv_cache``).
- An update needs no model, takes a running slot and yields no first token. New weights make all that the prefix
  cache has of their model invalid when they are there.
- A job's ``slowness`` multiplies all its times but loads.
- What happens at the same instant happens in the order in which it was scheduled, and before a call made at
  that instant.

Every operation but ``progress`` costs O(log n) in the jobs inside, and O(1) in each KV block of a prompt. What was
cancelled leaves its entries behind in the heaps, where they are skipped when their turn comes.
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
    """One GPU server; see the rules at the head of this module.

    Time must not run backwards: a call with an earlier ``now_s`` than the one before raises ValueError.
    """

    # -- what is to be seen of it ------------------------------------------------------------------------------

    def state(self) -> State:
        """The state as of the last call. A server without I/O is always ready; its shell may not be."""
        kv = self._stepper.kv
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
            preemptions=self._stepper.preemptions,
            prompt_tokens_done=self._prompt_tokens_done,
            output_tokens_done=self._output_tokens_done,
            asleep_level=self._sleeper.level,
            adapters=tuple(self._adapters.known.items()),
            waiting_for_load=self._models.waiting + self._adapters.slots.waiting,
        )

    def progress(self) -> tuple[int, float]:
        """Output tokens that the jobs inside have made so far, and how many they make in a second now.

        As of the last call. The one operation that costs O(n) in the jobs inside: for reports alone.
        """
        made, per_s = 0, 0.0
        for task in self._tasks.values():
            made += self._made(self._now_s, task)
            if isinstance(task, SteppedTask):
                per_s += self._stepper.tokens_per_s(task)
            elif task.spec is not None and task.stage == DECODE and task.job.output_tokens:
                step_s = task.spec.decode_step_s * task.job.slowness
                per_s += task.job.sequences / step_s if step_s > 0 else 0.0
        return made, per_s

    def token_due_s(self, job_id: int, number: int) -> float | None:
        """When output token ``number`` (from 0) of a job came or is due, in seconds; None if it does not run.

        Due as things stand at the last call: jobs that come later may delay it, so wait until then and ask
        again. What a preempted job had made keeps its times.
        """
        task = self._tasks.get(job_id)
        if task is None or task.spec is None or not 0 <= number < task.job.output_tokens:
            return None
        if isinstance(task, SteppedTask):
            return self._stepper.token_due_s(self._now_s, task, number + 1)
        if task.stage == WAITING:
            return None
        due_s = task.finish_s - (task.job.output_tokens - 1 - number) * task.spec.decode_step_s * task.job.slowness
        # Counted from the end the first token can be due a last digit before it comes.
        return max(due_s, math.nextafter(self._now_s, math.inf)) if task.stage == PREFILL else due_s

    def model_states(self) -> dict[str, ModelState]:
        """What is to be said of every model that the setup names or that is resident, coming or unloaded.

        ``ready``: resident, or needs no loading. ``loading``: on its way, or in the queue for that.
        """
        coming = self._models.coming
        names = dict.fromkeys([self._default.name, *self._specs, *self._models.resident, *coming, *self._unloaded])
        states: dict[str, ModelState] = {}
        for name in names:
            if name in self._unloaded:
                states[name] = "unavailable"
            elif self._has_model(name):
                states[name] = "ready"
            else:
                states[name] = "loading" if name in coming else "unavailable"
        return states

    # -- management --------------------------------------------------------------------------------------------

    def load(self, now_s: float, model: str) -> None:
        """Have a model loaded though no job waits for it; does nothing if it is resident or coming.

        It waits in the load queue like the others, and goes when it is idle and others need its room. If what
        is pinned leaves no room for it, the load fails.
        """
        self._run_to(now_s)
        self._unloaded.discard(model)
        self._judge_simple()
        if self._specs.get(model, self._default).always_resident:
            return
        if self._models.can_ever_fit(model):
            self._models.load(now_s, model)
        else:
            self._events.append(LoadFailed(now_s, model))

    def unload(self, now_s: float, model: str) -> None:
        """Refuse new jobs of a model until it is loaded again, and evict it, pinned or not, when those inside ended."""
        self._run_to(now_s)
        self._unloaded.add(model)
        self._judge_simple()
        if self._specs.get(model, self._default).always_resident:
            self._stepper.kv.invalidate(model)
        self._models.unload(now_s, model)

    def pin(self, now_s: float, model: str, pinned: bool) -> None:
        """Keep a model from eviction whenever it is in memory, or no longer."""
        self._run_to(now_s)
        self._models.pin(now_s, model, pinned)
        self._judge_simple()

    def evict(self, now_s: float) -> None:
        """Evict all models and adapters that are idle and not pinned, and all cached KV blocks."""
        self._run_to(now_s)
        self._stepper.kv.clear()
        self._adapters.slots.evict_idle(now_s)
        self._models.evict_idle(now_s)

    def die(self, now_s: float) -> None:
        """The engine dies: all jobs inside are refused with ``engine_dead``, and its memory is emptied as by ``evict``.

        What is being loaded still comes, and new jobs are served: whoever let it die refuses them until it lives again.
        """
        self._run_to(now_s)
        # Those that wait go first, for a load before for a slot: or the room that others leave would let them go on.
        for task in sorted(self._tasks.values(), key=lambda task: (task.stage != WAITING, task.resident is not None)):
            self._events.append(Refused(now_s, task.job.id, "engine_dead"))
            self._dismiss(now_s, task, task.stage != WAITING)
        self.evict(now_s)

    def sleep(self, now_s: float, level: Literal[1, 2]) -> None:
        """Go to sleep when the running jobs have ended, see ``mockgpu.gpu.sleeping``; does nothing unless awake."""
        self._run_to(now_s)
        self._models.paused = self._adapters.slots.paused = True
        self._sleeper.sleep(now_s, level)
        self._judge_simple()
        if self._gpu.refuse_asleep:
            waiting = [task for task in self._tasks.values() if task.stage == WAITING]
            begun = [task for task in waiting if isinstance(task, SteppedTask) and task.started]
            self._refuse(now_s, [task for task in waiting if task not in begun], "asleep")

    def wake(self, now_s: float) -> None:
        """Wake up, see ``mockgpu.gpu.sleeping``; does nothing if awake."""
        self._run_to(now_s)
        self._sleeper.wake(now_s)

    def load_adapter(self, now_s: float, name: str, base: str) -> None:
        """Make a LoRA adapter known; if its base is resident the adapter is loaded at once, else when it is needed.

        Raises ValueError if the GPU has no slots for adapters, or the adapter is one of another base.
        """
        self._run_to(now_s)
        self._adapters.load(now_s, name, base)

    def unload_adapter(self, now_s: float, name: str) -> None:
        """Refuse new jobs of an adapter, and free its slot when those inside ended; does nothing if it is unknown."""
        self._run_to(now_s)
        self._adapters.unload(now_s, name)

    def invalidate(self, now_s: float, model: str) -> None:
        """Drop the prefix cache of a model, as new weights do."""
        self._run_to(now_s)
        self._stepper.kv.invalidate(model)
