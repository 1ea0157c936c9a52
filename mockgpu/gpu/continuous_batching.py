"""Runs the inferences whose end is not known when they start: batches, KV cache, prefill and decode pools.

A job starts when there are KV blocks for its prompt. Prefill takes the tokens that the prefix cache does not
spare. While it decodes it takes another block whenever the last is full; if none is to be had the job that
started last goes back to the head of the queue and computes everything anew later on, as in vLLM. With pools a
prefilled job waits for a decode slot, then its blocks are moved there, and only then it counts for the batch.
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
    """What the server does for its jobs, each at a time.

    ``finish``: a job is done. ``requeue``: one goes back to the head of the queue. Both come back with ``stop``.
    ``widen``: so many prefill slots more are free. ``fill``: see who can start now.
    """

    emit: Callable[[Event], None]
    call_at: CallAt
    finish: Callable[[float, SteppedTask], None]
    requeue: Callable[[float, SteppedTask], None]
    widen: Callable[[int], None]
    fill: Callable[[float], None]


class ContinuousBatching:
    """The running jobs of one GPU that are not plain."""

    def __init__(self, gpu: Gpu, hooks: BatchingHooks) -> None:
        self.kv = KvCache(gpu.kv_bytes, gpu.block_tokens, gpu.prefix_cache)
        self.preemptions = 0
        self._block_tokens = gpu.block_tokens
        self._limits_kv = gpu.kv_share > 0
        self._pools = gpu.pools
        self._hooks = hooks
        self._batches: dict[str, Batch] = {}
        self._holders: dict[int, SteppedTask] = {}  # running jobs with KV blocks, in order of their last start
        self._decode_slots = gpu.pools.decode_slots if gpu.pools is not None else 0
        self._transit: dict[int, SteppedTask] = {}  # wait for a decode slot, first come first
        self._growing = False
        self._number = itertools.count(1).__next__

    def takes(self, model: Model) -> bool:
        """Whether the model's jobs are to be run here."""
        return self._pools is not None or model.decode_slope_s > 0 or self._has_kv(model)

    def is_too_long(self, model: Model, job: Job) -> bool:
        """Whether a job can't be served even alone."""
        limit = model.max_model_tokens
        if limit is not None and job.prompt_tokens + job.output_tokens > limit:
            return True
        if not self._has_kv(model):
            return False
        # The last token is only handed out; nothing is computed from it.
        tokens = job.prompt_tokens + max(0, job.output_tokens - 1)
        blocks = self.kv.blocks_for(tokens) + self.kv.copies_for(job.prompt_tokens, tokens, job.sequences)
        return not self.kv.can_ever_hold(model, blocks)

    def make_room(self, task: SteppedTask) -> bool:
        """Find the KV blocks that a job needs to start; False if there are not enough."""
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
        task.hold, task.cached_tokens = admitted
        return True

    def start(self, at_s: float, task: SteppedTask) -> None:
        """Begin prefill, once there is room."""
        job, spec = task.job, task.spec
        assert spec is not None
        if task.hold is not None:
            self._holders[job.id] = task
        if self._pools is None:
            self._join(at_s, task)
        task.stage = PREFILL
        tokens = job.prompt_tokens + task.done * job.sequences - task.cached_tokens
        prefill_s = tokens / spec.prefill_tokens_per_s * job.slowness
        task.alarm = self._hooks.call_at(at_s + prefill_s, self._prefilled, task)

    def stop(self, at_s: float, task: SteppedTask) -> None:
        """Take all from a running job that it holds here; its slot is the server's to give."""
        if task.alarm is not None:
            task.alarm.cancel()
            task.alarm = None
        if task.in_batch:
            task.in_batch = False
            batch = self._batches[task.job.model]
            batch.leave(at_s, task)
            if batch.size == 0:
                del self._batches[task.job.model]
        if task.hold is not None:
            del self._holders[task.job.id]
            self.kv.release(task.hold)
            task.hold = None
        if task.beyond_prefill:
            task.beyond_prefill = False
            self._hooks.widen(-1)
            if self._transit.pop(task.job.id, None) is None:
                self._decode_slots += 1
                self._fill_decode(at_s)

    def token_due_s(self, now_s: float, task: SteppedTask, token: int) -> float | None:
        """When output token number ``token`` (from 1) came or is due as things stand; None if the job waits."""
        if token <= len(task.past_s):
            return task.past_s[token - 1]
        spec = task.spec
        assert spec is not None
        if task.stage == WAITING:
            return None
        if task.stage == DECODE:
            return self._batches[task.job.model].due_s(task, token)
        # It can't come before this, which is later than now.
        ready_s = now_s if task.alarm is None else task.alarm.at_s
        if self._pools is not None and (task.stage == PREFILL or task.job.id in self._transit):
            ready_s += self._transfer_s(task)
        due_s = ready_s + (token - task.done) * spec.decode_step_s * task.job.slowness
        return max(due_s, math.nextafter(now_s, math.inf))

    def tokens_out(self, now_s: float, task: SteppedTask) -> int:
        """How many output tokens of each of its sequences are out; ``now_s`` is not past."""
        return self._batches[task.job.model].tokens_out(now_s, task) if task.stage == DECODE else task.done

    def tokens_per_s(self, task: SteppedTask) -> float:
        """How many it makes now, of all its sequences; 0 while it does not decode, and where a step takes no time."""
        if task.stage != DECODE:
            return 0.0
        step_s = self._batches[task.job.model].step_s * task.job.slowness
        return task.job.sequences / step_s if step_s > 0 else 0.0

    # -- inside ----------------------------------------------------------------------------------------------

    def _has_kv(self, model: Model) -> bool:
        return self._limits_kv and model.kv_bytes_per_token > 0

    def _join(self, at_s: float, task: SteppedTask) -> None:
        name, spec = task.job.model, task.spec
        assert spec is not None
        batch = self._batches.get(name)
        if batch is None:
            batch = Batch(at_s, spec, self._hooks.call_at, self._reached, self._number)
            self._batches[name] = batch
        batch.join(at_s, task.job.sequences)
        task.in_batch = True

    def _prefilled(self, at_s: float, task: SteppedTask) -> None:
        task.alarm = None
        if task.hold is not None:
            self.kv.computed(task.hold)
        if task.job.output_tokens == 0:
            self._hooks.finish(at_s, task)
        elif self._pools is None:
            self._decode(at_s, task)
        else:
            task.stage = TRANSIT
            task.beyond_prefill = True
            self._transit[task.job.id] = task
            self._fill_decode(at_s)
            self._hooks.widen(1)
            self._hooks.fill(at_s)

    def _fill_decode(self, at_s: float) -> None:
        while self._transit and self._decode_slots > 0:
            task = self._transit.pop(next(iter(self._transit)))
            self._decode_slots -= 1
            task.alarm = self._hooks.call_at(at_s + self._transfer_s(task), self._transferred, task)

    def _transfer_s(self, task: SteppedTask) -> float:
        pools, job = self._pools, task.job
        assert pools is not None
        tokens = job.prompt_tokens + task.done * job.sequences
        return (pools.transfer_s + tokens * pools.transfer_s_per_token) * job.slowness

    def _transferred(self, at_s: float, task: SteppedTask) -> None:
        task.alarm = None
        self._join(at_s, task)
        self._decode(at_s, task)

    def _decode(self, at_s: float, task: SteppedTask) -> None:
        task.stage = DECODE
        task.done_before = task.done
        self._batches[task.job.model].begin(at_s, task)
        self._aim(at_s, task)

    def _aim(self, at_s: float, task: SteppedTask) -> None:
        """Set the next milestone of a decoding job, which has the blocks for its next token."""
        job = task.job
        milestone = job.output_tokens
        if task.done == 0:
            milestone = 1
        elif task.hold is not None:
            # Its block is full once so many are out, and the token after that can't be computed without another.
            milestone = min(milestone, task.hold.blocks * self._block_tokens - job.prompt_tokens + 1)
        task.milestone = milestone
        self._batches[job.model].aim(at_s, task)

    def _reached(self, at_s: float, task: SteppedTask) -> None:
        """A decoding job has come to its milestone."""
        if task.done == 0:
            self._hooks.emit(FirstToken(at_s, task.job.id))
        task.done = task.milestone
        if task.done == task.job.output_tokens:
            self._hooks.finish(at_s, task)
        elif self._has_room(at_s, task):
            self._aim(at_s, task)

    def _has_room(self, at_s: float, task: SteppedTask) -> bool:
        """See to it that a job has the blocks for its next token; False if it had to give way itself."""
        hold = task.hold
        if hold is None or hold.blocks * self._block_tokens >= task.job.prompt_tokens + task.done:
            return True
        if self.kv.grow(hold):
            return True
        self._growing = True  # nobody starts on the blocks that become free for this job
        while task.hold is hold and not self.kv.grow(hold):
            self._preempt(at_s, next(reversed(self._holders.values())))
        self._growing = False
        stayed = task.hold is hold
        self._hooks.fill(at_s)  # this may start it again
        return stayed

    def _preempt(self, at_s: float, task: SteppedTask) -> None:
        """Take the blocks of a job, which goes back to the queue; one that is done this instant ends instead."""
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
            task.past_s += [batch.due_s(task, token) for token in range(task.done_before + 1, task.done + 1)]
        self.preemptions += 1
        self._hooks.emit(Preempted(at_s, job.id))
        self._hooks.requeue(at_s, task)
