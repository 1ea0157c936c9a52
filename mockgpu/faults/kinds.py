"""The kinds of request and report faults as values, and their JSON form.

Most kinds are selective. Without selection fields such a fault applies to every request. ``first`` limits it to the
first N requests after it is set, ``every`` to every k-th, ``share`` to a share of them (0 to 1) that depends on
``seed``, the backend's name and the request's position only. ``after`` skips the first N requests beforehand. See
``mockgpu.faults.decisions`` for the effects.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import ClassVar, Literal, TypeAlias

from mockgpu.api.wire import shown

MAX_SLOWNESS = 1_000_000
MAX_GAP_S = 3_600
MAX_LENGTH_ERROR_BYTES = 1_000_000_000


class FaultError(ValueError):
    """An invalid fault; the text is one line with the value and what was expected."""


def _check(kind: str, field: str, value: object, expected: str, valid: bool) -> None:
    if not valid:
        raise FaultError(f"fault {kind}: {field} is {shown(value)}, expected {expected}")


def _whole(value: object) -> bool:
    return type(value) is int and value >= 0


def _number(value: object) -> bool:
    """Whether ``value`` is a finite number, at least 0 and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectiveFault:
    """A fault that may apply to some of the requests only; at most one of ``first``, ``every`` and ``share`` is set."""

    kind: ClassVar[str]

    first: int | None = None
    every: int | None = None
    share: float | None = None
    after: int | None = None
    seed: int = 0

    @property
    def applies_to_all(self) -> bool:
        """Whether it applies to every request."""
        return self.first is None and self.every is None and self.share is None and not self.after

    def _check_selection(self) -> None:
        _check(self.kind, "first", self.first, "a whole number from 0", self.first is None or _whole(self.first))
        every = self.every is None or (_whole(self.every) and self.every > 0)
        _check(self.kind, "every", self.every, "a whole number from 1", every)
        share = self.share is None or (_number(self.share) and self.share <= 1)
        _check(self.kind, "share", self.share, "a number from 0 to 1", share)
        given = [name for name in ("first", "every", "share") if getattr(self, name) is not None]
        if len(given) > 1:
            _check(self.kind, given[1], getattr(self, given[1]), f"none beside {given[0]}", False)
        _check(self.kind, "after", self.after, "a whole number from 0", self.after is None or _whole(self.after))
        _check(self.kind, "seed", self.seed, "a whole number", type(self.seed) is int)


SELECTION_FIELDS = tuple(field.name for field in fields(SelectiveFault))


# --- answered or held immediately -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StatusFault(SelectiveFault):
    """Answers with ``status`` immediately. ``retry_after_s`` is sent in whole seconds, rounded up."""

    kind: ClassVar[str] = "status"

    status: int
    retry_after_s: float | None = None

    def __post_init__(self) -> None:
        self._check_selection()
        code = type(self.status) is int and 400 <= self.status <= 599
        _check(self.kind, "status", self.status, "a status from 400 to 599", code)
        valid = self.retry_after_s is None or _number(self.retry_after_s)
        _check(self.kind, "retry_after_s", self.retry_after_s, "a number from 0", valid)


@dataclass(frozen=True, slots=True)
class CapacityFault:
    """A token bucket of ``burst`` requests, refilled at ``rate_per_s``, initially full; excess requests get 503."""

    kind: ClassVar[str] = "capacity"

    rate_per_s: float
    burst: int

    def __post_init__(self) -> None:
        _check(self.kind, "rate_per_s", self.rate_per_s, "a number from 0", _number(self.rate_per_s))
        _check(self.kind, "burst", self.burst, "a whole number from 1", _whole(self.burst) and self.burst > 0)


@dataclass(frozen=True, slots=True)
class QueueFullFault(SelectiveFault):
    """Refuses with 503 as if the queue were full. Without Retry-After unless given: no known server sends it then."""

    kind: ClassVar[str] = "queue-full"

    retry_after_s: float | None = None

    def __post_init__(self) -> None:
        self._check_selection()
        valid = self.retry_after_s is None or _number(self.retry_after_s)
        _check(self.kind, "retry_after_s", self.retry_after_s, "a number from 0", valid)


