"""Drives one GPU model in real time: takes jobs and returns handles with awaitable progress.

The model's times are exact; the engine reads them with a small delay. Delays therefore do not accumulate from job to
job, and no job appears to be served early.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum
from functools import partial
from typing import Literal

from mockgpu.gpu.catalogue import Setup
from mockgpu.gpu.events import (
    AdapterLoaded,
    AdapterUnloaded,
    Event,
    Evicted,
    Finished,
    FirstToken,
    Job,
    Loaded,
    LoadFailed,
    Loading,
    Preempted,
    Refused,
    Resumed,
    Slept,
    Started,
    State,
    Woken,
)
from mockgpu.gpu.model import GpuServer, ModelState
from mockgpu.server.clock import Clock, Timer, wake

_JOB_EVENTS = (Started, FirstToken, Finished, Refused, Preempted, Resumed)


class Progress(IntEnum):
    """How far a job has progressed."""

    WAITING = 0
    STARTED = 1
    FIRST_TOKEN = 2
    ENDED = 3  # finished or refused


class JobHandle:
    """One submitted job. Times are the model's, in seconds of CLOCK_MONOTONIC; 0 until they are known.

    ``batch`` and ``cached_tokens`` are the values at the job's start.
    """

    __slots__ = (
        "_awaited",
        "_due_s",
        "_future",
        "batch",
        "cached_tokens",
        "cold",
        "ended_s",
        "first_token_s",
        "job",
        "progress",
        "queue_wait_s",
        "refused",
        "service_asked_s",
        "started_s",
        "submitted_s",
    )

    def __init__(self, job: Job, service_asked_s: float, due_s: Callable[[int, int], float | None]) -> None:
        self.job = job
        self.service_asked_s = service_asked_s
        self.progress = Progress.WAITING
        self.cold = False
        self.batch = 0
        self.cached_tokens = 0
        self.queue_wait_s = 0.0
        self.submitted_s = 0.0
        self.started_s = 0.0
        self.first_token_s = 0.0
        self.ended_s = 0.0
        self.refused = ""
        self._due_s = due_s
        self._awaited = Progress.WAITING
        self._future: asyncio.Future[None] | None = None

    def token_due_s(self, number: int) -> float | None:
        """When output token ``number`` (from 0) is due in the current batch; a later batch may change it.

        So sleep until then and query again, until the time has passed. None while unknown: before the start, and while
        the job is preempted. For a job that has ended, the time of its end.
        """
        if self.progress is Progress.ENDED:
            return self.ended_s
        return self._due_s(self.job.id, number)

    async def until(self, progress: Progress) -> None:
        """Return once the job has reached ``progress``. One waiter at a time."""
        if self.progress < progress:
            self._awaited = progress
            self._future = asyncio.get_running_loop().create_future()
            await self._future

    async def sleep_until(self, due_s: float, clock: Clock) -> None:
        """Return at ``due_s`` or when the job ends, whichever is first. One waiter at a time."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.complete_at_end(future)
        timer = clock.call_at(due_s, partial(wake, future))
        try:
            await future
        finally:
            timer.cancel()

    def complete_at_end(self, future: asyncio.Future[None]) -> None:
        """Complete ``future`` when the job, which must not have ended, ends. One waiter at a time."""
        self._awaited = Progress.ENDED
        self._future = future

    def reach(self, progress: Progress) -> None:
        """Record progress and wake the waiter for it."""
        self.progress = progress
        future = self._future
        if future is not None and progress >= self._awaited and not future.done():
            future.set_result(None)


