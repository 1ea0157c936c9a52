"""The worker of a run: runs its shard, and delivers its records in batches until all are acknowledged.

Every Locust worker has one; in a single process it runs beside the coordinator.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

import gevent
import gevent.event
from locust.env import Environment
from locust.rpc import Message
from locust.runners import LocalRunner, WorkerRunner

from harness.load.job import LoadJob, load_in
from harness.load.locust_engine.engine import LocustEngine
from harness.load.locust_engine.messages import TO_WORKER, Plan, named
from harness.load.results.answer import spread

BATCH_S = 0.5
RESEND_S = 2.0
"""Time in seconds without an answer to `done` after which unacknowledged messages are resent."""

PATIENCE_S = 10.0
"""Time in seconds that a leaving worker waits for acknowledgement of its records."""

_logger = logging.getLogger(__name__)


class Worker:
    """Takes the messages of `TO_WORKER`. `idle` is set while there is no run."""

    def __init__(self, environment: Environment, runner: LocalRunner | WorkerRunner) -> None:
        self.environment = environment
        self.runner = runner
        self.idle = gevent.event.Event()
        self._run = -1
        self._greenlet: gevent.Greenlet | None = None
        self._engine: LocustEngine | None = None
        self._go: gevent.event.AsyncResult[float] = gevent.event.AsyncResult()
        self._stopped = gevent.event.Event()
        self._all_received = gevent.event.Event()
        self._leaving = False
        self._batches = 0
        self._unacknowledged: dict[int, dict[str, Any]] = {}
        handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "clock": self._on_clock,
            "plan": self._on_plan,
            "go": self._on_go,
            "ack": self._on_ack,
            "thanks": self._on_thanks,
            "stop": self._on_stop,
        }
        for kind in TO_WORKER:
            runner.register_message(named(kind), partial(_dispatch, handlers[kind]))

    def expect(self) -> None:
        """Announce a run: Locust's users then wait for its end."""
        self.idle.clear()

    def leave(self) -> None:
        """Abandon the run because this process ends, and wait for acknowledgement of its records."""
        if self._engine is not None:
            self._leaving = True
            self._stopped.set()
            self._all_received.wait(PATIENCE_S)

    def _send(self, kind: str, **data: Any) -> None:
        self.runner.send_message(named(kind), data)

    def _on_clock(self, data: dict[str, Any]) -> None:
        self._send("clock_told", asked_s=data["asked_s"], told_s=monotonic(), worker_id=self.runner.client_id)

    def _on_plan(self, data: dict[str, Any]) -> None:
        self._stopped.set()  # a run without a stop must not continue beside the new one
        self._stopped, self._go = gevent.event.Event(), gevent.event.AsyncResult()
        self._all_received = gevent.event.Event()
        self._run = data["run"]
        self.idle.clear()
        self._greenlet = gevent.spawn(
            self._run_plan, self._greenlet, Plan(**data), self._go, self._stopped, self._all_received
        )

    def _on_go(self, data: dict[str, Any]) -> None:
        if data["run"] == self._run:
            self._go.set(data["start_s"])

    def _on_ack(self, data: dict[str, Any]) -> None:
        if data["run"] == self._run:
            self._unacknowledged.pop(data["batch"], None)

    def _on_thanks(self, data: dict[str, Any]) -> None:
        if data["run"] == self._run:
            self._unacknowledged.clear()
            self._all_received.set()

    def _on_stop(self, data: dict[str, Any]) -> None:
        if data["run"] == self._run:
            self._stopped.set()

    def _run_plan(
        self,
        previous: gevent.Greenlet | None,
        plan: Plan,
        go: gevent.event.AsyncResult[float],
        stopped: gevent.event.Event,
        all_received: gevent.event.Event,
    ) -> None:
        if previous is not None:
            previous.join()  # its last batch must not count for this run
            self.idle.clear()
        try:
            engine = _engine_of(plan, self.environment)
        except Exception as error:
            reason = _reason_of(plan, error)
            self._send("ready", run=plan.run, requests=0, lasts_s=0.0, error=reason, worker_id=self.runner.client_id)
            self.idle.set()
            return
        self._engine, self._batches = engine, 0
        self._unacknowledged.clear()
        ready: dict[str, Any] = {"run": plan.run, "requests": len(engine.arrivals), "lasts_s": engine.lasts_s}
        self._send("ready", error="", worker_id=self.runner.client_id, **ready)
        # A garbage collection during the run would add to latencies; freeze present objects.
        gc.collect()
        gc.freeze()
        try:
            self._run_engine(engine, plan.run, go, stopped)
            self._deliver_rest(engine, plan.run, all_received)
        finally:
            gc.unfreeze()
            self._engine = None
            self.idle.set()

    def _run_engine(
        self, engine: LocustEngine, run: int, go: gevent.event.AsyncResult[float], stopped: gevent.event.Event
    ) -> None:
        gevent.wait([go, stopped], count=1)
        if not stopped.is_set():
            engine.begin(go.get())
            _logger.info("Shard %d of %d: sending requests", engine.job.worker + 1, engine.job.workers)
            sending = gevent.spawn(engine.send_all)
            while not stopped.is_set() and not sending.ready() and monotonic() < engine.ends_s:
                gevent.wait([sending, stopped], timeout=BATCH_S, count=1)
                self._send_records(engine, run)
            if sending.ready() and sending.exception is not None:
                engine.error = sending.exception
            sending.kill()
        engine.close()

    def _send_records(self, engine: LocustEngine, run: int) -> None:
        rows = engine.ledger.take()
        if rows:
            batch = {"run": run, "batch": self._batches, "rows": rows, "backends": engine.ledger.backends}
            self._unacknowledged[self._batches] = batch
            self._batches += 1
            self._send("records", worker_id=self.runner.client_id, **batch)

    def _deliver_rest(self, engine: LocustEngine, run: int, all_received: gevent.event.Event) -> None:
        self._send_records(engine, run)
        error = "a worker left before the end and abandoned its unsent requests" if self._leaving else ""
        error = _one_line(engine.error) if engine.error else error
        done = {"run": run, "batches": self._batches, "rows": engine.ledger.count, "error": error}
        done |= {"lateness_s": spread(engine.ledger.delays_s), "leaving": sorted(engine.leaving)}
        self._send("done", worker_id=self.runner.client_id, **done)
        while run == self._run and not all_received.wait(RESEND_S):
            _logger.warning("%d batches of records are not acknowledged; sending them again", len(self._unacknowledged))
            for batch in list(self._unacknowledged.values()):
                self._send("records", worker_id=self.runner.client_id, **batch)
            self._send("done", worker_id=self.runner.client_id, **done)


def _dispatch(handler: Callable[[dict[str, Any]], None], environment: Environment, msg: Message) -> None:
    """Pass the data of a Locust message to its handler."""
    handler(msg.data)


def _engine_of(plan: Plan, environment: Environment) -> LocustEngine:
    job = LoadJob(
        load=load_in(plan.load),
        seed=plan.seed,
        nonce=plan.nonce,
        url=plan.url,
        start_s=0.0,
        backends=(),
        out="",
        protocol=plan.protocol,
        worker=plan.worker,
        workers=plan.workers,
    )
    return LocustEngine(job, environment)


def _reason_of(plan: Plan, error: Exception) -> str:
    """The reason, in one line, why a plan cannot be run, with the names of Locust's options."""
    if isinstance(error, OSError):
        return f"--host {plan.url}: {error.strerror or error}"
    if isinstance(error, ValueError):
        return f"--profile {plan.profile} with --protocol {plan.protocol}: {error}"
    return _one_line(error)


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
