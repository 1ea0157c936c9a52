"""One job under Locust, as an open loop or as chats, one record for each request.

`Play` walks a schedule drawn before the run: every request is sent at its time, whatever the others do. `Chats` are the
closed loop: each waits for its answer, thinks, and asks again.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import gevent
import gevent.event
import gevent.pool
import gevent.queue
from locust import User, task
from locust.env import Environment
from locust.exception import StopUser

from harness import records
from harness.arrivals import Arrival, draw, share_of
from harness.load.answer import Answer, Ledger, spread
from harness.load.client import Pool, Site
from harness.load.job import Job
from harness.load.pacing import Pacer, sleep_until
from harness.load.wire import WireRequest, forms_of, request_of
from harness.model import Failure, HarnessError

SPARE_S = 2.0
"""How long after the last possible timeout a job ends by itself."""


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
    environment = Environment()
    play = Play(job, environment)
    environment.user_classes = [type("SteelyardUser", (OpenLoopUser,), {"abstract": False, "play": play})]
    runner = environment.create_local_runner()
    try:
        runner.start(1, spawn_rate=1)
        gevent.wait([stopped, play.over], timeout=max(0.0, play.ends_s - monotonic()), count=1)
    finally:
        runner.quit()
        play.close()
    if play.error is not None:
        raise HarnessError(f"the load broke down: {type(play.error).__name__}: {play.error}")
    records.write_requests(Path(job.out), play.ledger.rows(), {"backends": list(job.backends)})
    total = environment.stats.total
    return {
        "requests": play.ledger.count,
        "sent": total.num_requests,
        "failed": total.num_failures,
        "lateness_s": spread(play.ledger.lateness_s),
    }


class Sender(ABC):
    """What an open and a closed loop share: connections, the form of requests, and the ledger of their records.

    ValueError if the job's url or its requests cannot be said, OSError if its host is unknown.
    """

    def __init__(self, job: Job, environment: Environment) -> None:
        self.job = job
        self.environment = environment
        self.site = Site.of(job.url)
        self.ledger = Ledger(job.start_s, job.backends, open_ended=not job.backends)
        self.over = gevent.event.Event()
        self.error: Exception | None = None
        self.shared = Pool(self.site)
        self.at_work = gevent.pool.Group()

    def begin(self, start_s: float) -> None:
        """Make `start_s` on CLOCK_MONOTONIC second 0, instead of the job's. Before anything is sent."""
        self.ledger.start_s = start_s

    @abstractmethod
    def walk(self) -> None:
        """Send everything there is to send, then wait for all answers."""

    def close(self) -> None:
        """End what is still under way, record it, and close all connections."""
        self.at_work.kill()
        self.shared.close()

    def send(self, pool: Pool, ready: Ready, could_s: float) -> None:
        """Send one request, now, and record it. `could_s`: when it could have been sent at the earliest."""
        answer = Answer()
        arrival = ready.arrival
        try:
            pool.exchange(ready.data, answer, arrival.patience_s, keep=not arrival.fresh)
        finally:  # also when the job is stopped meanwhile
            self.ledger.lateness_s.append(answer.sent_s - could_s)
            self.record(ready, answer)

    def ready(self, arrival: Arrival) -> Ready:
        """The request of `arrival`, in bytes."""
        job = self.job
        request = request_of(arrival, job.load.key_carrier, job.seed, job.nonce, job.protocol)
        data = request.encoded(self.site.authority, self.site.base_path, close=arrival.fresh)
        return Ready(arrival, request, data, self.ledger.start_s + arrival.at_s)

    def record(self, ready: Ready, answer: Answer) -> None:
        """A row for the ledger, and an event for Locust's own statistics; both count from the intended time."""
        self.ledger.add(ready.arrival, ready.request.hex, answer)
        self.environment.events.request.fire(  # type: ignore[no-untyped-call]
            request_type=ready.request.method,
            name=ready.request.name,
            response_time=(answer.end_s - ready.due_s) * 1000.0,
            response_length=len(answer.body),
            exception=_complaint(answer),
            context={},
        )