class Engine:
    """One ``GpuServer`` on a clock.

    ``on_residency`` is called for every load and eviction, ``on_first_token`` for every first token, with the model's
    name and the seconds since submission.
    """

    def __init__(
        self,
        setup: Setup,
        clock: Clock,
        on_residency: Callable[[Loading | Loaded | Evicted], None],
        on_first_token: Callable[[str, float], None] | None = None,
    ) -> None:
        self._setup = setup
        self._specs = {model.name: model for model in setup.models}
        self._gpu = GpuServer(setup)
        self._clock = clock
        self._on_residency: Callable[[Loading | Loaded | Evicted], None] | None = on_residency
        self._on_first_token = on_first_token
        self._handles: dict[int, JobHandle] = {}
        self._next_id = 0
        self._timer: Timer | None = None
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    # -- jobs ------------------------------------------------------------------------------------------------

    def submit(
        self,
        kind: Literal["inference", "update"],
        model: str,
        prompt_tokens: int,
        output_tokens: int,
        slowness: float = 1.0,
        *,
        prompt_blocks: tuple[int, ...] = (),
        adapter: str = "",
        update: Literal["embedding", "weights"] = "embedding",
        sequences: int = 1,
    ) -> JobHandle:
        """Submit a job, see ``mockgpu.gpu.events.Job``; the handle is ``ENDED`` already if the job was refused."""
        self._next_id += 1
        job = Job(
            self._next_id,
            model,
            kind,
            prompt_tokens,
            output_tokens,
            slowness,
            prompt_blocks,
            adapter,
            update,
            sequences,
        )
        if kind == "update":
            handle = JobHandle(job, self._setup.gpu.update_service_s(update) * slowness, self._gpu.token_due_s)
        else:
            spec = self._specs.get(model, self._setup.default_model)
            service_s = spec.service_s(prompt_tokens, output_tokens) * slowness
            handle = JobHandle(job, service_s, self._gpu.token_due_s)
        self._handles[job.id] = handle
        handle.submitted_s = now_s = time.monotonic()
        self._gpu.submit(now_s, job)
        self._advance(now_s)
        return handle

    def leave(self, handle: JobHandle) -> None:
        """Cancel the job of a client that has left; does nothing if the job has ended."""
        if handle.job.id not in self._handles:
            return
        now_s = time.monotonic()
        self._advance(now_s)  # handle all events due by now, perhaps the job's end
        if self._handles.pop(handle.job.id, None) is not None:
            self._gpu.cancel(now_s, handle.job.id)
            self._advance(now_s)

    # -- management: the methods of ``GpuServer``, at the current time -----------------------------------------

    def load(self, model: str) -> None:
        """Start loading a model; ``model_states`` shows when it is loaded."""
        self._gpu.load(now_s := time.monotonic(), model)
        self._advance(now_s)

    def unload(self, model: str) -> None:
        """Unload a model once its jobs have ended; new jobs are refused until it is loaded again."""
        self._gpu.unload(now_s := time.monotonic(), model)
        self._advance(now_s)

    def pin(self, model: str, pinned: bool) -> None:
        """Protect a model from eviction, or stop protecting it."""
        self._gpu.pin(now_s := time.monotonic(), model, pinned)
        self._advance(now_s)

    def evict(self) -> None:
        """Evict all idle models that are not pinned, and the prefix cache."""
        self._gpu.evict(now_s := time.monotonic())
        self._advance(now_s)

    def die(self) -> None:
        """Fail all jobs, see ``GpuServer.die``."""
        self._gpu.die(now_s := time.monotonic())
        self._advance(now_s)

    def sleep(self, level: Literal[1, 2]) -> None:
        """Start to sleep; the state's ``asleep_level`` shows when the GPU is asleep."""
        self._gpu.sleep(now_s := time.monotonic(), level)
        self._advance(now_s)

    def wake(self) -> None:
        """Start to wake up; the state's ``asleep_level`` is 0 when the GPU is awake."""
        self._gpu.wake(now_s := time.monotonic())
        self._advance(now_s)

    def load_adapter(self, name: str, base: str) -> None:
        """Load a LoRA adapter of ``base``. Raises ValueError if the setup has no adapter slots."""
        self._gpu.load_adapter(now_s := time.monotonic(), name, base)
        self._advance(now_s)

    def unload_adapter(self, name: str) -> None:
        """Unload a LoRA adapter."""
        self._gpu.unload_adapter(now_s := time.monotonic(), name)
        self._advance(now_s)

    def invalidate(self, model: str) -> None:
        """Drop the prefix cache of a model."""
        self._gpu.invalidate(now_s := time.monotonic(), model)
        self._advance(now_s)

    def state(self) -> State:
        """The current state."""
        self._advance(time.monotonic())
        return self._gpu.state()

    def state_with_progress(self) -> State:
        """The current state with the output and token rate of running jobs; O(n) in the jobs."""
        state = self.state()
        done, per_s = self._gpu.progress()
        return replace(state, output_tokens_done=state.output_tokens_done + done, output_tokens_per_s=per_s)

    def model_states(self) -> dict[str, ModelState]:
        """The current state of every known model, by name."""
        self._advance(time.monotonic())
        return self._gpu.model_states()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once ``condition`` holds; it is checked immediately and after every event."""
        if not condition():
            future = asyncio.get_running_loop().create_future()
            self._waiters.append((condition, future))
            await future

    def retire(self) -> None:
        """Finish the jobs in flight, but report no more loads and evictions."""
        self._on_residency = None

    # -- time -----------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._timer = None
        self._advance(time.monotonic())

    def _advance(self, now_s: float) -> None:
        """Dispatch all events up to ``now_s`` and set the timer for the next one."""
        events = self._gpu.advance(now_s)
        for event in events:
            self._dispatch(event)
        next_s = self._gpu.next_event_s()
        timer = self._timer
        if timer is None or timer.deadline_s != next_s:
            if timer is not None:
                timer.cancel()
            self._timer = None if next_s is None else self._clock.call_at(next_s, self._wake)
        if events and self._waiters:
            self._check_waiters()

    def _check_waiters(self) -> None:
        """Wake the waiters whose condition holds; conditions may query this engine, which re-enters ``_advance``."""
        waiters, self._waiters = self._waiters, []
        for condition, future in waiters:
            if future.done():
                continue
            if condition():
                future.set_result(None)
            else:
                self._waiters.append((condition, future))

    def _dispatch(self, event: Event) -> None:
        if not isinstance(event, _JOB_EVENTS):
            match event:
                case Loading() | Loaded() | Evicted():
                    if self._on_residency is not None:
                        self._on_residency(event)
                case LoadFailed() | AdapterLoaded() | AdapterUnloaded() | Slept() | Woken():
                    pass
            return
        # The client may have left already.
        handle = self._handles.get(event.job_id)
        if handle is None:
            return
        match event:
            case Started():
                handle.cold = event.cold
                handle.queue_wait_s = event.queue_wait_s
                handle.started_s = event.at_s
                handle.batch = event.batch
                handle.cached_tokens = event.cached_tokens
                handle.reach(Progress.STARTED)
            case FirstToken():
                handle.first_token_s = event.at_s
                if self._on_first_token is not None:
                    self._on_first_token(handle.job.model, event.at_s - handle.started_s + handle.queue_wait_s)
                handle.reach(Progress.FIRST_TOKEN)
            case Finished():
                del self._handles[event.job_id]
                handle.ended_s = event.at_s
                handle.reach(Progress.ENDED)
            case Preempted() | Resumed():
                return
            case Refused():
                del self._handles[event.job_id]
                handle.ended_s = event.at_s
                handle.refused = event.reason
                handle.reach(Progress.ENDED)
