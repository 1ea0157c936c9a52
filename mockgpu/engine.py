"""Drives one GPU model in real time: jobs in, and awaitable progress out.

The model's times are exact; the engine only learns of them a little late. So lateness does not add up from
one job to the next, and no job seems served before its time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Literal

from mockgpu.catalogue import Setup
from mockgpu.clock import Clock, Timer
from mockgpu.model import (
    Evicted,
    Finished,
    FirstToken,
    GpuServer,
    Job,
    Loaded,
    Loading,
    Refused,
    Started,
    State,
)


class Stage(IntEnum):
    """How far a stay has come."""

    WAITING = 0
    STARTED = 1
    FIRST_TOKEN = 2
    ENDED = 3  # finished or refused


class Stay:
    """One job inside. Times are CLOCK_MONOTONIC seconds as the model has them, 0 until they are known."""

    __slots__ = (
        "_future",
        "_wanted",
        "cold",
        "decode_step_s",
        "first_token_s",
        "job",
        "queue_wait_s",
        "refused",
        "service_asked_s",
        "stage",
        "started_s",
    )

    def __init__(self, job: Job, service_asked_s: float, decode_step_s: float) -> None:
        self.job = job
        self.service_asked_s = service_asked_s
        self.decode_step_s = decode_step_s
        self.stage = Stage.WAITING
        self.cold = False
        self.queue_wait_s = 0.0
        self.started_s = 0.0
        self.first_token_s = 0.0
        self.refused = ""
        self._wanted = Stage.WAITING
        self._future: asyncio.Future[None] | None = None

    async def until(self, stage: Stage) -> None:
        """Return once the stay has come as far as ``stage``. One waiter at a time."""
        if self.stage < stage:
            self._wanted = stage
            self._future = asyncio.get_running_loop().create_future()
            await self._future

    def reach(self, stage: Stage) -> None:
        """Note progress and wake the one who waits for it."""
        self.stage = stage
        future = self._future
        if future is not None and stage >= self._wanted and not future.done():
            future.set_result(None)


class Engine:
    """One ``GpuServer`` on a clock. ``on_residency`` is told of every load and eviction."""

    def __init__(self, setup: Setup, clock: Clock, on_residency: Callable[[Loading | Loaded | Evicted], None]) -> None:
        self._setup = setup
        self._specs = {model.name: model for model in setup.models}
        self._gpu = GpuServer(setup)
        self._clock = clock
        self._on_residency: Callable[[Loading | Loaded | Evicted], None] | None = on_residency
        self._stays: dict[int, Stay] = {}
        self._next_id = 0
        self._timer: Timer | None = None

    def submit(
        self,
        kind: Literal["inference", "update"],
        model: str,
        prompt_tokens: int,
        output_tokens: int,
        slowness: float = 1.0,
    ) -> Stay:
        """Put a job in; the stay is ``ENDED`` at once if it was refused."""
        self._next_id += 1
        job = Job(self._next_id, model, kind, prompt_tokens, output_tokens, slowness)
        if kind == "update":
            stay = Stay(job, self._setup.gpu.update_s * slowness, 0.0)
        else:
            spec = self._specs.get(model, self._setup.default_model)
            service_s = spec.service_s(prompt_tokens, output_tokens) * slowness
            stay = Stay(job, service_s, spec.decode_step_s * slowness)
        self._stays[job.id] = stay
        now_s = time.monotonic()
        self._gpu.submit(now_s, job)
        self._pump(now_s)
        return stay

    def leave(self, stay: Stay) -> None:
        """Take a job out whose client has gone; does nothing if it has ended."""
        if self._stays.pop(stay.job.id, None) is not None:
            now_s = time.monotonic()
            self._gpu.cancel(now_s, stay.job.id)
            self._pump(now_s)

    def state(self) -> State:
        """The state as of now."""
        self._pump(time.monotonic())
        return self._gpu.state()

    def retire(self) -> None:
        """Serve those inside to the end, but report no residency any more."""
        self._on_residency = None

    def _wake(self) -> None:
        self._timer = None
        self._pump(time.monotonic())

    def _pump(self, now_s: float) -> None:
        """Pass on what has happened and see to being woken for what comes next."""
        for event in self._gpu.advance(now_s):
            if isinstance(event, Loading | Loaded | Evicted):
                if self._on_residency is not None:
                    self._on_residency(event)
                continue
            # A client may have gone before it was told.
            stay = self._stays.get(event.job_id)
            if stay is None:
                continue
            match event:
                case Started():
                    stay.cold = event.cold
                    stay.queue_wait_s = event.queue_wait_s
                    stay.started_s = event.at_s
                    stay.reach(Stage.STARTED)
                case FirstToken():
                    stay.first_token_s = event.at_s
                    stay.reach(Stage.FIRST_TOKEN)
                case Finished():
                    del self._stays[event.job_id]
                    stay.reach(Stage.ENDED)
                case Refused():
                    del self._stays[event.job_id]
                    stay.refused = event.reason
                    stay.reach(Stage.ENDED)
        next_s = self._gpu.next_event_s()
        timer = self._timer
        if timer is not None:
            if timer.deadline_s == next_s:
                return
            timer.cancel()
        self._timer = None if next_s is None else self._clock.call_at(next_s, self._wake)
