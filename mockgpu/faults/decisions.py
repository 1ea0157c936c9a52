"""Request faults of one backend: the decision for each inference or update that arrives.

There is no clock, socket or randomness here: times are arguments, and the requests that a ``share`` selects depend on
a seed and their position only. So a simulator and a server apply identical faults. ``mockgpu.faults.kinds`` describes
the effect of each kind.

Rules
-----
- One fault per kind at a time; setting a kind again replaces the fault and restarts its counters. Kinds combine.
- The decision is made when a request arrives, in this order: ``status``, ``capacity``, ``queue-full``,
  ``out-of-memory``, ``hang``, ``zombie``; a request that none of them takes is served, under all other faults that are
  set. Of ``cut``, ``stall``, ``truncated`` and ``stream-error`` the first one ends the answer; ``wrong-length`` applies
  only to an answer that none of them ends. A request that an earlier fault took does not count for a later one.
  Requests that were in flight before a fault was set are unaffected.
- An ``out-of-memory`` fault that is ``dead`` also kills the engine, and with it all requests in flight except those
  that hang or are to stall: when it is set (``Change.kills``), or, if selective, with the first request it applies to
  (``AnswerStatus.kills``). From then on it applies to every request, until it is cleared or set again.
- A request can carry faults for itself only; each replaces the set fault of its kind and counts no hit.
- Hanging requests wait outside the GPU: a report counts them as queued, with their tokens, but they occupy no slot and
  do not count against the queue's limit. When their fault is cleared, the connections of all hanging and stalled
  requests are reset, as if the stuck process had been restarted; they are never answered.
- ``not-ready``, ``not-alive`` and ``metrics`` affect reports only. Liveness stays good under every fault but
  ``not-alive``.
- ``evict`` acts once, when it is set, and stays in the report until it is cleared.
- Faults live in a backend's process and end with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TypeAlias

from mockgpu.api.text import shown
from mockgpu.faults.json_form import checked_kind, from_json, to_json
from mockgpu.faults.kinds import (
    CORRUPTIONS,
    IMMEDIATE,
    KINDS,
    BadMetrics,
    Corruption,
    CutOff,
    Evict,
    FailingStatus,
    Hang,
    NotReady,
    OutOfMemory,
    OverCapacity,
    QueueFull,
    RequestFault,
    Slow,
    Stall,
    StreamError,
    Truncated,
    WrongLength,
    Zombie,
)
from mockgpu.faults.selection import FaultError, SelectiveFault
from mockgpu.gpu.events import State

_IMMEDIATE_KINDS = tuple(kind.kind for kind in IMMEDIATE)
_CORRUPTION_KINDS = tuple(kind.kind for kind in CORRUPTIONS)
_ENDING_FAULTS = (Stall, Truncated, StreamError)
_NEED_THE_END = (*(kind.kind for kind in _ENDING_FAULTS), WrongLength.kind)  # skipped once a fault ends the answer


@dataclass(frozen=True, slots=True)
class Change:
    """Kinds to clear, then faults to set, as in a control request. An empty change only queries the faults."""

    set: tuple[RequestFault, ...] = ()
    clear: frozenset[str] = frozenset()

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Change:
        """Read ``{"set": [faults], "clear": [kinds]}``, where ``"clear": "all"`` means all kinds; raises FaultError."""
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
        return cls(tuple(from_json(fault) for fault in faults), frozenset(checked_kind(kind) for kind in kinds))

    def to_json(self) -> dict[str, object]:
        """The object that ``from_json`` reads."""
        return {"set": [to_json(fault) for fault in self.set], "clear": sorted(self.clear)}

    @property
    def evicts(self) -> bool:
        """Whether the backend must evict idle models now."""
        return any(isinstance(fault, Evict) for fault in self.set)

    @property
    def kills(self) -> bool:
        """Whether the backend's engine must die now."""
        return any(isinstance(fault, OutOfMemory) and fault.kills_at_once for fault in self.set)

    @property
    def freezes(self) -> bool:
        """Whether the backend must pass its load figures to ``RequestFaults.freeze`` now."""
        return any(isinstance(fault, BadMetrics) and fault.how == "frozen" for fault in self.set)