class Play(Sender):
    """An open loop: a job's arrivals, or a worker's share of them, drawn before the run and sent at their times.

    `ends_s` on CLOCK_MONOTONIC is when the job is over even if not everything has ended.
    """

    def __init__(self, job: Job, environment: Environment) -> None:
        super().__init__(job, environment)
        self.arrivals = share_of(draw(job.load, job.seed), job.worker, job.workers)
        for last in forms_of(self.arrivals):
            self.ready(last)  # one of each form, so that a job that cannot be said fails before anything is sent
        last_s = max((arrival.at_s for arrival in self.arrivals), default=0.0)
        longest_s = max((arrival.timeout_s for arrival in self.arrivals), default=0.0)
        self._lasts_s = last_s + longest_s + SPARE_S
        self._sent: set[int] = set()
        numbers = sorted({arrival.connection for arrival in self.arrivals if arrival.connection >= 0})
        self._lanes = {number: _Lane(self) for number in numbers}

    @property
    def ends_s(self) -> float:
        """When the job is over even if not everything has ended."""
        return self.ledger.start_s + self._lasts_s

    def walk(self) -> None:
        for lane in self._lanes.values():
            self.at_work.spawn(lane.work)
        with Pacer() as pacer:
            for arrival in self.arrivals:
                ready = self.ready(arrival)  # before its time, so that only a greenlet has to be started when it is due
                if arrival.connection >= 0:
                    start = partial(self._lanes[arrival.connection].queue.put, ready)
                else:
                    sending = gevent.Greenlet(self.send, self.shared, ready, ready.due_s)
                    self.at_work.add(sending)
                    start = sending.start
                pacer.sleep_until(ready.due_s)
                start()
                gevent.sleep(0)  # it goes out now, not after the next one is ready
        for lane in self._lanes.values():
            lane.queue.put(None)
        self.at_work.join()

    def close(self) -> None:
        super().close()
        for lane in self._lanes.values():
            lane.pool.close()
        self.ledger.add_unsent(arrival for arrival in self.arrivals if arrival.number not in self._sent)
        self._sent.update(arrival.number for arrival in self.arrivals)

    def record(self, ready: Ready, answer: Answer) -> None:
        self._sent.add(ready.arrival.number)
        super().record(ready, answer)


class Chats(Sender):
    """A closed loop: `job.chats` chats, or a worker's share of them; each waits for an answer, thinks, asks again.

    Times to think are exponential with mean `job.think_s`, drawn from the job's seed for each chat. A request is
    intended for the end of its thinking. What is asked for comes from the job's load, whose times do not count but its
    length. Numbers are dealt so that no two workers use the same.
    """

    def __init__(self, job: Job, environment: Environment) -> None:
        super().__init__(job, environment)
        self._asked = draw(job.load, job.seed)
        if not self._asked:
            raise ValueError("a load without a request gives a chat nothing to ask for")
        for last in forms_of(self._asked):
            self.ready(last)
        self._lasts_s = max(stream.end_s for stream in job.load.streams)
        self._count = 0

    @property
    def ends_s(self) -> float:
        """When the job is over even if not everything has ended."""
        longest_s = max(arrival.timeout_s for arrival in self._asked)
        return self.ledger.start_s + self._lasts_s + longest_s + SPARE_S

    def walk(self) -> None:
        for number in range(self.job.worker, self.job.chats, self.job.workers):
            self.at_work.spawn(self._chat, random.Random(f"{self.job.seed}/chat/{number}"))
        self.at_work.join(raise_error=True)

    def _chat(self, generator: random.Random) -> None:
        start_s, think_s = self.ledger.start_s, self.job.think_s
        free_s = start_s
        while True:
            due_s = free_s + (generator.expovariate(1.0 / think_s) if think_s > 0 else 0.0)
            if due_s - start_s >= self._lasts_s:
                return
            if due_s > free_s or free_s == start_s:
                sleep_until(due_s)
            self.send(self.shared, self._next(due_s), due_s)
            free_s = monotonic()

    def _next(self, due_s: float) -> Ready:
        number = self.job.worker + self._count * self.job.workers
        self._count += 1
        template = self._asked[number % len(self._asked)]
        at_s = due_s - self.ledger.start_s
        return self.ready(replace(template, number=number, at_s=at_s, connection=-1))


@dataclass(frozen=True, slots=True)
class Ready:
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
        self.queue: gevent.queue.SimpleQueue[Ready | None] = gevent.queue.SimpleQueue()

    def work(self) -> None:
        free_s = -math.inf
        while (ready := self.queue.get()) is not None:
            # Waiting for the answer before is no lateness of ours.
            self.play.send(self.pool, ready, max(ready.due_s, free_s))
            free_s = monotonic()


def _complaint(answer: Answer) -> HarnessError | None:
    """Why Locust is to count this answer as a failure; None if it is not."""
    if answer.failure is not Failure.NONE:
        return HarnessError(answer.failure.name)
    return HarnessError(f"status {answer.status}") if answer.status >= 400 else None
