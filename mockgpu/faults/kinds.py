"""Faults of single requests of a backend, or of its status reports, as values. Pure.

A scenario declares them as steps: ``backend``, ``at_s`` and ``for_s`` say where and when, in seconds of the run; a
fault without ``for_s`` lasts until the run ends. A server sets them for itself, at once; their JSON form
(``mockgpu.faults.json_form``) has neither place nor time. ``mockgpu.faults.decisions`` has the rules: at most one fault
of each kind on a backend, lost with its process.

Most kinds are selective. Without selection fields such a fault applies to every request. ``first`` limits it to the
first N requests after it is set, ``every`` to every k-th, ``share`` to a share of them (0 to 1) that depends on
``seed``, the backend's name and the request's position only. ``after`` skips the first N requests beforehand. In a run
the run's seed replaces ``seed``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

from mockgpu.api.text import shown

MAX_SLOWNESS = 1_000_000
MAX_GAP_S = 3_600
MAX_LENGTH_ERROR_BYTES = 1_000_000_000

STEP_FIELDS = ("backend", "at_s", "for_s")
"""Fields of a scenario's step; the JSON form is without them."""

LATER: Mapping[str, Any] = MappingProxyType({"omit_default": True})
"""Metadata of a field that was added later: a scenario's canonical form omits its default, so digests stay equal."""


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


@dataclass(frozen=True, slots=True)
class SelectiveFault:
    """A fault that may apply to some of the requests only; at most one of ``first``, ``every`` and ``share`` is set."""

    kind: ClassVar[str]

    backend: str
    at_s: float
    first: int | None = field(default=None, kw_only=True, metadata=LATER)
    every: int | None = field(default=None, kw_only=True, metadata=LATER)
    share: float | None = field(default=None, kw_only=True, metadata=LATER)
    after: int | None = field(default=None, kw_only=True, metadata=LATER)
    seed: int = field(default=0, kw_only=True, metadata=LATER)

    @property
    def applies_to_all(self) -> bool:
        """Whether it applies to every request."""
        return self.first is None and self.every is None and self.share is None and not self.after

    def __post_init__(self) -> None:
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
        self._check_fields()

    def _check_fields(self) -> None:
        """Raise FaultError if a field of the kind's own is invalid."""


SELECTION_FIELDS = tuple(item.name for item in fields(SelectiveFault) if item.name not in STEP_FIELDS)


@dataclass(frozen=True, slots=True)
class _Failure(SelectiveFault):
    """An answer with an error. Scenarios had ``first`` and ``share`` of these kinds from the beginning."""

    first: int | None = field(default=None, kw_only=True)
    share: float | None = field(default=None, kw_only=True)


# --- answered or held immediately -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FailingStatus(_Failure):
    """A backend answers with ``status`` (400 to 599) immediately.

    ``retry_after_s`` is sent in whole seconds, rounded up.
    """

    kind: ClassVar[str] = "status"

    status: int
    retry_after_s: float | None = None
    for_s: float | None = None

    def _check_fields(self) -> None:
        code = type(self.status) is int and 400 <= self.status <= 599
        _check(self.kind, "status", self.status, "a status from 400 to 599", code)
        valid = self.retry_after_s is None or _number(self.retry_after_s)
        _check(self.kind, "retry_after_s", self.retry_after_s, "a number from 0", valid)


@dataclass(frozen=True, slots=True)
class OverCapacity:
    """A token bucket (``rate_per_s``, ``burst``, initially full) admits requests; the others get 503 immediately."""

    kind: ClassVar[str] = "capacity"

    backend: str
    at_s: float
    rate_per_s: float
    burst: int = 1
    for_s: float | None = None

    def __post_init__(self) -> None:
        _check(self.kind, "rate_per_s", self.rate_per_s, "a number from 0", _number(self.rate_per_s))
        _check(self.kind, "burst", self.burst, "a whole number from 1", _whole(self.burst) and self.burst > 0)


@dataclass(frozen=True, slots=True)
class QueueFull(_Failure):
    """Requests that arrive get 503 as from a full queue.

    Without Retry-After unless ``retry_after_s`` is given: no known server sends it then.
    """

    kind: ClassVar[str] = "queue-full"

    retry_after_s: float | None = None
    for_s: float | None = None

    def _check_fields(self) -> None:
        valid = self.retry_after_s is None or _number(self.retry_after_s)
        _check(self.kind, "retry_after_s", self.retry_after_s, "a number from 0", valid)


@dataclass(frozen=True, slots=True)
class OutOfMemory(_Failure):
    """The GPU runs out of memory: 500 as from vLLM, or 400 as from Triton with KServe's protocol.

    Only the selected requests fail. With ``dead`` the engine dies too: immediately, or, where the fault is selective,
    with the first selected request. Then all requests in flight fail with 500 (a stream that has begun ends with an
    error event), the memory is emptied as by ``evict``, and until the fault is cleared readiness is 503 and every
    request gets 500, as from vLLM after its EngineCore died (vllm-project/vllm#9818, #24897, #42362).
    """

    kind: ClassVar[str] = "out-of-memory"

    dead: bool = False
    for_s: float | None = None

    def _check_fields(self) -> None:
        _check(self.kind, "dead", self.dead, "true or false", isinstance(self.dead, bool))

    @property
    def kills_at_once(self) -> bool:
        """Whether the engine dies when the fault is set."""
        return self.dead and self.applies_to_all


@dataclass(frozen=True, slots=True)
class Hang(SelectiveFault):
    """Requests that arrive are never answered; all health routes stay good. Healing resets their connections."""

    kind: ClassVar[str] = "hang"

    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Zombie(SelectiveFault):
    """Like ``Hang``, but visible in the load report: requests wait, none runs.

    No KV block is in use either (vllm-project/vllm#39863).
    """

    kind: ClassVar[str] = "zombie"

    for_s: float | None = None


