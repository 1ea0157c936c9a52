"""Faults of one backend that strike single requests: what becomes of each inference or update that arrives.

There is no clock, socket or chance here: times are arguments, and which requests a share hits follows from a seed
and from their position. So a simulator and a server apply the very same faults.

Rules
-----
- One fault of each kind at a time; setting one again replaces it and begins it anew. Kinds combine.
- A request's lot is drawn when it arrives, in this order: ``status``, then ``capacity``, then ``hang``; what they
  leave is served, with ``slow`` and ``cut`` together where both are set. A request that an earlier fault has
  taken does not count for a later one. What was inside before a fault was set is left alone by it.
- Requests that hang wait outside the GPU: in a report they count as queued, with their tokens, but they take up
  no slot and no place of the queue's limit. When ``hang`` is taken back their connections are reset, as if the
  stuck process had been restarted; they are never answered.
- ``not-ready`` concerns reports only. Liveness stays fine under every fault.
- Faults live in a backend's process: they end when it does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from hashlib import blake2b
from typing import ClassVar, TypeAlias

from mockgpu.events import State


class FaultError(ValueError):
    """A fault that makes no sense; the text is one line that says what was seen and expected."""


def _check(kind: str, field: str, value: object, expected: str, fine: bool) -> None:
    if not fine:
        raise FaultError(f"fault {kind}: {field} is {value!r}, expected {expected}")


def _whole(value: object) -> bool:
    return type(value) is int and value >= 0


def _number(value: object) -> bool:
    """Whether it is a finite number from 0; a bool is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


@dataclass(frozen=True, slots=True)
class Status:
    """Answers with ``status`` at once: all requests, the ``first`` ones, or a ``share`` of them (0 to 1).

    Whether a request belongs to the share depends on nothing but ``seed``, the backend's name and how many arrived
    before it since the fault was set. ``retry_after_s`` is sent in whole seconds, rounded up.
    """

    kind: ClassVar[str] = "status"

    status: int
    first: int | None = None
    share: float | None = None
    retry_after_s: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        code = type(self.status) is int and 400 <= self.status <= 599
        _check(self.kind, "status", self.status, "a status from 400 to 599", code)
        _check(self.kind, "first", self.first, "a whole number from 0", self.first is None or _whole(self.first))
        share = self.share is None or (_number(self.share) and self.share <= 1)
        _check(self.kind, "share", self.share, "a number from 0 to 1", share)
        _check(self.kind, "share", self.share, "none beside first", self.first is None or self.share is None)
        later = self.retry_after_s is None or _number(self.retry_after_s)
        _check(self.kind, "retry_after_s", self.retry_after_s, "a number from 0", later)
        _check(self.kind, "seed", self.seed, "a whole number", type(self.seed) is int)


@dataclass(frozen=True, slots=True)
class Capacity:
    """A token bucket, full when set, that holds ``burst`` requests and gains ``rate_per_s``; the rest gets 503."""

    kind: ClassVar[str] = "capacity"

    rate_per_s: float
    burst: int

    def __post_init__(self) -> None:
        _check(self.kind, "rate_per_s", self.rate_per_s, "a number from 0", _number(self.rate_per_s))
        _check(self.kind, "burst", self.burst, "a whole number from 1", _whole(self.burst) and self.burst > 0)


@dataclass(frozen=True, slots=True)
class Slow:
    """Service takes ``factor`` times as long, without the waiting and the loading before it."""

    kind: ClassVar[str] = "slow"

    factor: float

    def __post_init__(self) -> None:
        fine = _number(self.factor) and self.factor > 0
        _check(self.kind, "factor", self.factor, "a number above 0", fine)


@dataclass(frozen=True, slots=True)
class Hang:
    """Requests are accepted and never answered while all health routes stay fine, as in vllm-project/vllm#39863."""

    kind: ClassVar[str] = "hang"


@dataclass(frozen=True, slots=True)
class Cut:
    """The answer breaks off after ``after_tokens`` tokens, at the latest just before its end; then comes a reset.

    An answer that is not streamed is cut when it is ready, after the same share of its body.
    """

    kind: ClassVar[str] = "cut"

    after_tokens: int

    def __post_init__(self) -> None:
        _check(self.kind, "after_tokens", self.after_tokens, "a whole number from 0", _whole(self.after_tokens))


@dataclass(frozen=True, slots=True)
class NotReady:
    """The readiness routes answer 503 though requests are served."""

    kind: ClassVar[str] = "not-ready"


Fault: TypeAlias = Status | Capacity | Slow | Hang | Cut | NotReady
KINDS: dict[str, type[Fault]] = {kind.kind: kind for kind in (Status, Capacity, Slow, Hang, Cut, NotReady)}


def to_json(fault: Fault) -> dict[str, object]:
    """A fault as a JSON object: its kind, and its fields but for those that are None."""
    given = {name: value for name, value in asdict(fault).items() if value is not None}
    return {"kind": fault.kind, **given}


def from_json(data: object) -> Fault:
    """Undo ``to_json``; raises FaultError."""
    if not isinstance(data, Mapping):
        raise FaultError(f"a fault is {data!r}, expected an object with a kind: {', '.join(KINDS)}")
    given = dict(data)
    kind = _known(given.pop("kind", None))
    known = fields(KINDS[kind])
    unknown = sorted(str(name) for name in set(given) - {field.name for field in known})
    missing = [field.name for field in known if field.default is MISSING and field.name not in given]
    if unknown or missing:
        what = f"has no {unknown[0]}" if unknown else f"needs {missing[0]}"
        raise FaultError(f"fault {kind} {what}; its fields: {', '.join(field.name for field in known) or 'none'}")
    return KINDS[kind](**given)


