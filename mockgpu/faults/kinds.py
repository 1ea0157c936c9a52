"""The kinds of faults that strike single requests and reports, as values, and their form in JSON.

Most kinds are aimed: without a word they strike every request; ``first`` strikes the next so many from when the fault
is set, ``every`` every so manieth of them, ``share`` a share of them (0 to 1) that follows from ``seed``, the backend's
name and the position alone. ``after`` lets so many pass before that. See ``mockgpu.faults.decisions`` for what comes
of them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import ClassVar, Literal, TypeAlias

from mockgpu.api.wire import shown

MOST_SLOW = 1_000_000
LONGEST_GAP_S = 3_600
MOST_OFF_BYTES = 1_000_000_000


class FaultError(ValueError):
    """A fault that makes no sense; the text is one line that says what was seen and expected."""


def _check(kind: str, field: str, value: object, expected: str, fine: bool) -> None:
    if not fine:
        raise FaultError(f"fault {kind}: {field} is {shown(value)}, expected {expected}")


def _whole(value: object) -> bool:
    return type(value) is int and value >= 0


def _number(value: object) -> bool:
    """Whether it is a finite number from 0; a bool is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectiveFault:
    """A fault that can be aimed at some of the requests that arrive while it is set; at most one of the first three."""

    kind: ClassVar[str]

    first: int | None = None
    every: int | None = None
    share: float | None = None
    after: int | None = None
    seed: int = 0

    @property
    def at_all(self) -> bool:
        """Whether it strikes each and every request."""
        return self.first is None and self.every is None and self.share is None and not self.after

    def _check_aim(self) -> None:
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


AIM = tuple(field.name for field in fields(SelectiveFault))


# --- answered or held at once -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StatusFault(SelectiveFault):
    """Answers with ``status`` at once. ``retry_after_s`` is sent in whole seconds, rounded up."""

    kind: ClassVar[str] = "status"

    status: int
    retry_after_s: float | None = None

    def __post_init__(self) -> None:
        self._check_aim()
        code = type(self.status) is int and 400 <= self.status <= 599
        _check(self.kind, "status", self.status, "a status from 400 to 599", code)
        later = self.retry_after_s is None or _number(self.retry_after_s)
        _check(self.kind, "retry_after_s", self.retry_after_s, "a number from 0", later)


@dataclass(frozen=True, slots=True)
class CapacityFault:
    """A token bucket, full when set, that holds ``burst`` requests and gains ``rate_per_s``; the rest gets 503."""

    kind: ClassVar[str] = "capacity"

    rate_per_s: float
    burst: int

    def __post_init__(self) -> None:
        _check(self.kind, "rate_per_s", self.rate_per_s, "a number from 0", _number(self.rate_per_s))
        _check(self.kind, "burst", self.burst, "a whole number from 1", _whole(self.burst) and self.burst > 0)


@dataclass(frozen=True, slots=True)
class QueueFullFault(SelectiveFault):
    """Refuses with 503 as when the queue is full. No server seen sends Retry-After with that: off unless given."""

    kind: ClassVar[str] = "queue-full"

    retry_after_s: float | None = None

    def __post_init__(self) -> None:
        self._check_aim()
        later = self.retry_after_s is None or _number(self.retry_after_s)
        _check(self.kind, "retry_after_s", self.retry_after_s, "a number from 0", later)


@dataclass(frozen=True, slots=True)
class OutOfMemoryFault(SelectiveFault):
    """The GPU's memory runs out: 500 as from vLLM, or by KServe's protocol 400 as from Triton.

    Only the requests that it strikes fail. ``dead``: the engine dies of it, at once, or, where it is aimed, with the
    first request that it strikes. Then all that is inside fails with 500 (a stream that has begun by an error event),
    the memory is emptied as by ``evict``, and until the fault is taken back readiness is 503 and whatever comes gets
    500, as from vLLM when its EngineCore is gone (vllm-project/vllm#9818, #24897, #42362).
    """

    kind: ClassVar[str] = "out-of-memory"

    dead: bool = False

    def __post_init__(self) -> None:
        self._check_aim()
        _check(self.kind, "dead", self.dead, "true or false", isinstance(self.dead, bool))

    @property
    def kills_at_once(self) -> bool:
        """Whether the engine dies when this is set."""
        return self.dead and self.at_all