# --- served with a defect -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slow(SelectiveFault):
    """The service of requests takes ``factor`` times as long; queueing and loading before it are unchanged."""

    kind: ClassVar[str] = "slow"

    factor: float
    for_s: float | None = None

    def _check_fields(self) -> None:
        valid = _number(self.factor) and 0 < self.factor <= MAX_SLOWNESS
        _check(self.kind, "factor", self.factor, f"a number above 0, at most {MAX_SLOWNESS}", valid)


@dataclass(frozen=True, slots=True)
class _Ending(SelectiveFault):
    """An answer that stops after ``after_tokens`` tokens, or just before its end if it is shorter.

    An answer that is not streamed stops, when it is ready, after the same share of its body.
    """

    after_tokens: int = 1
    for_s: float | None = None

    def _check_fields(self) -> None:
        _check(self.kind, "after_tokens", self.after_tokens, "a whole number from 0", _whole(self.after_tokens))


@dataclass(frozen=True, slots=True)
class CutOff(_Ending):
    """Connections are reset after ``after_tokens`` tokens of an answer, at the latest before its last byte."""

    kind: ClassVar[str] = "cut"


@dataclass(frozen=True, slots=True)
class Stall(_Ending):
    """Answers stop after ``after_tokens`` tokens while their connections stay open."""

    kind: ClassVar[str] = "stall"


@dataclass(frozen=True, slots=True)
class Truncated(_Ending):
    """Answers are correctly framed but end after ``after_tokens`` tokens, a stream inside the event that follows."""

    kind: ClassVar[str] = "truncated"


@dataclass(frozen=True, slots=True)
class StreamError(_Ending):
    """Streams end with an error event after ``after_tokens`` tokens; other answers become 500 when they are due.

    The stream is correctly framed and ends with ``{"error": {...}}`` and ``[DONE]``: vLLM and SGLang report errors like
    this once the head with 200 is sent.
    """

    kind: ClassVar[str] = "stream-error"


@dataclass(frozen=True, slots=True)
class Drip(SelectiveFault):
    """Tokens of answers are sent at least ``gap_s`` apart; a body that is not streamed has one part per token."""

    kind: ClassVar[str] = "drip"

    gap_s: float
    for_s: float | None = None

    def _check_fields(self) -> None:
        valid = _number(self.gap_s) and self.gap_s <= MAX_GAP_S
        _check(self.kind, "gap_s", self.gap_s, f"a number from 0 to {MAX_GAP_S}", valid)


@dataclass(frozen=True, slots=True)
class Garbage(SelectiveFault):
    """Bodies, or events of a stream, are noise of the same length, with the status and headers of a good answer."""

    kind: ClassVar[str] = "garbage"

    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class WrongLength(SelectiveFault):
    """The announced length of an answer is wrong by ``by`` bytes (not 0); its connection is closed afterwards.

    Above 0 the client waits for bytes that never arrive; below 0 surplus bytes follow the announced end. In a stream
    the length of the last chunk is wrong.
    """

    kind: ClassVar[str] = "wrong-length"

    by: int
    for_s: float | None = None

    def _check_fields(self) -> None:
        most = MAX_LENGTH_ERROR_BYTES
        valid = type(self.by) is int and 0 < abs(self.by) <= most
        _check(self.kind, "by", self.by, f"a whole number from -{most} to {most}, not 0", valid)


# --- reports ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NotReady:
    """A backend reports that it is not ready (503) but still serves requests."""

    kind: ClassVar[str] = "not-ready"

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class NotAlive:
    """A backend reports that it is not alive (503 on liveness) but is ready and serves requests."""

    kind: ClassVar[str] = "not-alive"

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class BadMetrics:
    """A backend's load figures are unusable: ``how`` is garbage, missing or frozen.

    They are those on ``/metrics`` and in load reports. The status of ``/health`` still tells the true readiness. Frozen
    figures are those of the time the fault was set.
    """

    kind: ClassVar[str] = "metrics"

    backend: str
    at_s: float
    how: str
    for_s: float | None = None

    def __post_init__(self) -> None:
        valid = self.how in ("garbage", "missing", "frozen")
        _check(self.kind, "how", self.how, "garbage, missing or frozen", valid)


@dataclass(frozen=True, slots=True)
class Evict:
    """One-time: idle, unpinned models are evicted from a backend's GPU memory. There is nothing to heal."""

    kind: ClassVar[str] = "evict"

    backend: str
    at_s: float


Corruption: TypeAlias = Stall | Truncated | StreamError | Drip | Garbage | WrongLength
PerRequestFault: TypeAlias = FailingStatus | QueueFull | OutOfMemory | Hang | Zombie | Slow | CutOff | Corruption
RequestFault: TypeAlias = PerRequestFault | OverCapacity | NotReady | NotAlive | BadMetrics | Evict
IMMEDIATE: tuple[type[RequestFault], ...] = (FailingStatus, OverCapacity, QueueFull, OutOfMemory, Hang, Zombie)
CORRUPTIONS: tuple[type[Corruption], ...] = (Stall, Truncated, StreamError, Drip, Garbage, WrongLength)
KINDS: dict[str, type[RequestFault]] = {
    kind.kind: kind for kind in (*IMMEDIATE, Slow, CutOff, *CORRUPTIONS, NotReady, NotAlive, BadMetrics, Evict)
}


def seeded(fault: RequestFault, seed: int) -> RequestFault:
    """The fault with ``seed``, where it has one: the seed decides which requests a share affects."""
    return replace(fault, seed=seed) if isinstance(fault, SelectiveFault) else fault
