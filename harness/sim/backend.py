"""One backend of the simulator: a mock GPU server, the way to it with its faults, and what it logs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from harness.balancer.protocol import Backend
from harness.frozen import lean
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


@lean
class Answered:
    """An answer that a backend has ready. `cut_after_tokens`: its body breaks off there; None: it is whole.

    `unreadable`: its body says nothing, though all of it came as announced.
    """

    attempt_id: int
    at_s: float
    status: int
    cut_after_tokens: int | None = None
    retry_after_s: float | None = None
    unreadable: bool = False


class SimBackend:
    """Backend number `number`. `alive`, `up`, `silent`, `resetting` and `delay_s` are the faults on it and its way.

    Faults of single requests are those of `mockgpu.faults`, as in a real server. As answers are not streamed here, one
    that stalls never comes, and one that drips comes when its last token would.
    """

    def __init__(self, number: int, server: ModelServer) -> None:
        self.number = number
        self.id = f"gpu-{number}"
        self.alive = True
        self.up = True
        self.silent = False
        self.resetting = False
        self.delay_s = 0.0
        self.woken_s: float | None = None
        """When it is to be advanced next."""
        self.rows: list[AttemptRow] = []
        self.residency: list[tuple[int, int, str, float]] = []
        self._setup = Setup.from_json(server.as_setup())
        self._gpu = GpuServer(self._setup)
        self._faults = faults.RequestFaults(self.id)
        self._open: dict[int, AttemptRow] = {}
        self._spoiled: dict[int, tuple[faults.Serve, int]] = {}
        """What befalls the answers of attempts inside, and how many tokens these have; only where something does."""
        self._dripping: list[tuple[float, int]] = []
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
            case faults.Serve():
                self._open[attempt_id] = row
                if lot.cut_after_tokens is not None or lot.spoils:
                    self._spoiled[attempt_id] = lot, job.output_tokens
                self._gpu.submit(now_s, job if lot.slowness == 1.0 else replace(job, slowness=lot.slowness))
            case faults.Answer(status, retry_after_s, refused):
                answer = self._close(row, attempt_id, now_s, status, Ending.REFUSED if refused else Ending.ANSWERED)
                later_s = None if retry_after_s is None else float(math.ceil(retry_after_s))
                self._ready.append(replace(answer, retry_after_s=later_s))
            case faults.Hold():
                self._open[attempt_id] = row

    def leave(self, now_s: float, attempt_id: int) -> None:
        """The client of an attempt is gone: free its place."""
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
        if change.freezes:
            self._faults.freeze(self._gpu.state())
        return released

    def kill(self) -> tuple[int, ...]:
        """The process dies: what is inside stays open in the log, faults and cache are gone. Returns the ids inside."""
        inside = self.inside
        self.alive = False
        self._open.clear()
        self._spoiled.clear()
        self._dripping.clear()
        self._ready.clear()
        self._faults = faults.RequestFaults(self.id)
        self._gpu = GpuServer(self._setup)
        return inside

    def wake_s(self) -> float | None:
        """When something happens next here."""
        next_s = self._gpu.next_event_s()
        if not self._dripping:
            return next_s
        return self._dripping[0][0] if next_s is None else min(next_s, self._dripping[0][0])

    def advance(self, now_s: float) -> list[Answered]:
        """Let time pass up to `now_s`; the answers that became ready."""
        ready, self._ready = self._ready, []
        for event in self._gpu.advance(now_s):
            match event:
                case Started():
                    row = self._open[event.job_id]
                    row.cold, row.queue_wait_s, row.service_started_s = event.cold, event.queue_wait_s, event.at_s
                case FirstToken():
                    pass  # answers are not streamed: their first byte comes with the last token
                case Finished():
                    row = self._open[event.job_id]
                    row.service_s = event.at_s - row.service_started_s
                    if event.job_id in self._spoiled:
                        ready += self._spoil(event.at_s, event.job_id)
                        continue
                    del self._open[event.job_id]
                    ready.append(self._close(row, event.job_id, event.at_s, 200, Ending.ANSWERED))
                case Refused(at_s, job_id):
                    self._spoiled.pop(job_id, None)
                    self._faults.leave(job_id)
                    ready.append(self._close(self._open.pop(job_id), job_id, at_s, 503, Ending.REFUSED))
                case Loading(at_s, model):
                    self.residency.append((self.number, Residency.LOADING, model, at_s))
                case Loaded(at_s, model):
                    self.residency.append((self.number, Residency.LOADED, model, at_s))
                case Evicted(at_s, model):
                    self.residency.append((self.number, Residency.EVICTED, model, at_s))
        while self._dripping and self._dripping[0][0] <= now_s:
            at_s, attempt_id = heappop(self._dripping)
            if attempt_id in self._spoiled:
                ready += self._finish(at_s, attempt_id)
        return ready

    def _spoil(self, at_s: float, attempt_id: int) -> list[Answered]:
        """Do to an answer that is ready what a fault has in store for it."""
        lot, tokens = self._spoiled[attempt_id]
        gap_s = sum(spoil.gap_s for spoil in lot.spoils if isinstance(spoil, faults.Drip))
        if gap_s and tokens > 1:
            heappush(self._dripping, (at_s + gap_s * (tokens - 1), attempt_id))
            return []
        return self._finish(at_s, attempt_id)

    def _finish(self, at_s: float, attempt_id: int) -> list[Answered]:
        lot, tokens = self._spoiled.pop(attempt_id)
        cut_after, unreadable = lot.cut_after_tokens, False
        broken = cut_after is not None
        for spoil in lot.spoils:
            match spoil:
                case faults.Stall():
                    return []
                case faults.Truncated():
                    unreadable = broken = True
                case faults.WrongLength(by=by):
                    unreadable = broken = True
                    if by > 0:
                        cut_after = max(1, tokens)  # the client waits in vain for the rest
                case faults.Garbage():
                    unreadable = True
                case faults.Drip():
                    continue
        ending = Ending.CUT if broken else Ending.ANSWERED
        answer = self._close(self._open.pop(attempt_id), attempt_id, at_s, 200, ending, cut_after)
        return [replace(answer, unreadable=unreadable)]

    @staticmethod
    def _close(
        row: AttemptRow, attempt_id: int, at_s: float, status: int, ending: Ending, cut_after: int | None = None
    ) -> Answered:
        row.status, row.ending, row.first_byte_s, row.end_s = status, ending, at_s, at_s
        return Answered(attempt_id, at_s, status, cut_after)

    @property
    def unreadable(self) -> bool:
        """Whether nobody can read what it says of its load."""
        return self._faults.figures in ("garbage", "missing")

    def report(self) -> Backend:
        """What `/health` says, or would say were it not `unreadable`."""
        state = self._faults.seen_in(self._gpu.state())
        self._faults.hit(faults.Metrics.kind)
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
