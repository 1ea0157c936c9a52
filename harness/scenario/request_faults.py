"""Faults of single requests of a backend, or of its status reports, as data. Standard library only.

They follow the rules of `mockgpu.faults.decisions`: at most one of each kind on a backend, lost with its process.
`at_s` and `for_s` are seconds of the run; a fault without `for_s` lasts until the run ends.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FailingStatus:
    """A backend answers with `status` (400 to 599) at once: always, to the `first` requests, or to a `share` of them.

    The run's seed and the order of arrival decide which requests a share (0 to 1) affects. `retry_after_s` is sent in
    whole seconds, rounded up.
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
    """A token bucket (`rate_per_s`, `burst`, initially full) admits requests; the others get 503 at once."""

    backend: str
    at_s: float
    rate_per_s: float
    burst: int = 1
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Slow:
    """The service time of requests that arrive is multiplied by `factor`."""

    backend: str
    at_s: float
    factor: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Hang:
    """Requests that arrive are never answered; health routes still answer. Healing resets their connections."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class CutOff:
    """Answers are cut after `after_tokens` tokens, or that share of a body, at the latest before their last byte."""

    backend: str
    at_s: float
    after_tokens: int = 1
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class NotReady:
    """A backend reports that it is not ready (503) but still serves requests."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class QueueFull:
    """Requests that arrive get 503 as from a full queue: all, the `first`, or a `share` of them."""

    backend: str
    at_s: float
    first: int | None = None
    share: float | None = None
    retry_after_s: float | None = None
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Requests that arrive exhaust the GPU's memory: 500, for all, the `first`, or a `share` of them.

    `dead`: the engine dies, so running requests fail too, as do new ones until this is healed; it is not ready.
    """

    backend: str
    at_s: float
    first: int | None = None
    share: float | None = None
    dead: bool = False
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Zombie:
    """Like `Hang`, but visible in the load report: requests wait, none runs."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stall:
    """Answers stop after `after_tokens` tokens while their connections stay open."""

    backend: str
    at_s: float
    after_tokens: int = 1
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class StreamError:
    """Streams end with an error event after `after_tokens` tokens; other answers become 500 when they are due."""

    backend: str
    at_s: float
    after_tokens: int = 1
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Truncated:
    """Answers are well framed but end after `after_tokens` tokens, short of their full length."""

    backend: str
    at_s: float
    after_tokens: int = 1
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Drip:
    """Tokens of answers are sent at least `gap_s` apart."""

    backend: str
    at_s: float
    gap_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Garbage:
    """Bodies are random bytes with the status and headers of a correct answer."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class WrongLength:
    """The Content-Length of an answer is wrong by `by` bytes (not 0); its connection is closed afterwards."""

    backend: str
    at_s: float
    by: int
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class NotAlive:
    """A backend reports that it is not alive (503 on liveness) but is ready and serves requests."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class BadMetrics:
    """A backend's load figures are unusable: `how` is garbage, missing or frozen."""

    backend: str
    at_s: float
    how: str
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Evict:
    """One-time: idle, unpinned models are evicted from a backend's GPU memory. There is nothing to heal."""

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
    """The same fault as JSON for `mockgpu.faults.kinds.from_json`. `seed` decides which requests a share affects."""
    match fault:
        case FailingStatus():
            return _as_json("status", fault, seed, "status", "first", "share", "retry_after_s")
        case OverCapacity():
            return _as_json("capacity", fault, None, "rate_per_s", "burst")
        case QueueFull():
            return _as_json("queue-full", fault, seed, "first", "share", "retry_after_s")
        case OutOfMemory():
            return _as_json("out-of-memory", fault, seed, "first", "share", "dead")
        case Slow():
            return _as_json("slow", fault, None, "factor")
        case Hang():
            return {"kind": "hang"}
        case Zombie():
            return {"kind": "zombie"}
        case CutOff():
            return _as_json("cut", fault, None, "after_tokens")
        case Stall():
            return _as_json("stall", fault, None, "after_tokens")
        case StreamError():
            return _as_json("stream-error", fault, None, "after_tokens")
        case Truncated():
            return _as_json("truncated", fault, None, "after_tokens")
        case Drip():
            return _as_json("drip", fault, None, "gap_s")
        case Garbage():
            return {"kind": "garbage"}
        case WrongLength():
            return _as_json("wrong-length", fault, None, "by")
        case NotReady():
            return {"kind": "not-ready"}
        case NotAlive():
            return {"kind": "not-alive"}
        case BadMetrics():
            return _as_json("metrics", fault, None, "how")
        case Evict():
            return {"kind": "evict"}


def _as_json(kind: str, fault: RequestFault, seed: int | None, *names: str) -> dict[str, object]:
    """The fault's fields that are set, by name, and the seed where given."""
    given = {name: value for name in names if (value := getattr(fault, name)) is not None}
    return {"kind": kind, **given, **({} if seed is None else {"seed": seed})}
