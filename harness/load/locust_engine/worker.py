"""The worker of a run: runs its shard, and delivers its records in batches until all are acknowledged.

There is one in every Locust worker, and one beside the coordinator in a single process.
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
from harness.load.locust_engine.engine import Play
from harness.load.locust_engine.messages import TO_WORKER, Plan, named
from harness.load.results.answer import spread

BATCH_S = 0.5
AGAIN_S = 2.0
"""Time in seconds without an answer to `done` after which unacknowledged messages are resent."""

PATIENCE_S = 10.0
"""Time in seconds that a leaving worker waits for acknowledgement of its records."""

_logger = logging.getLogger(__name__)


class Worker:
    """Takes the messages of `TO_WORKER`. `over` is set while there is no run."""

    def __init__(self, environment: Environment, runner: LocalRunner | WorkerRunner) -> None:
        self.environment = environment
        self.runner = runner
        self.over = gevent.event.Event()
        self._run = -1
        self._performing: gevent.Greenlet | None = None
        self._play: Play | None = None
        self._go: gevent.event.AsyncResult[float] = gevent.event.AsyncResult()
        self._stopped = gevent.event.Event()
        self._thanked = gevent.event.Event()
        self._leaving = False
        self._batches = 0
        self._unheard: dict[int, dict[str, Any]] = {}
        handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "clock": self._on_clock,
            "plan": self._on_plan,
            "go": self._on_go,
            "ack": self._on_ack,
            "thanks": self._on_thanks,
            "stop": self._on_stop,
        }
        for kind in TO_WORKER:
            runner.register_message(named(kind), partial(_told, handlers[kind]))

    def expect(self) -> None:
        """Announce a run: Locust's users then wait for its end."""
        self.over.clear()

    def leave(self) -> None:
        """Abandon the run because this process ends, and wait for acknowledgement of its records."""
        if self._play is not None:
            self._leaving = True
            self._stopped.set()
            self._thanked.wait(PATIENCE_S)

    def _say(self, kind: str, **data: Any) -> None:
        self.runner.send_message(named(kind), data)

    def _on_clock(self, data: dict[str, Any]) -> None:
        self._say("clock_told", asked_s=data["asked_s"], told_s=monotonic(), worker_id=self.runner.client_id)

    def _on_plan(self, data: dict[str, Any]) -> None:
        self._stopped.set()  # a run without a stop must not continue beside the new one
        self._stopped, self._go, self._thanked = gevent.event.Event(), gevent.event.AsyncResult(), gevent.event.Event()
        self._run = data["run"]
        self.over.clear()
        self._performing = gevent.spawn(
            self._perform, self._performing, Plan(**data), self._go, self._stopped, self._thanked
        )

    def _on_go(self, data: dict[str, Any]) -> None:
        if data["run"] == self._run:
            self._go.set(data["start_s"])

    def _on_ack(self, data: dict[str, Any]) -> None:
        if data["run"] == self._run:
            self._unheard.pop(data["batch"], None)

    def _on_thanks(self, data: dict[str, Any]) -> None:
        if data["run"] == self._run:
            self._unheard.clear()
            self._thanked.set()

    def _on_stop(self, data: dict[str, Any]) -> None:
        if data["run"] == self._run:
            self._stopped.set()

    def _perform(
        self,
        before: gevent.Greenlet | None,
        plan: Plan,
        go: gevent.event.AsyncResult[float],
        stopped: gevent.event.Event,
        thanked: gevent.event.Event,
    ) -> None:
        if before is not None:
            before.join()  # its last batch must not count for this run
            self.over.clear()
        try:
            play = _prepared(plan, self.environment)
        except Exception as error:
            told = _cannot_play(plan, error)
            self._say("ready", run=plan.run, requests=0, lasts_s=0.0, error=told, worker_id=self.runner.client_id)
            self.over.set()
            return
        self._play, self._batches = play, 0
        self._unheard.clear()
        ready: dict[str, Any] = {"run": plan.run, "requests": len(play.arrivals), "lasts_s": play.lasts_s, "error": ""}
        self._say("ready", worker_id=self.runner.client_id, **ready)
        # A garbage collection during the run would add to latencies; freeze present objects.
        gc.collect()
        gc.freeze()
        try:
            self._play_through(play, plan.run, go, stopped)
            self._hand_over_rest(play, plan.run, thanked)
        finally:
            gc.unfreeze()
            self._play = None
            self.over.set()

    def _play_through(
        self, play: Play, run: int, go: gevent.event.AsyncResult[float], stopped: gevent.event.Event
    ) -> None:
        gevent.wait([go, stopped], count=1)
        if not stopped.is_set():
            play.begin(go.get())
            _logger.info("Share %d of %d plays", play.job.worker + 1, play.job.workers)
            walking = gevent.spawn(play.walk)
            while not stopped.is_set() and not walking.ready() and monotonic() < play.ends_s:
                gevent.wait([walking, stopped], timeout=BATCH_S, count=1)
                self._hand_over(play, run)
            if walking.ready() and walking.exception is not None:
                play.error = walking.exception
            walking.kill()
        play.close()

    def _hand_over(self, play: Play, run: int) -> None:
        rows = play.ledger.take()
        if rows:
            batch = {"run": run, "batch": self._batches, "rows": rows, "backends": play.ledger.backends}
            self._unheard[self._batches] = batch
            self._batches += 1
            self._say("records", worker_id=self.runner.client_id, **batch)

    def _hand_over_rest(self, play: Play, run: int, thanked: gevent.event.Event) -> None:
        self._hand_over(play, run)
        error = "a worker left before the end and abandoned what it had not sent" if self._leaving else ""
        error = _one_line(play.error) if play.error else error
        done = {"run": run, "batches": self._batches, "rows": play.ledger.count, "error": error}
        done |= {"lateness_s": spread(play.ledger.delays_s), "leaving": sorted(play.leaving)}
        self._say("done", worker_id=self.runner.client_id, **done)
        while run == self._run and not thanked.wait(AGAIN_S):
            _logger.warning("%d batches of records are not acknowledged; sending them again", len(self._unheard))
            for batch in list(self._unheard.values()):
                self._say("records", worker_id=self.runner.client_id, **batch)
            self._say("done", worker_id=self.runner.client_id, **done)


def _told(handler: Callable[[dict[str, Any]], None], environment: Environment, msg: Message) -> None:
    """Hand a message of Locust's to its handler."""
    handler(msg.data)


def _prepared(plan: Plan, environment: Environment) -> Play:
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
    return Play(job, environment)


def _cannot_play(plan: Plan, error: Exception) -> str:
    """One line on why a plan cannot be played, with the names of Locust's options."""
    if isinstance(error, OSError):
        return f"--host {plan.url}: {error.strerror or error}"
    if isinstance(error, ValueError):
        return f"--profile {plan.profile} with --protocol {plan.protocol}: {error}"
    return _one_line(error)


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