@dataclass(frozen=True, slots=True)
class HangFault(SelectiveFault):
    """Requests are accepted and never answered while all health routes stay fine."""

    kind: ClassVar[str] = "hang"

    def __post_init__(self) -> None:
        self._check_aim()


@dataclass(frozen=True, slots=True)
class ZombieFault(SelectiveFault):
    """As ``hang``, and reports show it: some wait, none runs, no KV block is in use, as in vllm-project/vllm#39863."""

    kind: ClassVar[str] = "zombie"

    def __post_init__(self) -> None:
        self._check_aim()


# --- served, but badly --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlowFault(SelectiveFault):
    """Service takes ``factor`` times as long, without the waiting and the loading before it."""

    kind: ClassVar[str] = "slow"

    factor: float

    def __post_init__(self) -> None:
        self._check_aim()
        fine = _number(self.factor) and 0 < self.factor <= MOST_SLOW
        _check(self.kind, "factor", self.factor, f"a number above 0, at most {MOST_SLOW}", fine)


@dataclass(frozen=True, slots=True)
class _Ending(SelectiveFault):
    """An answer that goes no further than ``after_tokens`` tokens, at the latest to just before its end.

    One that is not streamed goes, when it is ready, as far as the same share of its body.
    """

    after_tokens: int

    def __post_init__(self) -> None:
        self._check_aim()
        _check(self.kind, "after_tokens", self.after_tokens, "a whole number from 0", _whole(self.after_tokens))


@dataclass(frozen=True, slots=True)
class CutFault(_Ending):
    """The answer breaks off after ``after_tokens`` tokens by a reset of its connection."""

    kind: ClassVar[str] = "cut"


@dataclass(frozen=True, slots=True)
class StallFault(_Ending):
    """The answer falls silent after ``after_tokens`` tokens; its connection stays open."""

    kind: ClassVar[str] = "stall"


@dataclass(frozen=True, slots=True)
class TruncatedFault(_Ending):
    """The answer is shorter than it should be, but well framed: a stream ends inside its next event."""

    kind: ClassVar[str] = "truncated"


@dataclass(frozen=True, slots=True)
class StreamErrorFault(_Ending):
    """A stream ends, well framed, by an error event after ``after_tokens`` tokens: ``{"error": {...}}``, ``[DONE]``.

    So vLLM and SGLang tell what goes wrong once the head with 200 is out. What is not streamed is answered 500 with
    the same error when it would have been ready.
    """

    kind: ClassVar[str] = "stream-error"


@dataclass(frozen=True, slots=True)
class DripFault(SelectiveFault):
    """Tokens go out with at least ``gap_s`` between two of them; a body that is not streamed goes in as many parts."""

    kind: ClassVar[str] = "drip"

    gap_s: float

    def __post_init__(self) -> None:
        self._check_aim()
        fine = _number(self.gap_s) and self.gap_s <= LONGEST_GAP_S
        _check(self.kind, "gap_s", self.gap_s, f"a number from 0 to {LONGEST_GAP_S}", fine)


@dataclass(frozen=True, slots=True)
class GarbageFault(SelectiveFault):
    """The body, or every event, is noise of the same length with the status and the headers of a good answer."""

    kind: ClassVar[str] = "garbage"

    def __post_init__(self) -> None:
        self._check_aim()


