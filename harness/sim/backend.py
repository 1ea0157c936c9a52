"""A simulated backend: a mock GPU server, the network link to it, their faults, and the attempt log."""

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
from mockgpu.faults import decisions
from mockgpu.faults.kinds import (
    BadMetrics,
    Drip,
    Garbage,
    NotAlive,
    RequestFault,
    Stall,
    StreamError,
    Truncated,
    WrongLength,
)
from mockgpu.gpu.catalogue import Setup
from mockgpu.gpu.events import Evicted, Finished, FirstToken, Job, Loaded, Loading, Refused, Started, State
from mockgpu.gpu.model import GpuServer

NAN = float("nan")
LIVENESS = ("/ping", "/v2/health/live")
"""Liveness routes of the mock servers. Their answers say nothing about readiness or load."""


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
    """A finished answer of a backend. `cut_after_tokens`: where its body breaks off; None: the body is whole.

    `unreadable`: the body has no usable content, although all announced bytes arrive.
    """

    attempt_id: int
    at_s: float
    status: int
    cut_after_tokens: int | None = None
    retry_after_s: float | None = None
    unreadable: bool = False


@dataclass(slots=True)
class NetworkAttempt:
    """One attempt of a request in the network. `row`: its entry in the backend's log, set on arrival; `answer`: its
    answer.

    `cut_for`: id of the request whose client has not yet noticed that its answer was cut off.
    """

    id: int
    request_id: int
    backend: SimBackend
    row: AttemptRow | None = None
    answer: ReadyAnswer | None = None
    cut_for: int | None = None
    done: bool = False