def _known(kind: object) -> str:
    if not isinstance(kind, str) or kind not in KINDS:
        raise FaultError(f"no fault {kind!r}; there are: {', '.join(KINDS)}")
    return kind


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
            raise FaultError(f"a change of faults has no {unknown[0]!r}, expected set or clear")
        faults, kinds = data.get("set", []), data.get("clear", [])
        if not isinstance(faults, list):
            raise FaultError(f"set is {faults!r}, expected a list of faults; kinds: {', '.join(KINDS)}")
        if kinds == "all":
            kinds = list(KINDS)
        if not isinstance(kinds, list):
            raise FaultError(f'clear is {kinds!r}, expected "all" or a list of: {", ".join(KINDS)}')
        return cls(tuple(from_json(fault) for fault in faults), frozenset(_known(kind) for kind in kinds))

    def to_json(self) -> dict[str, object]:
        """Undo ``from_json``."""
        return {"set": [to_json(fault) for fault in self.set], "clear": sorted(self.clear)}


@dataclass(frozen=True, slots=True)
class Answer:
    """The request is answered with ``status`` at once. ``refused``: for want of capacity."""

    status: int
    retry_after_s: float | None = None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """The request is held without an answer until its client leaves or ``change`` names it."""


@dataclass(frozen=True, slots=True)
class Serve:
    """The request is served, ``slowness`` times as long; its answer breaks off ``cut_after_tokens`` (None: never)."""

    slowness: float = 1.0
    cut_after_tokens: int | None = None


Lot: TypeAlias = Answer | Hold | Serve
AS_EVER = Serve()


class RequestFaults:
    """The faults of the backend called ``name``, how many requests each has hit, and which of them still hang."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._active: dict[str, Fault] = {}
        self._hits: dict[str, int] = {}
        self._arrived = 0  # requests since the status fault was set
        self._budget = 0.0  # of the capacity fault, in requests, as of _budget_s
        self._budget_s = 0.0
        self._hanging: dict[int, int] = {}  # tokens by request id

    # -- control ---------------------------------------------------------------------------------------------

    def change(self, now_s: float, change: Change) -> tuple[int, ...]:
        """Clear, then set. Returns ids of hanging requests whose connections must be reset now."""
        released: tuple[int, ...] = ()
        for kind in change.clear:
            self._active.pop(kind, None)
            self._hits.pop(kind, None)
        if Hang.kind in change.clear:
            released = tuple(self._hanging)
            self._hanging.clear()
        for fault in change.set:
            self._active[fault.kind] = fault
            self._hits[fault.kind] = 0
            match fault:
                case Status():
                    self._arrived = 0
                case Capacity():
                    self._budget, self._budget_s = float(fault.burst), now_s
                case Slow() | Hang() | Cut() | NotReady():
                    pass
        return released

    def report(self) -> list[dict[str, object]]:
        """The active faults as JSON objects, each with ``hits``: how many requests (or reports) it has struck."""
        return [{**to_json(fault), "hits": self._hits[kind]} for kind, fault in self._active.items()]

    # -- requests --------------------------------------------------------------------------------------------

    def arrive(self, now_s: float, request_id: int, tokens: int) -> Lot:
        """What becomes of a request that arrives now, with ``tokens`` of prompt and output.

        One that hangs keeps its id here until ``leave`` or ``change`` frees it.
        """
        if not self._active:
            return AS_EVER
        status = self._active.get(Status.kind)
        if isinstance(status, Status) and self._fails(status):
            self._hits[Status.kind] += 1
            return Answer(status.status, status.retry_after_s)
        capacity = self._active.get(Capacity.kind)
        if isinstance(capacity, Capacity) and not self._admits(capacity, now_s):
            self._hits[Capacity.kind] += 1
            return Answer(503, refused=True)
        if Hang.kind in self._active:
            self._hits[Hang.kind] += 1
            self._hanging[request_id] = tokens
            return Hold()
        slow, cut = self._active.get(Slow.kind), self._active.get(Cut.kind)
        for kind in (Slow.kind, Cut.kind):
            if kind in self._active:
                self._hits[kind] += 1
        return Serve(
            slow.factor if isinstance(slow, Slow) else 1.0,
            cut.after_tokens if isinstance(cut, Cut) else None,
        )

    def leave(self, request_id: int) -> None:
        """The client of a request has gone; does nothing for one that does not hang."""
        self._hanging.pop(request_id, None)

    def _fails(self, fault: Status) -> bool:
        position = self._arrived
        self._arrived += 1
        if fault.first is not None:
            return position < fault.first
        if fault.share is not None:
            text = f"{self._name}/{fault.seed}/{position}"
            drawn = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
            return drawn < fault.share * 2**64
        return True

    def _admits(self, fault: Capacity, now_s: float) -> bool:
        passed_s = max(0.0, now_s - self._budget_s)
        self._budget = min(float(fault.burst), self._budget + passed_s * fault.rate_per_s)
        self._budget_s = max(now_s, self._budget_s)
        if self._budget < 1.0:
            return False
        self._budget -= 1.0
        return True

    # -- reports ---------------------------------------------------------------------------------------------

    def seen_in(self, state: State) -> State:
        """What the backend reports of itself under its faults, where ``state`` is what its GPU says."""
        if not self._active and not self._hanging:
            return state
        ready = state.ready
        if NotReady.kind in self._active:
            self._hits[NotReady.kind] += 1
            ready = False
        return replace(
            state,
            ready=ready,
            queue_depth=state.queue_depth + len(self._hanging),
            pending_tokens=state.pending_tokens + sum(self._hanging.values()),
        )