@dataclass(frozen=True, slots=True)
class WrongLengthFault(SelectiveFault):
    """The length that is announced is ``by`` bytes off; then the connection is closed.

    Above 0 the client waits for bytes that never come; below 0 the answer looks ended and more follows it. Of a stream
    it is the length of the last chunk.
    """

    kind: ClassVar[str] = "wrong-length"

    by: int

    def __post_init__(self) -> None:
        self._check_aim()
        fine = type(self.by) is int and 0 < abs(self.by) <= MOST_OFF_BYTES
        _check(self.kind, "by", self.by, f"a whole number from -{MOST_OFF_BYTES} to {MOST_OFF_BYTES}, not 0", fine)


# --- reports ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NotReadyFault:
    """The readiness routes answer 503 though requests are served."""

    kind: ClassVar[str] = "not-ready"


@dataclass(frozen=True, slots=True)
class NotAliveFault:
    """The liveness routes answer 503 though requests are served; readiness stays as it is."""

    kind: ClassVar[str] = "not-alive"


@dataclass(frozen=True, slots=True)
class MetricsFault:
    """Load figures can't be had, on ``/metrics`` and in load reports: ``garbage``, ``missing`` or ``frozen``.

    The status of ``/health`` says truly whether it is ready; frozen figures are those of when the fault was set.
    """

    kind: ClassVar[str] = "metrics"

    how: Literal["garbage", "missing", "frozen"]

    def __post_init__(self) -> None:
        fine = self.how in ("garbage", "missing", "frozen")
        _check(self.kind, "how", self.how, "garbage, missing or frozen", fine)


@dataclass(frozen=True, slots=True)
class EvictFault:
    """Once, when it is set: all that is idle and not pinned leaves the memory, as by ``/mock/evict``."""

    kind: ClassVar[str] = "evict"


Held: TypeAlias = HangFault | ZombieFault
Spoil: TypeAlias = StallFault | TruncatedFault | StreamErrorFault | DripFault | GarbageFault | WrongLengthFault
Single: TypeAlias = StatusFault | QueueFullFault | OutOfMemoryFault | Held | SlowFault | CutFault | Spoil
Fault: TypeAlias = Single | CapacityFault | NotReadyFault | NotAliveFault | MetricsFault | EvictFault
AT_ONCE: tuple[type[Fault], ...] = (
    StatusFault,
    CapacityFault,
    QueueFullFault,
    OutOfMemoryFault,
    HangFault,
    ZombieFault,
)
SPOILS: tuple[type[Spoil], ...] = (
    StallFault,
    TruncatedFault,
    StreamErrorFault,
    DripFault,
    GarbageFault,
    WrongLengthFault,
)
KINDS: dict[str, type[Fault]] = {
    kind.kind: kind
    for kind in (*AT_ONCE, SlowFault, CutFault, *SPOILS, NotReadyFault, NotAliveFault, MetricsFault, EvictFault)
}


def to_json(fault: Fault) -> dict[str, object]:
    """A fault as a JSON object: its kind, and its fields but for those that are None."""
    given = {name: value for name, value in asdict(fault).items() if value is not None}
    return {"kind": fault.kind, **given}


def from_json(data: object) -> Fault:
    """Undo ``to_json``; raises FaultError."""
    if not isinstance(data, Mapping):
        raise FaultError(f"a fault is {shown(data)}, expected an object with a kind: {', '.join(KINDS)}")
    given = dict(data)
    kind = known(given.pop("kind", None))
    its = fields(KINDS[kind])
    unknown = sorted(str(name) for name in set(given) - {field.name for field in its})
    missing = [field.name for field in its if field.default is MISSING and field.name not in given]
    if unknown or missing:
        what = f"has no {unknown[0]}" if unknown else f"needs {missing[0]}"
        names = sorted((field.name for field in its), key=lambda name: name in AIM)  # its own before those of all
        raise FaultError(f"fault {kind} {what}; its fields: {', '.join(names) or 'none'}")
    return KINDS[kind](**given)


def known(kind: object) -> str:
    """The kind, if there is such a one; raises FaultError."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise FaultError(f"no fault {shown(kind)}; there are: {', '.join(KINDS)}")
    return kind