@dataclass(frozen=True, slots=True)
class OutOfMemoryFault(SelectiveFault):
    """The GPU runs out of memory: 500 as from vLLM, or 400 as from Triton with KServe's protocol.

    Only the selected requests fail. With ``dead`` the engine dies too: immediately, or, where the fault is selective,
    with the first selected request. Then all requests in flight fail with 500 (a stream that has begun ends with an
    error event), the memory is emptied as by ``evict``, and until the fault is cleared readiness is 503 and every
    request gets 500, as from vLLM after its EngineCore died (vllm-project/vllm#9818, #24897, #42362).
    """

    kind: ClassVar[str] = "out-of-memory"

    dead: bool = False

    def __post_init__(self) -> None:
        self._check_selection()
        _check(self.kind, "dead", self.dead, "true or false", isinstance(self.dead, bool))

    @property
    def kills_at_once(self) -> bool:
        """Whether the engine dies when the fault is set."""
        return self.dead and self.applies_to_all


@dataclass(frozen=True, slots=True)
class HangFault(SelectiveFault):
    """Requests are accepted and never answered; all health routes stay good."""

    kind: ClassVar[str] = "hang"

    def __post_init__(self) -> None:
        self._check_selection()


@dataclass(frozen=True, slots=True)
class ZombieFault(SelectiveFault):
    """As ``hang``, visible in reports: waiting requests, none running, no KV block in use (vllm-project/vllm#39863)."""

    kind: ClassVar[str] = "zombie"

    def __post_init__(self) -> None:
        self._check_selection()


# --- served with a defect -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlowFault(SelectiveFault):
    """Service takes ``factor`` times as long; queueing and loading before it are unchanged."""

    kind: ClassVar[str] = "slow"

    factor: float

    def __post_init__(self) -> None:
        self._check_selection()
        valid = _number(self.factor) and 0 < self.factor <= MAX_SLOWNESS
        _check(self.kind, "factor", self.factor, f"a number above 0, at most {MAX_SLOWNESS}", valid)


@dataclass(frozen=True, slots=True)
class _Ending(SelectiveFault):
    """An answer that stops after ``after_tokens`` tokens, or just before its end if it is shorter.

    An answer that is not streamed stops, when it is ready, after the same share of its body.
    """

    after_tokens: int

    def __post_init__(self) -> None:
        self._check_selection()
        _check(self.kind, "after_tokens", self.after_tokens, "a whole number from 0", _whole(self.after_tokens))


@dataclass(frozen=True, slots=True)
class CutFault(_Ending):
    """The connection is reset after ``after_tokens`` tokens."""

    kind: ClassVar[str] = "cut"


@dataclass(frozen=True, slots=True)
class StallFault(_Ending):
    """Nothing is sent after ``after_tokens`` tokens; the connection stays open."""

    kind: ClassVar[str] = "stall"


@dataclass(frozen=True, slots=True)
class TruncatedFault(_Ending):
    """The answer is too short but correctly framed: a stream ends inside the event after ``after_tokens`` tokens."""

    kind: ClassVar[str] = "truncated"


@dataclass(frozen=True, slots=True)
class StreamErrorFault(_Ending):
    """A stream ends, correctly framed, with an error event after ``after_tokens``: ``{"error": {...}}``, ``[DONE]``.

    vLLM and SGLang report errors like this once the head with 200 is sent. A request that is not streamed is answered
    500 with the same error at the time its answer would have been ready.
    """

    kind: ClassVar[str] = "stream-error"


@dataclass(frozen=True, slots=True)
class DripFault(SelectiveFault):
    """At least ``gap_s`` seconds between two tokens; a body that is not streamed is sent in one part per token."""

    kind: ClassVar[str] = "drip"

    gap_s: float

    def __post_init__(self) -> None:
        self._check_selection()
        valid = _number(self.gap_s) and self.gap_s <= MAX_GAP_S
        _check(self.kind, "gap_s", self.gap_s, f"a number from 0 to {MAX_GAP_S}", valid)


@dataclass(frozen=True, slots=True)
class GarbageFault(SelectiveFault):
    """Noise of the same length replaces the body or every event; status and headers are those of a good answer."""

    kind: ClassVar[str] = "garbage"

    def __post_init__(self) -> None:
        self._check_selection()