class SimBackend:
    """Backend number `number`. `link` is its network link; `alive` and `paused` are the state of its process.

    Request faults are those of `mockgpu.faults.decisions`, as in a real server. Answers are not streamed here: a
    stalled answer never comes, and a dripping one comes at the time of its last token.

    Do not call `advance` while the backend is paused. Append work that arrives meanwhile to `deferred`, as pairs of
    function and argument, until `resume`. The GPU's clock does not stop with the process: all GPU work that was due
    during the pause completes at `resume`.
    """

    def __init__(self, number: int, server: ModelServer, seed: int = 0) -> None:
        self.number = number
        self.id = f"gpu-{number}"
        self.link = Link(Random(f"{seed}/way/{number}"))
        self.alive = True
        self.paused = False
        self.deferred: list[tuple[Callable[[Any], None], Any]] = []
        self.next_wake_s: float | None = None
        """Time of the next scheduled `advance`; None: not scheduled."""
        self.rows: list[AttemptRow] = []
        self.residency: list[tuple[int, int, str, float]] = []
        self._setup = Setup.from_json(server.as_setup())
        self._gpu = GpuServer(self._setup)
        self._faults = decisions.RequestFaults(self.id)
        self._open: dict[int, AttemptRow] = {}
        self._corrupted: dict[int, tuple[decisions.Serve, int]] = {}
        """By attempt id, for answers to be corrupted only: the fault decision and the number of output tokens."""
        self._dripping: list[tuple[float, int]] = []
        self._ready: list[ReadyAnswer] = []
        self._resumed_s = 0.0
        self._disconnected: list[int] = []

    @property
    def reachable(self) -> bool:
        """Whether connects are accepted."""
        return self.alive and self.link.up

    @property
    def inside(self) -> tuple[int, ...]:
        """Ids of the attempts at this backend, including those not yet read by a paused process."""
        if not self.deferred:
            return tuple(self._open)
        deferred = (subject for _, subject in self.deferred if isinstance(subject, NetworkAttempt) and not subject.done)
        return (*self._open, *(attempt.id for attempt in deferred))

    def arrive(self, now_s: float, attempt_id: int, row: AttemptRow, job: Job) -> None:
        """Log an arriving attempt, then serve, answer or hold it as the active faults decide."""
        self.rows.append(row)
        decision = self._faults.arrive(now_s, attempt_id, job.prompt_tokens + job.output_tokens)
        match decision:
            case decisions.Serve():
                self._open[attempt_id] = row
                if decision.cut_after_tokens is not None or decision.corruptions:
                    self._corrupted[attempt_id] = decision, job.output_tokens
                self._gpu.submit(now_s, job if decision.slowness == 1.0 else replace(job, slowness=decision.slowness))
            case decisions.AnswerStatus(status, retry_after_s, refused, kills=kills):
                if kills:
                    self._gpu.die(now_s)
                answer = self._close(row, attempt_id, now_s, status, Ending.REFUSED if refused else Ending.ANSWERED)
                rounded_s = None if retry_after_s is None else float(math.ceil(retry_after_s))
                self._ready.append(replace(answer, retry_after_s=rounded_s))
            case decisions.Hold():
                self._open[attempt_id] = row

    def leave(self, now_s: float, attempt_id: int) -> None:
        """Free the slot of an attempt whose client disconnected; a paused process does so when it resumes."""
        if self.paused:
            self._disconnected.append(attempt_id)
            return
        row = self._open.pop(attempt_id, None)
        if row is None:
            return
        row.ending, row.end_s = Ending.CLIENT_GONE, now_s
        self._corrupted.pop(attempt_id, None)
        self._faults.leave(attempt_id)
        self._gpu.cancel(now_s, attempt_id)

    def change_faults(self, now_s: float, change: decisions.Change) -> tuple[int, ...]:
        """Set or clear request faults. Returns the ids of attempts whose connections the change resets."""
        released = self._faults.change(now_s, change)
        for attempt_id in released:
            row = self._open.pop(attempt_id)
            row.ending, row.end_s = Ending.CUT, now_s
            self._corrupted.pop(attempt_id, None)
            self._gpu.cancel(now_s, attempt_id)
        if change.evicts:
            self._gpu.evict(now_s)
        if change.kills:
            self._gpu.die(now_s)
        if change.freezes:
            self._faults.freeze(self._gpu.state())
        return released

    def hits(self, fault: RequestFault) -> int:
        """Number of requests, or reports, hit by the active fault of this kind. KeyError if there is none."""
        return self._faults.hits(fault.kind)

    def kill(self) -> None:
        """Kill the process: attempts in flight stay open in the log; faults and cache are lost."""
        self.alive = self.paused = False
        self.deferred.clear()
        self._disconnected.clear()
        self._open.clear()
        self._corrupted.clear()
        self._dripping.clear()
        self._ready.clear()
        self._faults = decisions.RequestFaults(self.id)
        self._gpu = GpuServer(self._setup)

    def resume(self, now_s: float) -> list[tuple[Callable[[Any], None], Any]]:
        """Resume the process after a pause. Returns the deferred work in order of arrival."""
        self.paused = False
        self._resumed_s = now_s
        disconnected, self._disconnected = self._disconnected, []
        for attempt_id in disconnected:  # before timers, as a live process sees closed connections first
            self.leave(now_s, attempt_id)
        deferred, self.deferred = self.deferred, []
        return deferred

    def wake_s(self) -> float | None:
        """Time of the next event at this backend; None: no event is due."""
        next_s = self._gpu.next_event_s()
        if not self._dripping:
            return next_s
        return self._dripping[0][0] if next_s is None else min(next_s, self._dripping[0][0])

    def advance(self, now_s: float) -> list[ReadyAnswer]:
        """Advance to `now_s`. Returns the answers that became ready."""
        ready, self._ready = self._ready, []
        for event in self._gpu.advance(now_s):
            match event:
                case Started():
                    row = self._open.get(event.job_id)
                    if row is None:  # its client has disconnected
                        continue
                    row.cold, row.queue_wait_s, row.service_started_s = event.cold, event.queue_wait_s, event.at_s
                case FirstToken():
                    pass  # answers are not streamed: the first byte comes with the last token
                case Finished():
                    row = self._open.get(event.job_id)
                    if row is None:
                        continue
                    at_s = max(event.at_s, self._resumed_s)
                    row.service_s = event.at_s - row.service_started_s
                    if event.job_id in self._corrupted:
                        ready += self._corrupt(at_s, event.job_id)
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
            if attempt_id in self._corrupted:
                ready += self._finish(max(at_s, self._resumed_s), attempt_id)
        return ready

    def _refuse(self, event: Refused) -> list[ReadyAnswer]:
        """The GPU refused a job, or lost it by dying. Stalled answers stay open when the GPU dies."""
        dead, decision = event.reason == "engine_dead", self._corrupted.get(event.job_id)
        row = self._open.get(event.job_id)
        if row is None or (
            dead and decision is not None and any(isinstance(each, Stall) for each in decision[0].corruptions)
        ):
            return []
        del self._open[event.job_id]
        self._corrupted.pop(event.job_id, None)
        self._faults.leave(event.job_id)
        at_s = max(event.at_s, self._resumed_s)
        return [self._close(row, event.job_id, at_s, 500 if dead else 503, Ending.REFUSED)]

    def _corrupt(self, at_s: float, attempt_id: int) -> list[ReadyAnswer]:
        """Apply the response-corruption faults to a ready answer; a drip fault delays it first."""
        decision, tokens = self._corrupted[attempt_id]
        gap_s = sum(corruption.gap_s for corruption in decision.corruptions if isinstance(corruption, Drip))
        if gap_s and tokens > 1:
            heappush(self._dripping, (at_s + gap_s * (tokens - 1), attempt_id))
            return []
        return self._finish(at_s, attempt_id)

    def _finish(self, at_s: float, attempt_id: int) -> list[ReadyAnswer]:
        decision, tokens = self._corrupted.pop(attempt_id)
        cut_after, unreadable, status = decision.cut_after_tokens, False, 200
        broken = cut_after is not None
        for corruption in decision.corruptions:
            match corruption:
                case Stall():
                    return []
                case Truncated():
                    unreadable = broken = True
                case WrongLength(by=by):
                    unreadable = broken = True
                    if by > 0:
                        cut_after = max(1, tokens)  # the client waits for bytes that never come
                case StreamError():
                    status = 500
                case Garbage():
                    unreadable = True
                case Drip():
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
        """Answer a health check at `path`: status, whether status and body are as expected, and the load report.

        The report is None if it is missing or unreadable.
        """
        if path in LIVENESS:
            status = 503 if self._faults.hit(NotAlive.kind) else 200
            return status, expected.met(status, b""), None
        state = self._faults.reported_state(self._gpu.state())
        report = self._reported(state)
        readable = self._faults.metrics_mode not in ("garbage", "missing")
        body = wire.health(state) if expected.reads_body and readable else b""
        status = 200 if state.ready else 503
        return status, expected.met(status, body), report if readable else None

    def report(self) -> Backend:
        """The report of `/health`, also when a fault makes it unreadable."""
        return self._reported(self._faults.reported_state(self._gpu.state()))

    def _reported(self, state: State) -> Backend:
        self._faults.hit(BadMetrics.kind)
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
