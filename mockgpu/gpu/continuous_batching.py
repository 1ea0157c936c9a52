"""Continuous batching: inferences that share decode steps, KV cache, and prefill and decode pools.

A job starts when there are KV blocks for its prompt. Prefill computes the prompt tokens that are not in the prefix
cache. A decoding job takes another block whenever its last one is full; if none is free, the job that started last
is preempted: it goes back to the head of the queue and recomputes everything later, as in vLLM. With pools a
prefilled job waits for a decode slot, then its blocks are transferred, and only then it counts for the batch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from mockgpu.gpu.batch import Batch
from mockgpu.gpu.events import Event, FirstToken, Job, Preempted
from mockgpu.gpu.kv_cache import KvCache
from mockgpu.gpu.scheduler_task import DECODE, PREFILL, TRANSIT, WAITING, CallAt, SteppedTask
from mockgpu.gpu.setup import Gpu, Model


@dataclass(frozen=True, slots=True)
class BatchingHooks:
    """Callbacks into the scheduler; the times are those of the events.

    ``finish`` ends a job; ``requeue`` puts one at the head of the queue. Both call ``stop``.
    ``add_prefill_slots`` changes the number of prefill slots; ``fill_slots`` starts the jobs that can start.
    """

    emit: Callable[[Event], None]
    call_at: CallAt
    finish: Callable[[float, SteppedTask], None]
    requeue: Callable[[float, SteppedTask], None]
    add_prefill_slots: Callable[[int], None]
    fill_slots: Callable[[float], None]


class ContinuousBatching:
    """Running jobs of one GPU whose duration depends on their batch, the KV cache or pools."""

    def __init__(self, gpu: Gpu, hooks: BatchingHooks) -> None:
        self.kv = KvCache(gpu.kv_bytes, gpu.block_tokens, gpu.prefix_cache)
        self.preemptions = 0
        self._block_tokens = gpu.block_tokens
        self._limits_kv = gpu.kv_share > 0
        self._pools = gpu.pools
        self._hooks = hooks
        self._batches: dict[str, Batch] = {}
        self._holders: dict[int, SteppedTask] = {}  # running jobs with KV blocks, in order of last start
        self._decode_slots = gpu.pools.decode_slots if gpu.pools is not None else 0
        self._awaiting_decode: dict[int, SteppedTask] = {}  # wait for a decode slot, in order of arrival
        self._growing = False
        self._next_entry = itertools.count(1).__next__

    def handles(self, model: Model) -> bool:
        """Whether jobs of the model run here."""
        return self._pools is not None or model.decode_slope_s > 0 or self._has_kv(model)

    def is_too_long(self, model: Model, job: Job) -> bool:
        """Whether a job can't be served even on an empty server."""
        limit = model.max_model_tokens
        if limit is not None and job.prompt_tokens + job.output_tokens > limit:
            return True
        if not self._has_kv(model):
            return False
        # No KV entry is computed for the last output token.
        tokens = job.prompt_tokens + max(0, job.output_tokens - 1)
        blocks = self.kv.blocks_for(tokens) + self.kv.copies_for(job.prompt_tokens, tokens, job.sequences)
        return not self.kv.can_ever_hold(model, blocks)

    def allocate(self, task: SteppedTask) -> bool:
        """Allocate the KV blocks that a job needs to start; False if there are not enough."""
        job, spec = task.job, task.spec
        assert spec is not None
        if not self._has_kv(spec):
            return True
        if self._growing:
            return False
        hashes = job.prompt_blocks[: job.prompt_tokens // self._block_tokens]
        tokens = job.prompt_tokens + task.done
        copies = self.kv.copies_for(job.prompt_tokens, tokens, job.sequences)
        admitted = self.kv.admit(
            job.model, spec, tokens, hashes, count=not task.started, sequences=job.sequences, copies=copies
        )
        if admitted is None:
            return False
        task.held, task.cached_tokens = admitted
        return True

    def start(self, at_s: float, task: SteppedTask) -> None:
        """Start the prefill of a job whose KV blocks are allocated."""
        job, spec = task.job, task.spec
        assert spec is not None
        if task.held is not None:
            self._holders[job.id] = task
        if self._pools is None:
            self._join(at_s, task)
        task.stage = PREFILL
        tokens = job.prompt_tokens + task.done * job.sequences - task.cached_tokens
        prefill_s = tokens / spec.prefill_tokens_per_s * job.slowness
        task.timer = self._hooks.call_at(at_s + prefill_s, self._prefilled, task)

    def stop(self, at_s: float, task: SteppedTask) -> None:
        """Release everything that a running job holds here; the scheduler frees its slot."""
        if task.timer is not None:
            task.timer.cancel()
            task.timer = None
        if task.in_batch:
            task.in_batch = False
            batch = self._batches[task.job.model]
            batch.leave(at_s, task)
            if batch.size == 0:
                del self._batches[task.job.model]
        if task.held is not None:
            del self._holders[task.job.id]
            self.kv.release(task.held)
            task.held = None
        if task.left_prefill_slot:
            task.left_prefill_slot = False
            self._hooks.add_prefill_slots(-1)
            if self._awaiting_decode.pop(task.job.id, None) is None:
                self._decode_slots += 1
                self._fill_decode(at_s)

    def token_due_s(self, now_s: float, task: SteppedTask, token: int) -> float | None:
        """Time at which output token ``token`` (from 1) was produced or is due now; None if the job waits."""
        if token <= len(task.token_times_s):
            return task.token_times_s[token - 1]
        spec = task.spec
        assert spec is not None
        if task.stage == WAITING:
            return None
        if task.stage == DECODE:
            return self._batches[task.job.model].due_s(task, token)
        # Lower bound, later than now.
        ready_s = now_s if task.timer is None else task.timer.at_s
        if self._pools is not None and (task.stage == PREFILL or task.job.id in self._awaiting_decode):
            ready_s += self._transfer_s(task)
        due_s = ready_s + (token - task.done) * spec.decode_step_s * task.job.slowness
        return max(due_s, math.nextafter(now_s, math.inf))

    def tokens_out(self, now_s: float, task: SteppedTask) -> int:
        """Number of output tokens produced in each sequence; ``now_s`` must not lie in the past."""
        return self._batches[task.job.model].tokens_out(now_s, task) if task.stage == DECODE else task.done

    def tokens_per_s(self, task: SteppedTask) -> float:
        """Current token rate over all sequences; 0 while the job does not decode, and if a step takes no time."""
        if task.stage != DECODE:
            return 0.0
        step_s = self._batches[task.job.model].step_s * task.job.slowness
        return task.job.sequences / step_s if step_s > 0 else 0.0

    # -- internals -------------------------------------------------------------------------------------------

    def _has_kv(self, model: Model) -> bool:
        return self._limits_kv and model.kv_bytes_per_token > 0

    def _join(self, at_s: float, task: SteppedTask) -> None:
        name, spec = task.job.model, task.spec
        assert spec is not None
        batch = self._batches.get(name)
        if batch is None:
            batch = Batch(at_s, spec, self._hooks.call_at, self._reached, self._next_entry)
            self._batches[name] = batch
        batch.join(at_s, task.job.sequences)
        task.in_batch = True

    def _prefilled(self, at_s: float, task: SteppedTask) -> None:
        task.timer = None
        if task.held is not None:
            self.kv.computed(task.held)
        if task.job.output_tokens == 0:
            self._hooks.finish(at_s, task)
        elif self._pools is None:
            self._decode(at_s, task)
        else:
            task.stage = TRANSIT
            task.left_prefill_slot = True
            self._awaiting_decode[task.job.id] = task
            self._fill_decode(at_s)
            self._hooks.add_prefill_slots(1)
            self._hooks.fill_slots(at_s)

    def _fill_decode(self, at_s: float) -> None:
        while self._awaiting_decode and self._decode_slots > 0:
            task = self._awaiting_decode.pop(next(iter(self._awaiting_decode)))
            self._decode_slots -= 1
            task.timer = self._hooks.call_at(at_s + self._transfer_s(task), self._transferred, task)

    def _transfer_s(self, task: SteppedTask) -> float:
        pools, job = self._pools, task.job
        assert pools is not None
        tokens = job.prompt_tokens + task.done * job.sequences
        return (pools.transfer_s + tokens * pools.transfer_s_per_token) * job.slowness

    def _transferred(self, at_s: float, task: SteppedTask) -> None:
        task.timer = None
        self._join(at_s, task)
        self._decode(at_s, task)

    def _decode(self, at_s: float, task: SteppedTask) -> None:
        task.stage = DECODE
        task.done_before = task.done
        self._batches[task.job.model].start_decode(at_s, task)
        self._schedule_milestone(at_s, task)

    def _schedule_milestone(self, at_s: float, task: SteppedTask) -> None:
        """Schedule the next milestone of a decoding job that has the blocks for its next token."""
        job = task.job
        milestone = job.output_tokens
        if task.done == 0:
            milestone = 1
        elif task.held is not None:
            # At this token its last block is full, and the next token needs another one.
            milestone = min(milestone, task.held.blocks * self._block_tokens - job.prompt_tokens + 1)
        task.milestone = milestone
        self._batches[job.model].schedule_milestone(at_s, task)

    def _reached(self, at_s: float, task: SteppedTask) -> None:
        """Handle the milestone of a decoding job."""
        if task.done == 0:
            self._hooks.emit(FirstToken(at_s, task.job.id))
        task.done = task.milestone
        if task.done == task.job.output_tokens:
            self._hooks.finish(at_s, task)
        elif self._grow(at_s, task):
            self._schedule_milestone(at_s, task)

    def _grow(self, at_s: float, task: SteppedTask) -> bool:
        """Allocate the blocks for a job's next token, preempting others; False if the job itself was preempted."""
        held = task.held
        if held is None or held.blocks * self._block_tokens >= task.job.prompt_tokens + task.done:
            return True
        if self.kv.grow(held):
            return True
        self._growing = True  # no job may start on the blocks freed for this one
        while task.held is held and not self.kv.grow(held):
            self._preempt(at_s, next(reversed(self._holders.values())))
        self._growing = False
        kept = task.held is held
        self._hooks.fill_slots(at_s)  # this may start it again
        return kept

    def _preempt(self, at_s: float, task: SteppedTask) -> None:
        """Free the blocks of a job and requeue it; a job that is complete at this instant finishes instead."""
        job = task.job
        if task.stage == DECODE:
            batch = self._batches[job.model]
            done = batch.tokens_out(at_s, task)
            if task.done == 0 and done > 0:
                self._hooks.emit(FirstToken(at_s, job.id))
            task.done = max(task.done, done)
            if task.done == job.output_tokens:
                self._hooks.finish(at_s, task)
                return
            task.token_times_s += [batch.due_s(task, token) for token in range(task.done_before + 1, task.done + 1)]
        self.preemptions += 1
        self._hooks.emit(Preempted(at_s, job.id))
        self._hooks.requeue(at_s, task)
