"""Faults of one backend that strike single requests: what becomes of each inference or update that arrives.

There is no clock, socket or chance here: times are arguments, and which requests a share hits follows from a seed
and from their position. So a simulator and a server apply the very same faults. ``mockgpu.faults.kinds`` says what
each kind does.

Rules
-----
- One fault of each kind at a time; setting one again replaces it and begins it anew. Kinds combine.
- A request's lot is drawn when it arrives, in this order: ``status``, ``capacity``, ``queue-full``, ``out-of-memory``,
  ``hang``, ``zombie``; what they leave is served, under all others that are set. Of ``cut``, ``stall``, ``truncated``
  and ``stream-error`` the first one ends the answer; ``wrong-length`` needs an answer that none of them ends. A request
  that an earlier fault has taken does not count for a later one. What was inside before a fault was set is left alone.
- But an ``out-of-memory`` that is ``dead`` kills the engine, and all that is inside with it but for those that hang or
  are to stall: when it is set (``Change.kills``), or, aimed, with the first request that it strikes
  (``AnswerStatus.kills``). From then on it strikes every request, until it is cleared or set anew.
- A request can bring faults for itself alone; each takes the place of one of its kind that is set, and counts no hit.
- Requests that hang wait outside the GPU: in a report they count as queued, with their tokens, but they take up
  no slot and no place of the queue's limit. When their fault is taken back the connections of all that hang or stall
  are reset, as if the stuck process had been restarted; they are never answered.
- ``not-ready``, ``not-alive`` and ``metrics`` concern reports only. Liveness stays fine under every fault but one.
- ``evict`` acts once, when it is set, and stands in the report until it is cleared.
- Faults live in a backend's process: they end when it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TypeAlias

from mockgpu.api.wire import shown
from mockgpu.faults.kinds import (
    AT_ONCE,
    KINDS,
    SPOILS,
    CapacityFault,
    CutFault,
    DripFault,
    EvictFault,
    Fault,
    FaultError,
    GarbageFault,
    HangFault,
    MetricsFault,
    NotAliveFault,
    NotReadyFault,
    OutOfMemoryFault,
    QueueFullFault,
    SelectiveFault,
    Single,
    SlowFault,
    Spoil,
    StallFault,
    StatusFault,
    StreamErrorFault,
    TruncatedFault,
    WrongLengthFault,
    ZombieFault,
    from_json,
    known,
    to_json,
)
from mockgpu.gpu.events import State

__all__ = [
    "KINDS",
    "AnswerStatus",
    "CapacityFault",
    "Change",
    "CutFault",
    "DripFault",
    "EvictFault",
    "Fault",
    "FaultError",
    "GarbageFault",
    "HangFault",
    "Hold",
    "Lot",
    "MetricsFault",
    "NotAliveFault",
    "NotReadyFault",
    "OutOfMemoryFault",
    "QueueFullFault",
    "RequestFaults",
    "Serve",
    "Single",
    "SlowFault",
    "Spoil",
    "StallFault",
    "StatusFault",
    "StreamErrorFault",
    "TruncatedFault",
    "WrongLengthFault",
    "ZombieFault",
    "from_json",
    "to_json",
]

_AT_ONCE = tuple(kind.kind for kind in AT_ONCE)
_SPOILS = tuple(kind.kind for kind in SPOILS)
_ENDS = (StallFault, TruncatedFault, StreamErrorFault)
_NEED_AN_END = (*(kind.kind for kind in _ENDS), WrongLengthFault.kind)


@dataclass(frozen=True, slots=True)
class Change:
    """What a control request asks for: kinds to clear, then faults to set. Neither: nothing but a look."""

    set: tuple[Fault, ...] = ()
    clear: frozenset[str] = frozenset()

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Change:
        """Read ``{"set": [faults], "clear": [kinds]}``, where ``"clear": "all"`` is all kinds; raises FaultError."""
        unknown = sorted(set(data) - {"set", "clear"})
        if unknown:
            raise FaultError(f"a change of faults has no {shown(unknown[0])}, expected set or clear")
        faults, kinds = data.get("set", []), data.get("clear", [])
        if not isinstance(faults, list):
            raise FaultError(f"set is {shown(faults)}, expected a list of faults; kinds: {', '.join(KINDS)}")
        if kinds == "all":
            kinds = list(KINDS)
        if not isinstance(kinds, list):
            raise FaultError(f'clear is {shown(kinds)}, expected "all" or a list of: {", ".join(KINDS)}')
        return cls(tuple(from_json(fault) for fault in faults), frozenset(known(kind) for kind in kinds))

    def to_json(self) -> dict[str, object]:
        """Undo ``from_json``."""
        return {"set": [to_json(fault) for fault in self.set], "clear": sorted(self.clear)}

    @property
    def evicts(self) -> bool:
        """Whether the backend is to empty its memory of what is idle, now."""
        return any(isinstance(fault, EvictFault) for fault in self.set)

    @property
    def kills(self) -> bool:
        """Whether the backend's engine is to die, now."""
        return any(isinstance(fault, OutOfMemoryFault) and fault.kills_at_once for fault in self.set)

    @property
    def freezes(self) -> bool:
        """Whether the backend is to hand its figures to ``RequestFaults.freeze``, now."""
        return any(isinstance(fault, MetricsFault) and fault.how == "frozen" for fault in self.set)


