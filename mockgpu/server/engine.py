"""Drives one GPU model in real time: jobs in, and awaitable progress out.

The model's times are exact; the engine only learns of them a little late. So lateness does not add up from
one job to the next, and no job seems served before its time.
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

_OF_JOBS = (Started, FirstToken, Finished, Refused, Preempted, Resumed)


class Progress(IntEnum):
    """How far a stay has come."""

    WAITING = 0
    STARTED = 1
    FIRST_TOKEN = 2
    ENDED = 3  # finished or refused


class JobHandle:
    """One job inside. Times are CLOCK_MONOTONIC seconds as the model has them, 0 until they are known.

    ``batch`` and ``cached_tokens`` are those of its start.
    """

    __slots__ = (
        "_due_s",
        "_future",
        "_wanted",
        "batch",
        "cached_tokens",
        "cold",
        "ended_s",
        "first_token_s",
        "job",
        "queue_wait_s",
        "refused",
        "service_asked_s",
        "stage",
        "started_s",
        "submitted_s",
    )

    def __init__(self, job: Job, service_asked_s: float, due_s: Callable[[int, int], float | None]) -> None:
        self.job = job
        self.service_asked_s = service_asked_s
        self.stage = Progress.WAITING
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
        self._wanted = Progress.WAITING
        self._future: asyncio.Future[None] | None = None

    def token_due_s(self, number: int) -> float | None:
        """When output token ``number`` (from 0) is due as things stand; a later batch may move it.

        So sleep until then and ask again, until it has passed. None while nothing can be said: before the
        start, and while the job is preempted. All tokens of a job that has ended were out when it did.
        """
        if self.stage is Progress.ENDED:
            return self.ended_s
        return self._due_s(self.job.id, number)

    async def until(self, stage: Progress) -> None:
        """Return once the stay has come as far as ``stage``. One waiter at a time."""
        if self.stage < stage:
            self._wanted = stage
            self._future = asyncio.get_running_loop().create_future()
            await self._future

    async def sleep_until(self, due_s: float, clock: Clock) -> None:
        """Return at ``due_s``, or when the stay has ended if that comes first. One waiter at a time."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tell_end(future)
        timer = clock.call_at(due_s, partial(wake, future))
        try:
            await future
        finally:
            timer.cancel()

    def tell_end(self, future: asyncio.Future[None]) -> None:
        """Have ``future`` done at the latest when the stay, which has not ended yet, does. One waiter at a time."""
        self._wanted = Progress.ENDED
        self._future = future

    def reach(self, stage: Progress) -> None:
        """Note progress and wake the one who waits for it."""
        self.stage = stage
        future = self._future
        if future is not None and stage >= self._wanted and not future.done():
            future.set_result(None)


