"""One job under Locust: the schedule walked in an open loop, one record for each arrival."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import gevent
import gevent.event
import gevent.pool
import gevent.queue
import numpy as np
from locust import User, task
from locust.env import Environment
from locust.exception import StopUser

from harness import records
from harness.arrivals import Arrival, draw
from harness.load.client import Answer, Pool, Site
from harness.load.job import Job
from harness.load.wire import WireRequest, echo_of, request_of
from harness.model import Failure, HarnessError

SPARE_S = 2.0
"""How long after the last possible timeout a job ends by itself."""

_NAP_S = 0.05


class OpenLoopUser(User):
    """The only user of a job. Its task plays the whole schedule, once."""

    abstract = True
    play: Play

    @task
    def walk(self) -> None:
        """Play the schedule. Nothing but StopUser leaves it: Locust runs a task that raises again, from the start."""
        try:
            self.play.walk()
        except Exception as error:
            self.play.error = error
        self.play.over.set()
        raise StopUser


def perform(job: Job, stopped: gevent.event.Event) -> dict[str, Any]:
    """Play `job` until every request has ended, its time is up or `stopped` is set; write its records.

    Returns the job's figures: `requests` (rows written), `sent` and `failed` as Locust counted them, `lateness_s`.
    Raises ValueError for a job that cannot be played, OSError if its host is unknown or its records cannot be written,
    HarnessError if the load broke down.
    """
    play = Play(job)
    user = type("SteelyardUser", (OpenLoopUser,), {"abstract": False, "play": play})
    environment = Environment(user_classes=[user])
    play.environment = environment
    runner = environment.create_local_runner()
    try:
        runner.start(1, spawn_rate=1)
        gevent.wait([stopped, play.over], timeout=max(0.0, play.ends_s - monotonic()), count=1)
    finally:
        runner.quit()
        play.close()
    if play.error is not None:
        raise HarnessError(f"the load broke down: {type(play.error).__name__}: {play.error}")
    records.write_requests(Path(job.out), play.rows)
    total = environment.stats.total
    return {
        "requests": len(play.rows),
        "sent": total.num_requests,
        "failed": total.num_failures,
        "lateness_s": _spread(play.lateness_s),
    }


class Play:
    """The state of one job: its arrivals, their rows, its connections. `ends_s` on CLOCK_MONOTONIC."""

    environment: Environment

    def __init__(self, job: Job) -> None:
        self.job = job
        self.site = Site.of(job.url)
        self.arrivals = draw(job.load, job.seed)
        for last in {(arrival.stream, arrival.method): arrival for arrival in self.arrivals}.values():
            self._ready(last)  # one of each form, so that a job that cannot be said fails before anything is sent
        self.rows = _blank(self.arrivals)
        self.lateness_s: list[float] = []
        self.over = gevent.event.Event()
        self.error: Exception | None = None
        last_s = max((arrival.at_s for arrival in self.arrivals), default=0.0)
        longest_s = max((arrival.timeout_s for arrival in self.arrivals), default=0.0)
        self.ends_s = job.start_s + last_s + longest_s + SPARE_S
        self._backends = {name: number for number, name in enumerate(job.backends)}
        self._at_work = gevent.pool.Group()
        self._shared = Pool(self.site)
        numbers = sorted({arrival.connection for arrival in self.arrivals if arrival.connection >= 0})
        self._lanes = {number: _Lane(self) for number in numbers}

    def walk(self) -> None:
        """Send every arrival at its time, then wait for all answers."""
        for lane in self._lanes.values():
            self._at_work.spawn(lane.work)
        for arrival in self.arrivals:
            ready = self._ready(arrival)  # before its time, so that only a greenlet has to be started when it is due
            _sleep_until(ready.due_s)
            if arrival.connection >= 0:
                self._lanes[arrival.connection].queue.put(ready)
            else:
                self._at_work.spawn(self.send, self._shared, ready, ready.due_s)
        for lane in self._lanes.values():
            lane.queue.put(None)
        self._at_work.join()

    def send(self, pool: Pool, ready: _Ready, could_s: float) -> None:
        """Send one request, now, and record it. `could_s`: when it could have been sent at the earliest."""
        answer = Answer()
        arrival = ready.arrival
        try:
            pool.exchange(ready.data, answer, arrival.timeout_s, keep=not arrival.fresh)
        finally:  # also when the job is stopped meanwhile
            self.lateness_s.append(answer.sent_s - could_s)
            self._record(arrival, ready.request, answer)

    def close(self) -> None:
        """End what is still under way and close all connections."""
        self._at_work.kill()
        for pool in [self._shared, *(lane.pool for lane in self._lanes.values())]:
            pool.close()

    def _ready(self, arrival: Arrival) -> _Ready:
        job = self.job
        request = request_of(arrival, job.load.key_carrier, job.seed, job.nonce, job.protocol)
        data = request.encoded(self.site.authority, self.site.base_path, close=arrival.fresh)
        return _Ready(arrival, request, data, job.start_s + arrival.at_s)

    def _record(self, arrival: Arrival, request: WireRequest, answer: Answer) -> None:
        start_s = self.job.start_s
        row = self.rows[arrival.number]
        row["failure"] = answer.failure
        row["echo"] = echo_of(answer.body, request.hex)
        row["reused"] = answer.reused
        row["status"] = answer.status
        row["answered_by"] = self._backends.get(answer.backend, -1)
        row["bytes"] = len(answer.body)
        row["sent_s"] = answer.sent_s - start_s
        row["first_byte_s"] = answer.first_byte_s - start_s
        row["end_s"] = answer.end_s - start_s
        self.environment.events.request.fire(  # type: ignore[no-untyped-call]
            request_type=request.method,
            name=request.name,
            response_time=(answer.end_s - start_s - arrival.at_s) * 1000.0,
            response_length=len(answer.body),
            exception=_complaint(answer),
            context={},
        )


@dataclass(frozen=True, slots=True)
class _Ready:
    """An arrival with its bytes, due at `due_s` on CLOCK_MONOTONIC."""

    arrival: Arrival
    request: WireRequest
    data: bytes
    due_s: float


class _Lane:
    """A single kept connection: each request waits for the answer to the one before it."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.pool = Pool(play.site)
        self.queue: gevent.queue.SimpleQueue[_Ready | None] = gevent.queue.SimpleQueue()

    def work(self) -> None:
        free_s = -math.inf
        while (ready := self.queue.get()) is not None:
            # Waiting for the answer before is no lateness of ours.
            self.play.send(self.pool, ready, max(ready.due_s, free_s))
            free_s = monotonic()