@dataclass(frozen=True, slots=True)
class WrongLengthFault(SelectiveFault):
    """The announced length is wrong by ``by`` bytes; the connection is closed after the answer.

    Above 0 the client waits for bytes that never arrive; below 0 surplus bytes follow the announced end. In a stream
    the length of the last chunk is wrong.
    """

    kind: ClassVar[str] = "wrong-length"

    by: int

    def __post_init__(self) -> None:
        self._check_selection()
        most = MAX_LENGTH_ERROR_BYTES
        valid = type(self.by) is int and 0 < abs(self.by) <= most
        _check(self.kind, "by", self.by, f"a whole number from -{most} to {most}, not 0", valid)


# --- reports ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NotReadyFault:
    """The readiness routes answer 503 while requests are served."""

    kind: ClassVar[str] = "not-ready"


@dataclass(frozen=True, slots=True)
class NotAliveFault:
    """The liveness routes answer 503 while requests are served; readiness is unchanged."""

    kind: ClassVar[str] = "not-alive"


@dataclass(frozen=True, slots=True)
class MetricsFault:
    """Load figures on ``/metrics`` and in load reports are unusable: ``garbage``, ``missing`` or ``frozen``.

    The status of ``/health`` still tells the true readiness. Frozen figures are those of the time the fault was set.
    """

    kind: ClassVar[str] = "metrics"

    how: Literal["garbage", "missing", "frozen"]

    def __post_init__(self) -> None:
        valid = self.how in ("garbage", "missing", "frozen")
        _check(self.kind, "how", self.how, "garbage, missing or frozen", valid)


@dataclass(frozen=True, slots=True)
class EvictFault:
    """Acts once, when set: models that are idle and not pinned leave the memory, as by ``/mock/evict``."""

    kind: ClassVar[str] = "evict"


Corruption: TypeAlias = StallFault | TruncatedFault | StreamErrorFault | DripFault | GarbageFault | WrongLengthFault
PerRequestFault: TypeAlias = (
    StatusFault | QueueFullFault | OutOfMemoryFault | HangFault | ZombieFault | SlowFault | CutFault | Corruption
)
Fault: TypeAlias = PerRequestFault | CapacityFault | NotReadyFault | NotAliveFault | MetricsFault | EvictFault
IMMEDIATE: tuple[type[Fault], ...] = (
    StatusFault,
    CapacityFault,
    QueueFullFault,
    OutOfMemoryFault,
    HangFault,
    ZombieFault,
)
CORRUPTIONS: tuple[type[Corruption], ...] = (
    StallFault,
    TruncatedFault,
    StreamErrorFault,
    DripFault,
    GarbageFault,
    WrongLengthFault,
)
KINDS: dict[str, type[Fault]] = {
    kind.kind: kind
    for kind in (*IMMEDIATE, SlowFault, CutFault, *CORRUPTIONS, NotReadyFault, NotAliveFault, MetricsFault, EvictFault)
}


def to_json(fault: Fault) -> dict[str, object]:
    """A fault as a JSON object: its kind, and its fields except those that are None."""
    given = {name: value for name, value in asdict(fault).items() if value is not None}
    return {"kind": fault.kind, **given}


def from_json(data: object) -> Fault:
    """Read a fault from the object that ``to_json`` makes; raises FaultError."""
    if not isinstance(data, Mapping):
        raise FaultError(f"a fault is {shown(data)}, expected an object with a kind: {', '.join(KINDS)}")
    given = dict(data)
    kind = checked_kind(given.pop("kind", None))
    declared = fields(KINDS[kind])
    unknown = sorted(str(name) for name in set(given) - {field.name for field in declared})
    missing = [field.name for field in declared if field.default is MISSING and field.name not in given]
    if unknown or missing:
        problem = f"has no {unknown[0]}" if unknown else f"needs {missing[0]}"
        # The kind's own fields first.
        names = sorted((field.name for field in declared), key=lambda name: name in SELECTION_FIELDS)
        raise FaultError(f"fault {kind} {problem}; its fields: {', '.join(names) or 'none'}")
    return KINDS[kind](**given)


def checked_kind(kind: object) -> str:
    """Return ``kind`` if a fault kind has that name; raises FaultError."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise FaultError(f"unknown fault {shown(kind)}, expected one of: {', '.join(KINDS)}")
    return kind
