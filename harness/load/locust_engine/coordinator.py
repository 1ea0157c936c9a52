"""The coordinator of a run: sends one plan and start time to all workers, writes one file of records.

It runs in Locust's master, or in the only process. Clocks of machines differ: before a run it requests every worker's
time several times, takes the fastest answer and assumes that both directions took equally long. The error is at most
half of that round trip (`clock_error_s` in the file); the workers' times are relative to their own second 0.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import gevent
import gevent.event
import numpy as np
from locust.env import Environment
from locust.rpc import Message
from locust.runners import STATE_MISSING, LocalRunner, MasterRunner

from harness.evidence import records
from harness.load.locust_engine.messages import TO_COORDINATOR, Plan, Receipts, duplicates, named
from harness.load.wire import NONCE_BITS
from harness.scenario.model import Failure, HarnessError

LEAD_S = 0.3
PINGS = 8
LOST_S = 4.0
"""Time in seconds beyond Locust's heartbeat limit after which a missing worker counts as lost."""

SILENT_S = 60.0
"""Time in seconds without a message after the expected end, after which a worker counts as lost."""

STOP_S = 20.0
_LOOK_S = 0.05

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class CurrentRun:
    """A running load; `ended` is set when its file is written."""

    plan: Plan
    receipts: dict[str, Receipts]
    out: str
    ended: gevent.event.Event = field(default_factory=gevent.event.Event)
    stopping: bool = False
    clock_error_s: float = 0.0
    began_unix_s: float = 0.0
    missing_since_s: dict[str, float] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    last_message_s: dict[str, float] = field(default_factory=dict)