@dataclass(frozen=True, slots=True)
class AnswerStatus:
    """Answer the request with ``status`` immediately.

    ``refused``: the backend refuses it, for lack of capacity or for ``reason`` (see ``mockgpu.gpu.events.Refused``;
    "" for none). ``kills``: the engine dies, and all requests in flight fail.
    """

    status: int
    retry_after_s: float | None = None
    refused: bool = False
    reason: str = ""
    kills: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold the request without an answer until its client leaves or ``change`` returns its id."""


@dataclass(frozen=True, slots=True)
class Serve:
    """Serve the request, ``slowness`` times as long; reset its connection ``cut_after_tokens`` (None: never).

    ``corruptions`` are further faults of the answer, at most one of each kind.
    """

    slowness: float = 1.0
    cut_after_tokens: int | None = None
    corruptions: tuple[Corruption, ...] = ()


FaultDecision: TypeAlias = AnswerStatus | Hold | Serve
SERVE_NORMALLY = Serve()


class RequestFaults:
    """The active faults of the backend ``name``, their hit counts, and the requests that they hold."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._active: dict[str, RequestFault] = {}
        self._hits: dict[str, int] = {}
        self._arrived: dict[str, int] = {}  # requests that reached each fault since it was set, by kind
        self._budget = 0.0  # tokens of the capacity fault's bucket, in requests, at _budget_s
        self._budget_s = 0.0
        self._held: dict[int, tuple[str, int]] = {}  # fault kind and tokens of each held request, by its id
        self._frozen: State | None = None
        self._dead = False

    # -- control ---------------------------------------------------------------------------------------------

    def change(self, now_s: float, change: Change) -> tuple[int, ...]:
        """Clear, then set. Returns the ids of hanging and stalled requests whose connections must be reset now."""
        released = tuple(number for number, (kind, _) in self._held.items() if kind in change.clear)
        for number in released:
            del self._held[number]
        for kind in change.clear:
            self._active.pop(kind, None)
            self._hits.pop(kind, None)
        if OutOfMemory.kind in {*change.clear, *(fault.kind for fault in change.set)}:
            self._dead = change.kills
        for fault in change.set:
            self._active[fault.kind] = fault
            self._hits[fault.kind] = self._arrived[fault.kind] = 0
            if isinstance(fault, OverCapacity):
                self._budget, self._budget_s = float(fault.burst), now_s
            elif isinstance(fault, Evict):
                self._hits[fault.kind] = 1
        return released

    def hits(self, kind: str) -> int:
        """The requests (or reports) that the active fault of this kind applied to. KeyError if there is none."""
        return self._hits[kind]

    def report(self) -> list[dict[str, object]]:
        """The active faults as JSON objects, each with ``hits``: the requests (or reports) it applied to."""
        return [{**to_json(fault), "hits": self._hits[kind]} for kind, fault in self._active.items()]

    # -- requests --------------------------------------------------------------------------------------------

    def arrive(self, now_s: float, request_id: int, tokens: int, own: tuple[SelectiveFault, ...] = ()) -> FaultDecision:
        """Decide on a request that arrives now, with ``tokens`` of prompt and output in sum.

        ``own`` are its in-band faults, at most one of each kind. A request that hangs or is to stall is held here until
        ``leave`` or ``change`` releases its id.
        """
        if not self._active and not own:
            return SERVE_NORMALLY
        own_by_kind: dict[str, RequestFault | SelectiveFault] = {fault.kind: fault for fault in own}
        for kind in _IMMEDIATE_KINDS:
            fault = own_by_kind.get(kind) or self._applicable(kind, now_s)
            match fault:
                case FailingStatus():
                    return AnswerStatus(fault.status, fault.retry_after_s)
                case OverCapacity():
                    return AnswerStatus(503, refused=True)
                case QueueFull():
                    return AnswerStatus(503, fault.retry_after_s, refused=True, reason="queue_full")
                case OutOfMemory():
                    return self._run_out_of_memory(fault)
                case Hang() | Zombie():
                    self._held[request_id] = kind, tokens
                    return Hold()
        slow = own_by_kind.get(Slow.kind) or self._applicable(Slow.kind, now_s)
        corruptions: list[Corruption] = []
        cut: RequestFault | None = None
        for kind in (CutOff.kind, *_CORRUPTION_KINDS):
            ended = cut is not None or any(isinstance(each, _ENDING_FAULTS) for each in corruptions)
            if ended and kind in _NEED_THE_END:
                continue
            fault = own_by_kind.get(kind) or self._applicable(kind, now_s)
            if isinstance(fault, CutOff):
                cut = fault
            elif isinstance(fault, CORRUPTIONS):
                corruptions.append(fault)
            if isinstance(fault, Stall):
                self._held[request_id] = kind, 0
        return Serve(
            slow.factor if isinstance(slow, Slow) else 1.0,
            cut.after_tokens if isinstance(cut, CutOff) else None,
            tuple(corruptions),
        )

    def _run_out_of_memory(self, fault: OutOfMemory) -> AnswerStatus:
        if self._dead:
            return AnswerStatus(500, refused=True, reason="engine_dead")
        self._dead = fault.dead
        return AnswerStatus(500, refused=True, reason="out_of_memory", kills=fault.dead)

    def leave(self, request_id: int) -> None:
        """Release a request whose client has left; does nothing for one that is not held."""
        self._held.pop(request_id, None)

    def _applicable(self, kind: str, now_s: float) -> RequestFault | None:
        """The active fault of this kind if it applies to the request that arrives now; counts the hit."""
        fault = self._active.get(kind)
        if fault is None:
            return None
        applies = not self._admits(fault, now_s) if isinstance(fault, OverCapacity) else self._selects(fault)
        if not applies and not (self._dead and kind == OutOfMemory.kind):
            return None
        self._hits[kind] += 1
        return fault

    def _selects(self, fault: RequestFault) -> bool:
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

    def _admits(self, fault: OverCapacity, now_s: float) -> bool:
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
    def metrics_mode(self) -> str:
        """``how`` of the active ``BadMetrics``; "" if there is none."""
        metrics = self._active.get(BadMetrics.kind)
        return metrics.how if isinstance(metrics, BadMetrics) else ""

    def freeze(self, state: State) -> State:
        """Keep the load figures of ``state`` under the faults as the frozen ones; returns them."""
        self._frozen = self._with_held(state)
        return self._frozen

    def hit(self, kind: str) -> bool:
        """Whether the report fault ``kind`` is active; counts the report as a hit."""
        if kind not in self._active:
            return False
        self._hits[kind] += 1
        return True

    def reported_load(self, state: State) -> State:
        """The load figures that the backend reports; ``state`` is the state of its GPU."""
        if self._frozen is not None and self.metrics_mode == "frozen":
            return self._frozen
        return self._with_held(state)

    def reported_state(self, state: State) -> State:
        """The readiness and load that the backend reports under its faults; ``state`` is the state of its GPU."""
        if not self._active and not self._held:
            return state
        ready = not self.hit(NotReady.kind) and state.ready
        return replace(self.reported_load(state), ready=ready and not self._dead)

    def _with_held(self, state: State) -> State:
        """The state with the hanging requests counted as waiting."""
        waiting = [tokens for kind, tokens in self._held.values() if kind != Stall.kind]
        state = replace(
            state,
            queue_depth=state.queue_depth + len(waiting),
            pending_tokens=state.pending_tokens + sum(waiting),
        )
        if Zombie.kind in self._active:
            stuck = state.queue_depth + state.running
            return replace(
                state, queue_depth=stuck, running=0, kv_blocks_used=0, kv_blocks_cached=0, output_tokens_per_s=0.0
            )
        return state
