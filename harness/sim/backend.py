"""One backend of the simulator: a mock GPU server, the way to it with its faults, and what it logs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from random import Random
from typing import Any

from harness.gateway.expected_answer import ExpectedAnswer
from harness.gateway.protocol import Backend
from harness.scenario.fast_dataclass import fast_dataclass
from harness.scenario.model import Ending, ModelServer, Residency
from harness.sim.link import Link
from mockgpu.api import wire
from mockgpu.faults import decisions as faults
from mockgpu.gpu.catalogue import Setup
from mockgpu.gpu.events import Evicted, Finished, FirstToken, Job, Loaded, Loading, Refused, Started, State
from mockgpu.gpu.model import GpuServer

NAN = float("nan")
LIVENESS = ("/ping", "/v2/health/live")
"""Routes of the mock servers that tell a sign of life, and nothing of readiness or load."""


@dataclass(slots=True)
class AttemptRow:
    """One attempt at a backend, in the columns of harness.evidence.history.ATTEMPT."""

    request: int
    backend: int
    kind: int
    start_s: float
    ending: int = Ending.OPEN
    cold: bool = False
    status: int = 0
    first_byte_s: float = NAN
    end_s: float = NAN
    queue_wait_s: float = 0.0
    service_s: float = 0.0
    service_started_s: float = NAN


@fast_dataclass
class ReadyAnswer:
    """An answer that a backend has ready. `cut_after_tokens`: its body breaks off there; None: it is whole.

    `unreadable`: its body says nothing, though all of it came as announced.
    """

    attempt_id: int
    at_s: float
    status: int
    cut_after_tokens: int | None = None
    retry_after_s: float | None = None
    unreadable: bool = False


@dataclass(slots=True)
class NetworkAttempt:
    """One attempt as the network knows it. `row` is what its backend logs, from when it is there; `answer` what came.

    `cut_for` is the request whose client still has to see that the answer breaks off.
    """

    id: int
    request_id: int
    backend: SimBackend
    row: AttemptRow | None = None
    answer: ReadyAnswer | None = None
    cut_for: int | None = None
    done: bool = False


class SimBackend:
    """Backend number `number`. `way` leads to it; `alive` and `paused` are how its process is.

    Faults of single requests are those of `mockgpu.faults.decisions`, as in a real server. As answers are not streamed
    here, one that stalls never comes, and one that drips comes when its last token would.

    While it is paused nobody may let it pass time: whatever comes to it is put into `waiting` (what to do, and with
    what) until `resume`. What its GPU would have done meanwhile is done then, at once: no clock stops with a process.
    """

    def __init__(self, number: int, server: ModelServer, seed: int = 0) -> None:
        self.number = number
        self.id = f"gpu-{number}"
        self.way = Link(Random(f"{seed}/way/{number}"))
        self.alive = True
        self.paused = False
        self.waiting: list[tuple[Callable[[Any], None], Any]] = []
        self.woken_s: float | None = None
        """When it is to be advanced next."""
        self.rows: list[AttemptRow] = []
        self.residency: list[tuple[int, int, str, float]] = []
        self._setup = Setup.from_json(server.as_setup())
        self._gpu = GpuServer(self._setup)
        self._faults = faults.RequestFaults(self.id)
        self._open: dict[int, AttemptRow] = {}
        self._spoiled: dict[int, tuple[faults.Serve, int]] = {}
        """What applies_to the answers of attempts inside, and how many tokens these have; only where something does."""
        self._dripping: list[tuple[float, int]] = []
        self._ready: list[ReadyAnswer] = []
        self._resumed_s = 0.0
        self._left: list[int] = []

    @property
    def reachable(self) -> bool:
        """Whether a connect is accepted."""
        return self.alive and self.way.up

    @property
    def inside(self) -> tuple[int, ...]:
        """Ids of the attempts that are here now, or wait to be read by a process that is paused."""
        if not self.waiting:
            return tuple(self._open)
        waiting = (subject for _, subject in self.waiting if isinstance(subject, NetworkAttempt) and not subject.done)
        return (*self._open, *(attempt.id for attempt in waiting))

    def arrive(self, now_s: float, attempt_id: int, row: AttemptRow, job: Job) -> None:
        """An attempt reaches the backend: log it, then serve it or do what a fault has in store for it."""
        self.rows.append(row)
        lot = self._faults.arrive(now_s, attempt_id, job.prompt_tokens + job.output_tokens)
        match lot:
            case faults.Serve():
                self._open[attempt_id] = row
                if lot.cut_after_tokens is not None or lot.spoils:
                    self._spoiled[attempt_id] = lot, job.output_tokens
                self._gpu.submit(now_s, job if lot.slowness == 1.0 else replace(job, slowness=lot.slowness))
            case faults.AnswerStatus(status, retry_after_s, refused, kills=kills):
                if kills:
                    self._gpu.die(now_s)
                answer = self._close(row, attempt_id, now_s, status, Ending.REFUSED if refused else Ending.ANSWERED)
                later_s = None if retry_after_s is None else float(math.ceil(retry_after_s))
                self._ready.append(replace(answer, retry_after_s=later_s))
            case faults.Hold():
                self._open[attempt_id] = row

    def leave(self, now_s: float, attempt_id: int) -> None:
        """The client of an attempt is gone: free its place, when the process next looks."""
        if self.paused:
            self._left.append(attempt_id)
            return
        row = self._open.pop(attempt_id, None)
        if row is None:
            return
        row.ending, row.end_s = Ending.CLIENT_GONE, now_s
        self._spoiled.pop(attempt_id, None)
        self._faults.leave(attempt_id)
        self._gpu.cancel(now_s, attempt_id)

    def change_faults(self, now_s: float, change: faults.Change) -> tuple[int, ...]:
        """Set or clear faults of single requests. Returns ids of attempts whose connections are reset by that."""
        released = self._faults.change(now_s, change)
        for attempt_id in released:
            row = self._open.pop(attempt_id)
            row.ending, row.end_s = Ending.CUT, now_s
            self._spoiled.pop(attempt_id, None)
            self._gpu.cancel(now_s, attempt_id)
        if change.evicts:
            self._gpu.evict(now_s)
        if change.kills:
            self._gpu.die(now_s)
        if change.freezes:
            self._faults.freeze(self._gpu.state())
        return released

    def hits(self, kind: str) -> int:
        """How many requests, or reports, the active fault of this kind has struck."""
        return next(int(str(active["hits"])) for active in self._faults.report() if active["kind"] == kind)

    def kill(self) -> None:
        """The process dies: what is inside stays open in the log, faults and cache are gone."""
        self.alive = self.paused = False
        self.waiting.clear()
        self._left.clear()
        self._open.clear()
        self._spoiled.clear()
        self._dripping.clear()
        self._ready.clear()
        self._faults = faults.RequestFaults(self.id)
        self._gpu = GpuServer(self._setup)

    def resume(self, now_s: float) -> list[tuple[Callable[[Any], None], Any]]:
        """The process goes on after a pause. Returns what has waited for that, in its order."""
        self.paused = False
        self._resumed_s = now_s
        left, self._left = self._left, []
        for attempt_id in left:  # first of all, as the end of a connection shows before a timer does
            self.leave(now_s, attempt_id)
        waiting, self.waiting = self.waiting, []
        return waiting

    def wake_s(self) -> float | None:
        """When something happens next here."""
        next_s = self._gpu.next_event_s()
        if not self._dripping:
            return next_s
        return self._dripping[0][0] if next_s is None else min(next_s, self._dripping[0][0])

    def advance(self, now_s: float) -> list[ReadyAnswer]:
        """Let time pass up to `now_s`; the answers that became ready."""
        ready, self._ready = self._ready, []
        for event in self._gpu.advance(now_s):
            match event:
                case Started():
                    row = self._open.get(event.job_id)
                    if row is None:  # its client has gone since
                        continue
                    row.cold, row.queue_wait_s, row.service_started_s = event.cold, event.queue_wait_s, event.at_s
                case FirstToken():
                    pass  # answers are not streamed: their first byte comes with the last token
                case Finished():
                    row = self._open.get(event.job_id)
                    if row is None:
                        continue
                    at_s = max(event.at_s, self._resumed_s)
                    row.service_s = event.at_s - row.service_started_s
                    if event.job_id in self._spoiled:
                        ready += self._spoil(at_s, event.job_id)
                        continue
                    del self._open[event.job_id]
                    ready.append(self._close(row, event.job_id, at_s, 200, Ending.ANSWERED))
                case Refused():
                    ready += self._refuse(event)
                case Loading(at_s, model):
                    self.residency.append((self.number, Residency.LOADING, model, at_s))
                case Loaded(at_s, model):
                    self.residency.append((self.number, Residency.LOADED, model, at_s))
                case Evicted(at_s, model):
                    self.residency.append((self.number, Residency.EVICTED, model, at_s))
        while self._dripping and self._dripping[0][0] <= now_s:
            at_s, attempt_id = heappop(self._dripping)
            if attempt_id in self._spoiled:
                ready += self._finish(max(at_s, self._resumed_s), attempt_id)
        return ready

    def _refuse(self, event: Refused) -> list[ReadyAnswer]:
        """The GPU takes no job, or loses it as it dies; then those that stall hang on."""
        dead, lot = event.reason == "engine_dead", self._spoiled.get(event.job_id)
        row = self._open.get(event.job_id)
        if row is None or (
            dead and lot is not None and any(isinstance(each, faults.StallFault) for each in lot[0].spoils)
        ):
            return []
        del self._open[event.job_id]
        self._spoiled.pop(event.job_id, None)
        self._faults.leave(event.job_id)
        at_s = max(event.at_s, self._resumed_s)
        return [self._close(row, event.job_id, at_s, 500 if dead else 503, Ending.REFUSED)]

    def _spoil(self, at_s: float, attempt_id: int) -> list[ReadyAnswer]:
        """Do to an answer that is ready what a fault has in store for it."""
        lot, tokens = self._spoiled[attempt_id]
        gap_s = sum(spoil.gap_s for spoil in lot.spoils if isinstance(spoil, faults.DripFault))
        if gap_s and tokens > 1:
            heappush(self._dripping, (at_s + gap_s * (tokens - 1), attempt_id))
            return []
        return self._finish(at_s, attempt_id)

    def _finish(self, at_s: float, attempt_id: int) -> list[ReadyAnswer]:
        lot, tokens = self._spoiled.pop(attempt_id)
        cut_after, unreadable, status = lot.cut_after_tokens, False, 200
        broken = cut_after is not None
        for spoil in lot.spoils:
            match spoil:
                case faults.StallFault():
                    return []
                case faults.TruncatedFault():
                    unreadable = broken = True
                case faults.WrongLengthFault(by=by):
                    unreadable = broken = True
                    if by > 0:
                        cut_after = max(1, tokens)  # the client waits in vain for the rest
                case faults.StreamErrorFault():
                    status = 500
                case faults.GarbageFault():
                    unreadable = True
                case faults.DripFault():
                    continue
        ending = Ending.CUT if broken else Ending.ANSWERED
        answer = self._close(self._open.pop(attempt_id), attempt_id, at_s, status, ending, cut_after)
        return [replace(answer, unreadable=unreadable)]

    @staticmethod
    def _close(
        row: AttemptRow, attempt_id: int, at_s: float, status: int, ending: Ending, cut_after: int | None = None
    ) -> ReadyAnswer:
        row.status, row.ending, row.first_byte_s, row.end_s = status, ending, at_s, at_s
        return ReadyAnswer(attempt_id, at_s, status, cut_after)

    def health_check(self, path: str, expected: ExpectedAnswer) -> tuple[int, bool, Backend | None]:
        """Answer a health check at `path`: the status, whether status and body are as expected, and the report of the
        load.

        The report is None where it is not given or can't be read.
        """
        if path in LIVENESS:
            status = 503 if self._faults.hit(faults.NotAliveFault.kind) else 200
            return status, expected.met(status, b""), None
        state = self._faults.seen_in(self._gpu.state())
        report = self._reported(state)
        readable = self._faults.figures not in ("garbage", "missing")
        body = wire.health(state) if expected.reads_body and readable else b""
        status = 200 if state.ready else 503
        return status, expected.met(status, body), report if readable else None

    def report(self) -> Backend:
        """What `/health` says, or would say could it be read."""
        return self._reported(self._faults.seen_in(self._gpu.state()))

    def _reported(self, state: State) -> Backend:
        self._faults.hit(faults.MetricsFault.kind)
        return Backend(
            id=self.id,
            address=self.id,
            ready=state.ready,
            memory_total_mb=state.memory_total_mb,
            memory_used_mb=state.memory_used_mb,
            memory_evictable_mb=state.memory_evictable_mb,
            queue_depth=state.queue_depth,
            running=state.running,
            pending_tokens=state.pending_tokens,
            loaded_models=tuple(state.models),
        )
