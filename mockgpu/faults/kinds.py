"""Faults of single requests of a backend, or of its status reports, as values. Pure.

A scenario declares them as steps: ``backend``, ``at_s`` and ``for_s`` say where and when, in seconds of the run; a
fault without ``for_s`` lasts until the run ends. A server sets them for itself, at once; their JSON form
(``mockgpu.faults.json_form``) has neither place nor time. ``mockgpu.faults.decisions`` has the rules: at most one fault
of each kind on a backend, lost with its process.

A kind has ``drawn`` if random fault plans have it. Kinds without it corrupt the text of a whole answer: it could not be
matched to its request, whatever the balancer did.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self, TypeAlias

from mockgpu.faults.report_kinds import BadMetrics, Evict, NotAlive, NotReady
from mockgpu.faults.selection import Draws, SelectiveFault, check, number, whole

__all__ = [
    "BadMetrics",
    "CutOff",
    "Draws",
    "Drip",
    "Evict",
    "FailingStatus",
    "Garbage",
    "Hang",
    "NotAlive",
    "NotReady",
    "OutOfMemory",
    "OverCapacity",
    "QueueFull",
    "RequestFault",
    "Slow",
    "Stall",
    "StreamError",
    "Truncated",
    "WrongLength",
    "Zombie",
]
"""What a scenario declares faults with; ``harness.scenario.faults`` passes it on."""

MAX_SLOWNESS = 1_000_000
MAX_GAP_S = 3_600
MAX_LENGTH_ERROR_BYTES = 1_000_000_000


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
        check(self.kind, "status", self.status, "a status from 400 to 599", code)
        valid = self.retry_after_s is None or number(self.retry_after_s)
        check(self.kind, "retry_after_s", self.retry_after_s, "a number from 0", valid)

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        share = random.choice((None, 0.1, 0.3, 0.6))
        return cls(backend, at_s, random.choice((429, 500, 502, 503, 504)), share=share, for_s=for_s)


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
        check(self.kind, "rate_per_s", self.rate_per_s, "a number from 0", number(self.rate_per_s))
        check(self.kind, "burst", self.burst, "a whole number from 1", whole(self.burst) and self.burst > 0)

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, random.log_uniform(1, 20), for_s=for_s)


@dataclass(frozen=True, slots=True)
class QueueFull(_Failure):
    """Requests that arrive get 503 as from a full queue.

    Without Retry-After unless ``retry_after_s`` is given: no known server sends it then.
    """

    kind: ClassVar[str] = "queue-full"

    retry_after_s: float | None = None
    for_s: float | None = None

    def _check_fields(self) -> None:
        valid = self.retry_after_s is None or number(self.retry_after_s)
        check(self.kind, "retry_after_s", self.retry_after_s, "a number from 0", valid)

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, share=random.choice((None, 0.3)), for_s=for_s)


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
        check(self.kind, "dead", self.dead, "true or false", isinstance(self.dead, bool))

    @property
    def kills_at_once(self) -> bool:
        """Whether the engine dies when the fault is set."""
        return self.dead and self.applies_to_all

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, share=0.5, dead=random.random() < 0.5, for_s=for_s)


@dataclass(frozen=True, slots=True)
class Hang(SelectiveFault):
    """Requests that arrive are never answered; all health routes stay good. Healing resets their connections."""

    kind: ClassVar[str] = "hang"

    for_s: float | None = None

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, for_s)


@dataclass(frozen=True, slots=True)
class Zombie(SelectiveFault):
    """Like ``Hang``, but visible in the load report: requests wait, none runs.

    No KV block is in use either (vllm-project/vllm#39863).
    """

    kind: ClassVar[str] = "zombie"

    for_s: float | None = None

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, for_s)


# --- served with a defect -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slow(SelectiveFault):
    """The service of requests takes ``factor`` times as long; queueing and loading before it are unchanged."""

    kind: ClassVar[str] = "slow"

    factor: float
    for_s: float | None = None

    def _check_fields(self) -> None:
        valid = number(self.factor) and 0 < self.factor <= MAX_SLOWNESS
        check(self.kind, "factor", self.factor, f"a number above 0, at most {MAX_SLOWNESS}", valid)

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, random.log_uniform(2, 400), for_s)


@dataclass(frozen=True, slots=True)
class _Ending(SelectiveFault):
    """An answer that stops after ``after_tokens`` tokens, or just before its end if it is shorter.

    An answer that is not streamed stops, when it is ready, after the same share of its body.
    """

    after_tokens: int = 1
    for_s: float | None = None

    def _check_fields(self) -> None:
        check(self.kind, "after_tokens", self.after_tokens, "a whole number from 0", whole(self.after_tokens))


@dataclass(frozen=True, slots=True)
class CutOff(_Ending):
    """Connections are reset after ``after_tokens`` tokens of an answer, at the latest before its last byte."""

    kind: ClassVar[str] = "cut"

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, random.choice((0, 1, 2)), for_s)


@dataclass(frozen=True, slots=True)
class Stall(_Ending):
    """Answers stop after ``after_tokens`` tokens while their connections stay open."""

    kind: ClassVar[str] = "stall"

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, random.choice((1, 2)), for_s)


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

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, for_s=for_s)


@dataclass(frozen=True, slots=True)
class Drip(SelectiveFault):
    """Tokens of answers are sent at least ``gap_s`` apart; a body that is not streamed has one part per token."""

    kind: ClassVar[str] = "drip"

    gap_s: float
    for_s: float | None = None

    def _check_fields(self) -> None:
        valid = number(self.gap_s) and self.gap_s <= MAX_GAP_S
        check(self.kind, "gap_s", self.gap_s, f"a number from 0 to {MAX_GAP_S}", valid)

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, random.log_uniform(0.01, 0.2), for_s)


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
        check(self.kind, "by", self.by, f"a whole number from -{most} to {most}, not 0", valid)


Corruption: TypeAlias = Stall | StreamError | Truncated | Drip | Garbage | WrongLength
RequestFault: TypeAlias = (
    FailingStatus
    | OverCapacity
    | QueueFull
    | OutOfMemory
    | Slow
    | Hang
    | Zombie
    | CutOff
    | Corruption
    | NotReady
    | NotAlive
    | BadMetrics
    | Evict
)
IMMEDIATE: tuple[type[RequestFault], ...] = (FailingStatus, OverCapacity, QueueFull, OutOfMemory, Hang, Zombie)
CORRUPTIONS: tuple[type[Corruption], ...] = (Stall, Truncated, StreamError, Drip, Garbage, WrongLength)
KINDS: dict[str, type[RequestFault]] = {
    kind.kind: kind for kind in (*IMMEDIATE, Slow, CutOff, *CORRUPTIONS, NotReady, NotAlive, BadMetrics, Evict)
}


def seeded(fault: RequestFault, seed: int) -> RequestFault:
    """The fault with ``seed``, where it has one: the seed decides which requests a share affects."""
    return replace(fault, seed=seed) if isinstance(fault, SelectiveFault) else fault