def _sleep_until(due_s: float) -> None:
    """Return at or after `due_s` on CLOCK_MONOTONIC, never before; lets other greenlets run even if it is past."""
    while True:
        gevent.sleep(min(max(due_s - monotonic(), 0.0), _NAP_S))
        if monotonic() >= due_s:
            return


def _blank(arrivals: tuple[Arrival, ...]) -> records.Rows:
    """A row for each arrival, at the index of its number, as if none had been sent."""
    rows = np.zeros(len(arrivals), dtype=records.REQUEST)
    for name in ("number", "stream", "kind", "method", "key", "connection"):
        rows[name] = [getattr(arrival, name) for arrival in arrivals]
    rows["failure"] = Failure.NOT_SENT
    rows["answered_by"] = -1
    rows["intended_s"] = [arrival.at_s for arrival in arrivals]
    for name in ("sent_s", "first_byte_s", "end_s"):
        rows[name] = math.nan
    return rows


def _complaint(answer: Answer) -> HarnessError | None:
    """Why Locust is to count this answer as a failure; None if it is not."""
    if answer.failure is not Failure.NONE:
        return HarnessError(answer.failure.name)
    return HarnessError(f"status {answer.status}") if answer.status >= 400 else None


def _spread(lateness_s: list[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum in seconds; zeros if nothing was sent."""
    values = np.array(lateness_s or [0.0])
    return {
        "p50": float(np.quantile(values, 0.5)),
        "p99": float(np.quantile(values, 0.99)),
        "max": float(values.max()),
    }
