"""One job under Locust, one record for each request.

`LocustEngine` follows a schedule drawn before the run: every request is sent at its time, independent of the others.
Virtual users of the closed loop, if any, run beside it: each waits for its answer, thinks, and sends the next request.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
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

from harness.evidence import records
from harness.load.job import LoadJob
from harness.load.locust_engine.client import Destination, Pool
from harness.load.locust_engine.pacing import Pacer, sleep_until
from harness.load.results.answer import ExchangeResult, spread
from harness.load.results.progress import LoadProgress, ProgressMessage
from harness.load.results.shard import Shard
from harness.load.wire import WireRequest
from harness.scenario.arrivals import Arrival
from harness.scenario.closed_loop import VirtualUser, answer_failed
from harness.scenario.model import Failure, HarnessError


class OpenLoopUser(User):
    """The only user of a job. Its task runs the whole schedule, once."""

    abstract = True
    engine: LocustEngine

    @task
    def send_all(self) -> None:
        """Run the schedule. Raises StopUser only: Locust restarts a task that raises anything else."""
        try:
            self.engine.send_all()
        except Exception as error:
            self.engine.error = error
        self.engine.finished.set()
        raise StopUser


def run_job(
    job: LoadJob,
    stopped: gevent.event.Event,
    on_progress: Callable[[ProgressMessage], None] | None = None,
    progress_s: float = 0.0,
) -> dict[str, Any]:
    """Run `job` until every request has ended, its time is up or `stopped` is set; write its records.

    Returns the job's figures: `requests` (rows written), `sent` and `failed` as Locust counted them, `dropped` (not
    sent because too many were in flight), `lateness_s`. `on_progress`, if given, is called every `progress_s`. Raises
    ValueError for an impossible job, OSError if its host is unknown or its records cannot be written, HarnessError if
    the load crashed.
    """
    environment = Environment()
    engine = LocustEngine(job, environment)
    environment.user_classes = [type("SteelyardUser", (OpenLoopUser,), {"abstract": False, "engine": engine})]
    runner = environment.create_local_runner()
    reporting = gevent.spawn(_report_progress, engine, on_progress, progress_s) if on_progress is not None else None
    try:
        runner.start(1, spawn_rate=1)
        gevent.wait([stopped, engine.finished], timeout=max(0.0, engine.ends_s - monotonic()), count=1)
    finally:
        if reporting is not None:
            reporting.kill()
        runner.quit()
        engine.close()
    if engine.error is not None:
        raise HarnessError(f"the load crashed: {type(engine.error).__name__}: {engine.error}")
    about = {"backends": engine.ledger.backends, "leaving": sorted(engine.leaving)}
    records.write_requests(Path(job.out), engine.ledger.rows(), about)
    total = environment.stats.total
    return {
        "requests": engine.ledger.count,
        "sent": total.num_requests,
        "failed": total.num_failures,
        "dropped": engine.dropped,
        "lateness_s": spread(engine.ledger.delays_s),
    }


def _report_progress(engine: LocustEngine, on_progress: Callable[[ProgressMessage], None], progress_s: float) -> None:
    progress = LoadProgress(engine)
    while True:
        gevent.sleep(progress_s)
        on_progress(progress.since_last(monotonic()))


class LocustEngine(Shard):
    """A worker's shard of a job, run in greenlets.

    `finished` is set at its end, `error` is the exception that ended it.

    ValueError if it is impossible, OSError if its host is unknown.
    """

    def __init__(self, job: LoadJob, environment: Environment) -> None:
        super().__init__(job)
        self.environment = environment
        self.site = Destination.of(job.url)
        self.finished = gevent.event.Event()
        self.error: Exception | None = None
        self._shared = Pool(self.site)
        self._greenlets = gevent.pool.Group()
        numbers = sorted({arrival.connection for arrival in self.arrivals if arrival.connection >= 0})
        self._lanes = {number: _Lane(self) for number in numbers}

    def begin(self, start_s: float) -> None:
        """Set second 0 to `start_s` on CLOCK_MONOTONIC, instead of the job's. Call it before sending."""
        self.ledger.start_s = start_s

    def send_all(self) -> None:
        """Send all requests, then wait for all answers."""
        users = [self._greenlets.spawn(self._run_user, user) for user in self.virtual_users.users]
        for lane in self._lanes.values():
            self._greenlets.spawn(lane.work)
        with Pacer() as pacer:
            for arrival in self.arrivals:
                ready = self.ready(arrival)  # built in advance: at its time only a greenlet has to start
                if arrival.connection >= 0:
                    start: Callable[[], object] = partial(self._lanes[arrival.connection].queue.put, ready)
                else:
                    sending = gevent.Greenlet(self.send, self._shared, ready, ready.due_s)
                    self._greenlets.add(sending)
                    start = sending.start
                pacer.sleep_until(ready.due_s)
                if arrival.connection < 0 and self.full:
                    self._greenlets.discard(sending)
                    self.dropped += 1
                else:
                    start()
                gevent.sleep(0)  # send it now, not after building the next one
        for lane in self._lanes.values():
            lane.queue.put(None)
        gevent.joinall(users, raise_error=True)
        self._greenlets.join()

    def close(self) -> None:
        """Cancel requests in flight, record them, and close all connections."""
        self._greenlets.kill()
        self._shared.close()
        for lane in self._lanes.values():
            lane.pool.close()
        self.add_unsent()

    def ready(self, arrival: Arrival) -> Ready:
        """The request of `arrival`, in bytes."""
        request = self.request(arrival)
        data = request.encoded(self.site.authority, self.site.base_path, close=arrival.fresh)
        return Ready(arrival, request, data, self.ledger.start_s + arrival.at_s)

    def send(self, pool: Pool, ready: Ready, earliest_s: float) -> ExchangeResult:
        """Send one request now and record it. `earliest_s`: earliest possible send time."""
        answer = ExchangeResult()
        arrival = ready.arrival
        self.request_sent(arrival)
        try:
            pool.exchange(ready.data, answer, arrival.patience_s, keep=not arrival.fresh)
        finally:  # also when the job is stopped
            self.request_ended(arrival, ready.request.hex, answer, earliest_s)
            self._report_to_locust(ready, answer)
        return answer

    def _run_user(self, user: VirtualUser) -> None:
        """One virtual user, until the end of its time."""
        start_s = self.ledger.start_s
        free_s, failed = start_s + user.start_s, False
        while (due_s := user.due_s(free_s - start_s, failed)) is not None:
            if start_s + due_s > monotonic():
                sleep_until(start_s + due_s)
            answer = self.send(self._shared, self.ready(user.next_request(due_s)), start_s + due_s)
            free_s, failed = monotonic(), answer_failed(answer.failure, answer.status)

    def _report_to_locust(self, ready: Ready, answer: ExchangeResult) -> None:
        """Report a request to Locust's statistics, with latency from the intended time, like the record."""
        aborted = answer.failure is Failure.TIMEOUT and ready.arrival.number in self.leaving  # on purpose: no failure
        self.environment.events.request.fire(  # type: ignore[no-untyped-call]
            request_type=ready.request.method,
            name=ready.request.name,
            response_time=(answer.end_s - ready.due_s) * 1000.0,
            response_length=len(answer.body),
            exception=None if aborted else _error_of(answer),
            context={},
        )


@dataclass(frozen=True, slots=True)
class Ready:
    """An arrival with its bytes and its intended time `due_s` on CLOCK_MONOTONIC."""

    arrival: Arrival
    request: WireRequest
    data: bytes
    due_s: float


class _Lane:
    """A single kept connection: each request waits for the previous answer."""

    def __init__(self, engine: LocustEngine) -> None:
        self.engine = engine
        self.pool = Pool(engine.site)
        self.queue: gevent.queue.SimpleQueue[Ready | None] = gevent.queue.SimpleQueue()

    def work(self) -> None:
        free_s = -math.inf
        while (ready := self.queue.get()) is not None:
            # Waiting for the previous answer is not generator delay.
            self.engine.send(self.pool, ready, max(ready.due_s, free_s))
            free_s = monotonic()


def _error_of(answer: ExchangeResult) -> HarnessError | None:
    """Why Locust counts this answer as a failure; None if it does not."""
    if answer.failure is not Failure.NONE:
        return HarnessError(answer.failure.name)
    return HarnessError(f"status {answer.status}") if answer.status >= 400 else None