@dataclass(frozen=True, slots=True)
class AnswerStatus:
    """The request is answered with ``status`` at once. ``refused``: for want of capacity, or for this ``reason``.

    Reasons are those of ``mockgpu.gpu.events.Refused``, "" none. ``kills``: the engine dies of it, and fails all
    inside.
    """

    status: int
    retry_after_s: float | None = None
    refused: bool = False
    reason: str = ""
    kills: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """The request is held without an answer until its client leaves or ``change`` names it."""


@dataclass(frozen=True, slots=True)
class Serve:
    """The request is served, ``slowness`` times as long; its answer breaks off ``cut_after_tokens`` (None: never).

    ``spoils`` is what else applies_to the answer, at most one of each kind.
    """

    slowness: float = 1.0
    cut_after_tokens: int | None = None
    spoils: tuple[Spoil, ...] = ()


Lot: TypeAlias = AnswerStatus | Hold | Serve
AS_EVER = Serve()


class RequestFaults:
    """The faults of the backend called ``name``, how many requests each has hit, and which of them still hang."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._active: dict[str, Fault] = {}
        self._hits: dict[str, int] = {}
        self._arrived: dict[str, int] = {}  # requests that came to each fault since it was set
        self._budget = 0.0  # of the capacity fault, in requests, as of _budget_s
        self._budget_s = 0.0
        self._held: dict[int, tuple[str, int]] = {}  # kind of fault and tokens, by request id
        self._frozen: State | None = None
        self._dead = False

    # -- control ---------------------------------------------------------------------------------------------

    def change(self, now_s: float, change: Change) -> tuple[int, ...]:
        """Clear, then set. Returns ids of hanging and stalled requests whose connections must be reset now."""
        released = tuple(number for number, (kind, _) in self._held.items() if kind in change.clear)
        for number in released:
            del self._held[number]
        for kind in change.clear:
            self._active.pop(kind, None)
            self._hits.pop(kind, None)
        if OutOfMemoryFault.kind in {*change.clear, *(fault.kind for fault in change.set)}:
            self._dead = change.kills
        for fault in change.set:
            self._active[fault.kind] = fault
            self._hits[fault.kind] = self._arrived[fault.kind] = 0
            if isinstance(fault, CapacityFault):
                self._budget, self._budget_s = float(fault.burst), now_s
            elif isinstance(fault, EvictFault):
                self._hits[fault.kind] = 1
        return released

    def report(self) -> list[dict[str, object]]:
        """The active faults as JSON objects, each with ``hits``: how many requests (or reports) it has struck."""
        return [{**to_json(fault), "hits": self._hits[kind]} for kind, fault in self._active.items()]

    # -- requests --------------------------------------------------------------------------------------------

    def arrive(self, now_s: float, request_id: int, tokens: int, brought: tuple[Single, ...] = ()) -> Lot:
        """What becomes of a request that arrives now, with ``tokens`` of prompt and output.

        ``brought`` are its own faults, one of each kind at most. One that hangs or is to stall keeps its id here until
        ``leave`` or ``change`` frees it.
        """
        if not self._active and not brought:
            return AS_EVER
        own: dict[str, Fault] = {fault.kind: fault for fault in brought}
        for kind in _AT_ONCE:
            fault = own.get(kind) or self._struck(kind, now_s)
            match fault:
                case StatusFault():
                    return AnswerStatus(fault.status, fault.retry_after_s)
                case CapacityFault():
                    return AnswerStatus(503, refused=True)
                case QueueFullFault():
                    return AnswerStatus(503, fault.retry_after_s, refused=True, reason="queue_full")
                case OutOfMemoryFault():
                    return self._run_out_of_memory(fault)
                case HangFault() | ZombieFault():
                    self._held[request_id] = kind, tokens
                    return Hold()
        slow = own.get(SlowFault.kind) or self._struck(SlowFault.kind, now_s)
        spoils: list[Spoil] = []
        cut: Fault | None = None
        for kind in (CutFault.kind, *_SPOILS):
            ended = cut is not None or any(isinstance(each, _ENDS) for each in spoils)
            if ended and kind in _NEED_AN_END:
                continue
            fault = own.get(kind) or self._struck(kind, now_s)
            if isinstance(fault, CutFault):
                cut = fault
            elif isinstance(fault, SPOILS):
                spoils.append(fault)
            if isinstance(fault, StallFault):
                self._held[request_id] = kind, 0
        return Serve(
            slow.factor if isinstance(slow, SlowFault) else 1.0,
            cut.after_tokens if isinstance(cut, CutFault) else None,
            tuple(spoils),
        )

    def _run_out_of_memory(self, fault: OutOfMemoryFault) -> AnswerStatus:
        if self._dead:
            return AnswerStatus(500, refused=True, reason="engine_dead")
        self._dead = fault.dead
        return AnswerStatus(500, refused=True, reason="out_of_memory", kills=fault.dead)

    def leave(self, request_id: int) -> None:
        """The client of a request has gone; does nothing for one that neither hangs nor stalls."""
        self._held.pop(request_id, None)

    def _struck(self, kind: str, now_s: float) -> Fault | None:
        """The active fault of this kind, if it strikes the request that arrives now."""
        fault = self._active.get(kind)
        if fault is None:
            return None
        struck = not self._admits(fault, now_s) if isinstance(fault, CapacityFault) else self._aims(fault)
        if not struck and not (self._dead and kind == OutOfMemoryFault.kind):
            return None
        self._hits[kind] += 1
        return fault

    def _aims(self, fault: Fault) -> bool:
        assert isinstance(fault, SelectiveFault)
        position = self._arrived[fault.kind]
        self._arrived[fault.kind] += 1
        if fault.after is not None:
            if position < fault.after:
                return False
            position -= fault.after
        if fault.first is not None:
            return position < fault.first
        if fault.every is not None:
            return position % fault.every == fault.every - 1
        if fault.share is not None:
            text = f"{self._name}/{fault.seed}/{position}"
            drawn = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
            return drawn < fault.share * 2**64
        return True

    def _admits(self, fault: CapacityFault, now_s: float) -> bool:
        passed_s = max(0.0, now_s - self._budget_s)
        self._budget = min(float(fault.burst), self._budget + passed_s * fault.rate_per_s)
        self._budget_s = max(now_s, self._budget_s)
        if self._budget < 1.0:
            return False
        self._budget -= 1.0
        return True

    # -- reports ---------------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether any fault is set."""
        return bool(self._active)

    @property
    def figures(self) -> str:
        """How load figures are kept from those who ask, see ``MetricsFault``; "" if they are not."""
        metrics = self._active.get(MetricsFault.kind)
        return metrics.how if isinstance(metrics, MetricsFault) else ""

    def freeze(self, state: State) -> State:
        """From now on frozen figures are those of ``state``, under the faults; returns them."""
        self._frozen = self._loaded(state)
        return self._frozen

    def hit(self, kind: str) -> bool:
        """Whether a fault that strikes reports is set; counts the report that it strikes."""
        if kind not in self._active:
            return False
        self._hits[kind] += 1
        return True

    def figures_in(self, state: State) -> State:
        """The load figures that the backend reports, where ``state`` is what its GPU says."""
        if self._frozen is not None and self.figures == "frozen":
            return self._frozen
        return self._loaded(state)

    def seen_in(self, state: State) -> State:
        """What the backend reports of itself under its faults, where ``state`` is what its GPU says."""
        if not self._active and not self._held:
            return state
        ready = not self.hit(NotReadyFault.kind) and state.ready
        return replace(self.figures_in(state), ready=ready and not self._dead)

    def _loaded(self, state: State) -> State:
        """The state with those that are held among the waiting."""
        waiting = [tokens for kind, tokens in self._held.values() if kind != StallFault.kind]
        state = replace(
            state,
            queue_depth=state.queue_depth + len(waiting),
            pending_tokens=state.pending_tokens + sum(waiting),
        )
        if ZombieFault.kind in self._active:
            stuck = state.queue_depth + state.running
            return replace(
                state, queue_depth=stuck, running=0, kv_blocks_used=0, kv_blocks_cached=0, output_tokens_per_s=0.0
            )
        return state