class Engine:
    """One ``GpuServer`` on a clock.

    ``on_residency`` is told of every load and eviction, ``on_first_token`` of every first token: whose model it is,
    and how many seconds after the submission it came.
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
        self._stays: dict[int, JobHandle] = {}
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
        """Put a job in, see ``mockgpu.gpu.events.Job``; the stay is ``ENDED`` at once if it was refused."""
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
            stay = JobHandle(job, self._setup.gpu.update_service_s(update) * slowness, self._gpu.token_due_s)
        else:
            spec = self._specs.get(model, self._setup.default_model)
            service_s = spec.service_s(prompt_tokens, output_tokens) * slowness
            stay = JobHandle(job, service_s, self._gpu.token_due_s)
        self._stays[job.id] = stay
        stay.submitted_s = now_s = time.monotonic()
        self._gpu.submit(now_s, job)
        self._pump(now_s)
        return stay

    def leave(self, stay: JobHandle) -> None:
        """Take a job out whose client has gone; does nothing if it has ended."""
        if stay.job.id not in self._stays:
            return
        now_s = time.monotonic()
        self._pump(now_s)  # what was due by now has happened, perhaps its end
        if self._stays.pop(stay.job.id, None) is not None:
            self._gpu.cancel(now_s, stay.job.id)
            self._pump(now_s)

    # -- management: as in ``GpuServer``, at this moment --------------------------------------------------------

    def load(self, model: str) -> None:
        """Have a model loaded; ``model_states`` tells when it is."""
        self._gpu.load(now_s := time.monotonic(), model)
        self._pump(now_s)

    def unload(self, model: str) -> None:
        """Unload a model once its jobs have ended; new ones are refused until it is loaded again."""
        self._gpu.unload(now_s := time.monotonic(), model)
        self._pump(now_s)

    def pin(self, model: str, pinned: bool) -> None:
        """Keep a model from eviction, or no longer."""
        self._gpu.pin(now_s := time.monotonic(), model, pinned)
        self._pump(now_s)

    def evict(self) -> None:
        """Evict what is idle and not pinned, and the prefix cache."""
        self._gpu.evict(now_s := time.monotonic())
        self._pump(now_s)

    def die(self) -> None:
        """Fail all that is inside, see ``GpuServer.die``."""
        self._gpu.die(now_s := time.monotonic())
        self._pump(now_s)

    def sleep(self, level: Literal[1, 2]) -> None:
        """Go to sleep; the state's ``asleep_level`` tells when it is so."""
        self._gpu.sleep(now_s := time.monotonic(), level)
        self._pump(now_s)

    def wake(self) -> None:
        """Wake up; the state's ``asleep_level`` is 0 when it is so."""
        self._gpu.wake(now_s := time.monotonic())
        self._pump(now_s)

    def load_adapter(self, name: str, base: str) -> None:
        """Make a LoRA adapter of ``base`` known. Raises ValueError where the setup has no slots for any."""
        self._gpu.load_adapter(now_s := time.monotonic(), name, base)
        self._pump(now_s)

    def unload_adapter(self, name: str) -> None:
        """Forget a LoRA adapter."""
        self._gpu.unload_adapter(now_s := time.monotonic(), name)
        self._pump(now_s)

    def invalidate(self, model: str) -> None:
        """Drop the prefix cache of a model."""
        self._gpu.invalidate(now_s := time.monotonic(), model)
        self._pump(now_s)

    def state(self) -> State:
        """The state as of now."""
        self._pump(time.monotonic())
        return self._gpu.state()

    def figures(self) -> State:
        """The state with what those inside have made and make now; costs O(n) in the jobs inside."""
        state = self.state()
        made, per_s = self._gpu.progress()
        return replace(state, output_tokens_done=state.output_tokens_done + made, output_tokens_per_s=per_s)

    def model_states(self) -> dict[str, ModelState]:
        """What is to be said of every known model as of now."""
        self._pump(time.monotonic())
        return self._gpu.model_states()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once ``condition`` holds; it is asked at once and again after everything that happens."""
        if not condition():
            future = asyncio.get_running_loop().create_future()
            self._waiters.append((condition, future))
            await future

    def retire(self) -> None:
        """Serve those inside to the end, but report no residency any more."""
        self._on_residency = None

    # -- the passing of time ---------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._timer = None
        self._pump(time.monotonic())

    def _pump(self, now_s: float) -> None:
        """Pass on what has happened and see to being woken for what comes next."""
        events = self._gpu.advance(now_s)
        for event in events:
            self._tell(event)
        next_s = self._gpu.next_event_s()
        timer = self._timer
        if timer is None or timer.deadline_s != next_s:
            if timer is not None:
                timer.cancel()
            self._timer = None if next_s is None else self._clock.call_at(next_s, self._wake)
        if events and self._waiters:
            self._ask_waiters()

    def _ask_waiters(self) -> None:
        """Let those go on whose condition holds now; conditions may ask this engine, which pumps again."""
        waiters, self._waiters = self._waiters, []
        for condition, future in waiters:
            if future.done():
                continue
            if condition():
                future.set_result(None)
            else:
                self._waiters.append((condition, future))

    def _tell(self, event: Event) -> None:
        if not isinstance(event, _OF_JOBS):
            match event:
                case Loading() | Loaded() | Evicted():
                    if self._on_residency is not None:
                        self._on_residency(event)
                case LoadFailed() | AdapterLoaded() | AdapterUnloaded() | Slept() | Woken():
                    pass
            return
        # A client may have gone before it was told.
        stay = self._stays.get(event.job_id)
        if stay is None:
            return
        match event:
            case Started():
                stay.cold = event.cold
                stay.queue_wait_s = event.queue_wait_s
                stay.started_s = event.at_s
                stay.batch = event.batch
                stay.cached_tokens = event.cached_tokens
                stay.reach(Progress.STARTED)
            case FirstToken():
                stay.first_token_s = event.at_s
                if self._on_first_token is not None:
                    self._on_first_token(stay.job.model, event.at_s - stay.started_s + stay.queue_wait_s)
                stay.reach(Progress.FIRST_TOKEN)
            case Finished():
                del self._stays[event.job_id]
                stay.ended_s = event.at_s
                stay.reach(Progress.ENDED)
            case Preempted() | Resumed():
                return
            case Refused():
                del self._stays[event.job_id]
                stay.ended_s = event.at_s
                stay.refused = event.reason
                stay.reach(Progress.ENDED)
