"""One backend of the simulator: a mock GPU server, the way to it with its faults, and what it logs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from harness.balancer.protocol import Backend
from harness.model import Ending, ModelServer, Residency
from mockgpu import faults
from mockgpu.catalogue import Setup
from mockgpu.events import Evicted, Finished, FirstToken, Job, Loaded, Loading, Refused, Started
from mockgpu.model import GpuServer

NAN = float("nan")


@dataclass(slots=True)
class AttemptRow:
    """One attempt at a backend, in the columns of harness.history.ATTEMPT."""

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


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer that a backend has ready. `cut_after_tokens`: its body breaks off there; None: it is whole."""

    attempt_id: int
    at_s: float
    status: int
    cut_after_tokens: int | None = None
    retry_after_s: float | None = None


class SimBackend:
    """Backend number `number`. `alive`, `up`, `silent`, `resetting` and `delay_s` are the faults on it and its way.

    Faults of single requests are those of `mockgpu.faults`, as in a real server.
    """

    def __init__(self, number: int, server: ModelServer) -> None:
        self.number = number
        self.id = f"gpu-{number}"
        self.alive = True
        self.up = True
        self.silent = False
        self.resetting = False
        self.delay_s = 0.0
        self.rows: list[AttemptRow] = []
        self.residency: list[tuple[int, int, str, float]] = []
        self._setup = Setup.from_json(server.as_setup())
        self._gpu = GpuServer(self._setup)
        self._faults = faults.RequestFaults(self.id)
        self._open: dict[int, AttemptRow] = {}
        self._to_cut: dict[int, int] = {}
        self._ready: list[Answered] = []

    @property
    def reachable(self) -> bool:
        """Whether a connect is accepted."""
        return self.alive and self.up

    @property
    def inside(self) -> tuple[int, ...]:
        """Ids of the attempts that are here now."""
        return tuple(self._open)

    def arrive(self, now_s: float, attempt_id: int, row: AttemptRow, job: Job) -> None:
        """An attempt reaches the backend: log it, then serve it or do what a fault has in store for it."""
        self.rows.append(row)
        lot = self._faults.arrive(now_s, attempt_id, job.prompt_tokens + job.output_tokens)
        match lot:
            case faults.Answer(status, retry_after_s, refused):
                answer = self._close(row, attempt_id, now_s, status, Ending.REFUSED if refused else Ending.ANSWERED)
                later_s = None if retry_after_s is None else float(math.ceil(retry_after_s))
                self._ready.append(replace(answer, retry_after_s=later_s))
            case faults.Hold():
                self._open[attempt_id] = row
            case faults.Serve(slowness, cut_after_tokens):
                self._open[attempt_id] = row
                if cut_after_tokens is not None:
                    self._to_cut[attempt_id] = cut_after_tokens
                self._gpu.submit(now_s, job if slowness == 1.0 else replace(job, slowness=slowness))

    def leave(self, now_s: float, attempt_id: int) -> None:
        """The client of an attempt is gone: free its place."""
        row = self._open.pop(attempt_id, None)
        if row is None:
            return
        row.ending, row.end_s = Ending.CLIENT_GONE, now_s
        self._to_cut.pop(attempt_id, None)
        self._faults.leave(attempt_id)
        self._gpu.cancel(now_s, attempt_id)

    def change_faults(self, now_s: float, change: faults.Change) -> tuple[int, ...]:
        """Set or clear faults of single requests. Returns ids of attempts whose connections are reset by that."""
        released = self._faults.change(now_s, change)
        for attempt_id in released:
            row = self._open.pop(attempt_id)
            row.ending, row.end_s = Ending.CUT, now_s
        return released

    def kill(self) -> tuple[int, ...]:
        """The process dies: what is inside stays open in the log, faults and cache are gone. Returns the ids inside."""
        inside = self.inside
        self.alive = False
        self._open.clear()
        self._to_cut.clear()
        self._ready.clear()
        self._faults = faults.RequestFaults(self.id)
        self._gpu = GpuServer(self._setup)
        return inside

    def wake_s(self) -> float | None:
        """When something happens next here."""
        return self._gpu.next_event_s()

    def advance(self, now_s: float) -> list[Answered]:
        """Let time pass up to `now_s`; the answers that became ready."""
        ready, self._ready = self._ready, []
        for event in self._gpu.advance(now_s):
            match event:
                case Started(at_s, job_id, cold, queue_wait_s):
                    row = self._open[job_id]
                    row.cold, row.queue_wait_s, row.service_started_s = cold, queue_wait_s, at_s
                case FirstToken():
                    pass  # answers are not streamed: their first byte comes with the last token
                case Finished(at_s, job_id):
                    row = self._open.pop(job_id)
                    row.service_s = at_s - row.service_started_s
                    cut_after = self._to_cut.pop(job_id, None)
                    ending = Ending.ANSWERED if cut_after is None else Ending.CUT
                    ready.append(self._close(row, job_id, at_s, 200, ending, cut_after))
                case Refused(at_s, job_id):
                    self._to_cut.pop(job_id, None)
                    ready.append(self._close(self._open.pop(job_id), job_id, at_s, 503, Ending.REFUSED))
                case Loading(at_s, model):
                    self.residency.append((self.number, Residency.LOADING, model, at_s))
                case Loaded(at_s, model):
                    self.residency.append((self.number, Residency.LOADED, model, at_s))
                case Evicted(at_s, model):
                    self.residency.append((self.number, Residency.EVICTED, model, at_s))
        return ready

    @staticmethod
    def _close(
        row: AttemptRow, attempt_id: int, at_s: float, status: int, ending: Ending, cut_after: int | None = None
    ) -> Answered:
        row.status, row.ending, row.first_byte_s, row.end_s = status, ending, at_s, at_s
        return Answered(attempt_id, at_s, status, cut_after)

    def report(self) -> Backend:
        """What `/health` says."""
        state = self._faults.seen_in(self._gpu.state())
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
