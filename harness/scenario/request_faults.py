"""Faults that strike single requests of a backend, or its reports, as data. Standard library only.

They follow the rules of `mockgpu.faults.decisions`: one of each kind at a time on a backend, gone with its process.
`at_s` and `for_s` are seconds of the run; one without `for_s` stays until the run ends.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FailingStatus:
    """A backend answers with `status` (400 to 599) at once: always, or the `first` requests, or a `share` of them.

    Which ones a share (0 to 1) hits follows from the run's seed and their order of arrival there. `retry_after_s` is
    sent in whole seconds, rounded up.
    """

    backend: str
    at_s: float
    status: int
    first: int | None = None
    share: float | None = None
    retry_after_s: float | None = None
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class OverCapacity:
    """A backend takes `rate_per_s` requests, `burst` at once, as a full token bucket; the rest gets 503 at once."""

    backend: str
    at_s: float
    rate_per_s: float
    burst: int = 1
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Slow:
    """Service of requests that arrive takes `factor` times as long."""

    backend: str
    at_s: float
    factor: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Hang:
    """Requests that arrive are never answered, while the health routes stay fine; healing resets their connections."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class CutOff:
    """Answers break off after `after_tokens` tokens, or that share of a body, at the latest before their last byte."""

    backend: str
    at_s: float
    after_tokens: int = 1
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class NotReady:
    """A backend reports that it is not ready (503), though it serves what it is sent."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class QueueFull:
    """Requests that arrive are refused with 503 as by a full queue: all, the `first`, or a `share` of them."""

    backend: str
    at_s: float
    first: int | None = None
    share: float | None = None
    retry_after_s: float | None = None
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The GPU's memory runs out under requests that arrive: 500.

    `dead`: the engine dies of it, so all inside fails too, as does what comes until this is healed; it is not ready.
    """

    backend: str
    at_s: float
    first: int | None = None
    share: float | None = None
    dead: bool = False
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Zombie:
    """As `Hang`, and reports show it: requests wait, none runs."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stall:
    """Answers fall silent after `after_tokens` tokens while their connections stay open."""

    backend: str
    at_s: float
    after_tokens: int = 1
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class StreamError:
    """Streams end by an error event after `after_tokens` tokens; what is not streamed is answered 500 when ready."""

    backend: str
    at_s: float
    after_tokens: int = 1
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Truncated:
    """Answers are shorter than they should be, but well framed: they go as far as `after_tokens` tokens."""

    backend: str
    at_s: float
    after_tokens: int = 1
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Drip:
    """Tokens of answers go out with at least `gap_s` between two of them."""

    backend: str
    at_s: float
    gap_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Garbage:
    """Bodies are noise under the status and headers of a good answer."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class WrongLength:
    """The length that an answer announces is `by` bytes off (not 0); then its connection is closed."""

    backend: str
    at_s: float
    by: int
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class NotAlive:
    """A backend reports that it is not alive (503 on liveness), though it is ready and serves."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class BadMetrics:
    """A backend's load figures can't be had: `how` is garbage, missing or frozen."""

    backend: str
    at_s: float
    how: str
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Evict:
    """Once: what is idle and not pinned leaves a backend's GPU memory. There is nothing to heal."""

    backend: str
    at_s: float


AnswerFault = CutOff | Stall | StreamError | Truncated | Drip | Garbage | WrongLength
RequestFault = (
    FailingStatus
    | OverCapacity
    | QueueFull
    | OutOfMemory
    | Slow
    | Hang
    | Zombie
    | AnswerFault
    | NotReady
    | NotAlive
    | BadMetrics
    | Evict
)


def as_mock(fault: RequestFault, seed: int) -> dict[str, object]:
    """The same fault as JSON for `mockgpu.faults.kinds.from_json`. `seed` decides which requests a share hits."""
    match fault:
        case FailingStatus():
            return _words("status", fault, seed, "status", "first", "share", "retry_after_s")
        case OverCapacity():
            return _words("capacity", fault, None, "rate_per_s", "burst")
        case QueueFull():
            return _words("queue-full", fault, seed, "first", "share", "retry_after_s")
        case OutOfMemory():
            return _words("out-of-memory", fault, seed, "first", "share", "dead")
        case Slow():
            return _words("slow", fault, None, "factor")
        case Hang():
            return {"kind": "hang"}
        case Zombie():
            return {"kind": "zombie"}
        case CutOff():
            return _words("cut", fault, None, "after_tokens")
        case Stall():
            return _words("stall", fault, None, "after_tokens")
        case StreamError():
            return _words("stream-error", fault, None, "after_tokens")
        case Truncated():
            return _words("truncated", fault, None, "after_tokens")
        case Drip():
            return _words("drip", fault, None, "gap_s")
        case Garbage():
            return {"kind": "garbage"}
        case WrongLength():
            return _words("wrong-length", fault, None, "by")
        case NotReady():
            return {"kind": "not-ready"}
        case NotAlive():
            return {"kind": "not-alive"}
        case BadMetrics():
            return _words("metrics", fault, None, "how")
        case Evict():
            return {"kind": "evict"}


def _words(kind: str, fault: RequestFault, seed: int | None, *names: str) -> dict[str, object]:
    """The fields of a fault that are given, by name; with the seed where it plays a part."""
    given = {name: value for name in names if (value := getattr(fault, name)) is not None}
    return {"kind": kind, **given, **({} if seed is None else {"seed": seed})}