class Coordinator:
    """Takes the messages of `TO_COORDINATOR`. `finished` is true from the natural end of a run until it is read."""

    def __init__(self, environment: Environment, runner: LocalRunner | MasterRunner) -> None:
        self.environment = environment
        self.runner = runner
        self.finished = False
        # Workers outlive a master; their messages about a run of another master must not count.
        self._runs = itertools.count(secrets.randbits(NONCE_BITS))
        self._now: CurrentRun | None = None
        self._pings: dict[str, tuple[float, float, float]] = {}
        for kind in TO_COORDINATOR:
            runner.register_message(named(kind), partial(self._on_message, kind))

    def worker_ids(self) -> list[str]:
        """Ids of the present workers: Locust's workers, or this process itself."""
        runner = self.runner
        if not isinstance(runner, MasterRunner):
            return [runner.client_id]
        return [client.id for client in runner.clients.all if client.state != STATE_MISSING]

    @property
    def virtual_users(self) -> int:
        """Number of virtual users of the current run."""
        return self._now.plan.chats if self._now is not None else 0

    @property
    def size(self) -> int:
        """Number of workers of the current run, or of one that would start now."""
        now = self._now
        return len(now.receipts if now is not None and not now.ended.is_set() else self.worker_ids())

    def begin(self, plan: Plan, out: str) -> None:
        """Start a run on all present workers. `out` is the file to write, "" for none.

        HarnessError if it cannot be written: checked before the run, not at its end.
        """
        if out and (Path(out).is_dir() or not os.access(Path(out).parent, os.W_OK)):
            raise HarnessError(f"--records {out}: cannot be written; expected a file in a folder that can")
        self.finished = False
        worker_ids = self.worker_ids()
        plan = replace(plan, run=next(self._runs), nonce=secrets.randbits(NONCE_BITS), workers=len(worker_ids))
        self._now = CurrentRun(plan, {worker_id: Receipts() for worker_id in worker_ids}, out)
        gevent.spawn(self._carry_out, self._now)

    def stop(self) -> None:
        """End a run early, and wait until its records are written."""
        now = self._now
        if now is not None and not now.ended.is_set():
            now.stopping = True
            for worker_id in now.receipts:
                self._send(worker_id, "stop", run=now.plan.run)
            now.ended.wait(STOP_S)
        self.finished = False

    def refuse(self, reason: str) -> None:
        """End a run that cannot start."""
        self._fail(reason)
        self.finished = True

    def _carry_out(self, now: CurrentRun) -> None:
        try:
            offsets = self._offsets(now)
            for worker, worker_id in enumerate(now.receipts):
                self._send(worker_id, "plan", **replace(now.plan, worker=worker).as_data())
            self._await(now, lambda worker_id: not now.receipts[worker_id].ready)
            self._check_workers(now, "before the load began; nothing was sent")
            start_s = monotonic() + LEAD_S + 4 * now.clock_error_s
            for worker_id in now.receipts:
                # Before the plan the worker did not know the run, so it ignored an earlier stop.
                kind = "stop" if now.stopping else "go"
                self._send(worker_id, kind, run=now.plan.run, start_s=start_s + offsets[worker_id])
            now.began_unix_s = time.time() + start_s - monotonic()
            # Locust computes rates from this time, so it must be the start of the load.
            gevent.sleep(max(start_s - monotonic() - _LOOK_S, 0.0))
            self.environment.stats.clear_all()
            ends_s = start_s + max(receipts.lasts_s for receipts in now.receipts.values())
            self._await(now, lambda worker_id: not now.receipts[worker_id].complete, ends_s)
            self._write(now)
            if not now.stopping:
                rest = "the other records are in the file, but the run as a whole proves nothing"
                self._check_workers(now, f"and with them the records of {_lost(now)}; {rest}")
        except Exception as error:
            self._fail(str(error) if isinstance(error, HarnessError) else f"{type(error).__name__}: {error}")
        finally:
            for worker_id in now.receipts:
                self._send(worker_id, "stop", run=now.plan.run)
                self._send(worker_id, "thanks", run=now.plan.run)
            self.finished = not now.stopping
            now.ended.set()

    def _offsets(self, now: CurrentRun) -> dict[str, float]:
        """Offset of each worker's clock from ours, in seconds."""
        if not isinstance(self.runner, MasterRunner):
            return dict.fromkeys(now.receipts, 0.0)
        best: dict[str, tuple[float, float]] = {}
        for _ in range(PINGS):
            self._pings = {}
            for worker_id in now.receipts:
                self._send(worker_id, "clock", asked_s=monotonic())
            self._await(now, lambda worker_id: worker_id not in self._pings)
            for worker_id, (requested_s, worker_s, received_s) in self._pings.items():
                trip_s = received_s - requested_s
                best[worker_id] = min(
                    best.get(worker_id, (float("inf"), 0.0)), (trip_s, worker_s - (requested_s + received_s) / 2)
                )
        now.clock_error_s = max((trip_s / 2 for trip_s, _ in best.values()), default=0.0)
        return {worker_id: best[worker_id][1] if worker_id in best else 0.0 for worker_id in now.receipts}

    def _await(self, now: CurrentRun, pending: Callable[[str], bool], due_s: float | None = None) -> None:
        """Wait until `pending` is false for every worker that is not lost.

        A worker is also lost after `SILENT_S` without a message, counted from `due_s` at the earliest; without
        `due_s` from the time when another worker is done.
        """
        while outstanding := [name for name in now.receipts if name not in now.lost and pending(name)]:
            self._look_for_lost(now)
            if due_s is None and len(outstanding) + len(now.lost) < len(now.receipts):
                due_s = monotonic()
            for worker_id in outstanding:
                if due_s is not None and monotonic() - max(due_s, now.last_message_s.get(worker_id, due_s)) > SILENT_S:
                    now.lost.add(worker_id)
                    _logger.error("Worker %s has sent no message for %g s and counts as lost", worker_id, SILENT_S)
            gevent.sleep(_LOOK_S)

    def _look_for_lost(self, now: CurrentRun) -> None:
        runner = self.runner
        if not isinstance(runner, MasterRunner):
            return
        for worker_id in now.receipts.keys() - now.lost:
            client = runner.clients.get(worker_id)
            if now.receipts[worker_id].complete:  # it has delivered all records and may leave
                continue
            if client is None:
                now.lost.add(worker_id)
                _logger.error("Worker %s has left in the middle of the run; the others continue", worker_id)
            elif client.state != STATE_MISSING:
                if now.missing_since_s.pop(worker_id, None) is not None:
                    _logger.warning("Worker %s answers again", worker_id)
            elif worker_id not in now.missing_since_s:
                now.missing_since_s[worker_id] = monotonic()
                _logger.error("Worker %s does not answer; the others continue", worker_id)
            elif monotonic() - now.missing_since_s[worker_id] > LOST_S:
                now.lost.add(worker_id)

    def _on_message(self, kind: str, environment: Environment, msg: Message) -> None:
        now, data = self._now, msg.data
        worker_id = data["worker_id"]
        if now is not None:
            now.last_message_s[worker_id] = monotonic()
        if kind == "clock_told":
            self._pings[worker_id] = (data["asked_s"], data["told_s"], monotonic())
            return
        if now is None or data["run"] != now.plan.run or worker_id not in now.receipts:
            return
        receipts = now.receipts[worker_id]
        if kind == "ready":
            receipts.ready, receipts.error = True, data["error"]
            receipts.requests, receipts.lasts_s = data["requests"], data["lasts_s"]
        elif kind == "records":
            receipts.put(data["batch"], data["rows"], data["backends"])
            self._send(worker_id, "ack", run=now.plan.run, batch=data["batch"], rows=receipts.rows)
        else:
            receipts.announce(data["batches"], data["rows"])
            receipts.error, receipts.lateness_s, receipts.leaving = data["error"], data["lateness_s"], data["leaving"]
            if receipts.complete:
                self._send(worker_id, "thanks", run=now.plan.run)

    def _check_workers(self, now: CurrentRun, consequence: str) -> None:
        """Raise HarnessError if a worker failed. `consequence` of a lost worker, for the message."""
        problems = sorted({receipts.error for receipts in now.receipts.values() if receipts.error})
        if now.lost:
            problems.append(f"{len(now.lost)} of {len(now.receipts)} workers were lost {consequence}")
        if problems:
            raise HarnessError("; ".join(problems))

    def _write(self, now: CurrentRun) -> None:
        numbers: dict[str, int] = {}
        rows = np.concatenate([receipts.all_rows(numbers) for receipts in now.receipts.values()])
        about = {
            **now.plan.as_data(),
            "backends": list(numbers),
            "began_unix_s": now.began_unix_s,
            "clock_error_s": now.clock_error_s,
            "lost": None if _unknown(now) else _missing(now),
            "leaving": sorted(number for receipts in now.receipts.values() for number in receipts.leaving),
            "players": [
                {"rows": receipts.rows, "lateness_s": receipts.lateness_s} for receipts in now.receipts.values()
            ],
        }
        for name in ("worker", "load"):
            del about[name]
        delay_s = max((receipts.lateness_s.get("p99", 0.0) for receipts in now.receipts.values()), default=0.0)
        unsent = int((rows["failure"] == Failure.NOT_SENT).sum())
        summary = f"{len(rows)} records from {len(now.receipts)} workers, {_lost(now)} lost, {unsent} not sent"
        summary += f"; generator delay {delay_s * 1e3:.2f} ms at p99"
        if now.out:
            records.write_requests(Path(now.out), rows, about)
            summary += f"; written to {now.out}"
        _logger.info("%s", summary)
        if found := duplicates(rows):
            self._fail(found)

    def _fail(self, reason: str) -> None:
        """Report a failure where users of Locust look: log, the page's exceptions, exit code."""
        _logger.error("Steelyard: %s", reason)
        self.environment.process_exit_code = 1
        self.runner.log_exception("steelyard", reason, reason)

    def _send(self, worker_id: str, kind: str, **data: Any) -> None:
        self.runner.send_message(named(kind), data, worker_id)


def _missing(now: CurrentRun) -> int:
    """Number of records missing from lost workers, as far as known."""
    return sum(now.receipts[worker_id].missing for worker_id in now.lost)


def _unknown(now: CurrentRun) -> bool:
    """Whether that number is unknown: requests of virtual users are not known in advance."""
    return bool(now.lost) and now.plan.chats > 0


def _lost(now: CurrentRun) -> str:
    if _unknown(now):
        return "an unknown number of requests"
    return f"{_missing(now)} or more requests" if now.lost else "none"
