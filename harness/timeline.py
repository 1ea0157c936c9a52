"""What happens in a scenario beside its load: faults, which can heal, and changes of membership. Standard library only.

`at_s` and `for_s` are seconds of the run; a fault without `for_s` stays until the run ends. Faults of single requests
follow the rules of `mockgpu.faults`: one of each kind at a time on a backend, gone with its process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

# --- faults of a process or of the way to it ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL of a backend; connects are refused until it is restarted, `for_s` later, with a cold cache."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Down:
    """The way to a backend is closed: live connections end, connects are refused. The backend itself lives on."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """Everything that a backend sends arrives `latency_s` later."""

    backend: str
    at_s: float
    latency_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Blackhole:
    """Connections to a backend are accepted and then silent in both directions; nothing reaches it."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """Connections to a backend are reset as soon as a request is written to them."""

    backend: str
    at_s: float
    for_s: float | None = None


# --- faults of single requests ------------------------------------------------------------------------------


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


# --- membership ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leave:
    """A backend leaves the balancer's membership; it stays reachable until the run ends."""

    backend: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Join:
    """A backend (back from a leave, or a spare one) joins the balancer's membership."""

    backend: str
    at_s: float


RequestFault = FailingStatus | OverCapacity | Slow | Hang | CutOff | NotReady
Fault = Kill | Down | Latency | Blackhole | Reset | RequestFault
Membership = Leave | Join
Step = Fault | Membership


def is_fault(step: Step) -> TypeGuard[Fault]:
    """Whether a step is a fault (it has a heal) and not a change of membership."""
    return isinstance(step, Fault)


def as_mock(fault: RequestFault, seed: int) -> dict[str, object]:
    """The same fault in the words of `mockgpu.faults.from_json`. `seed` decides which requests a share hits."""
    match fault:
        case FailingStatus(status=status, first=first, share=share, retry_after_s=retry_after_s):
            words = {"status": status, "first": first, "share": share, "retry_after_s": retry_after_s, "seed": seed}
            return {"kind": "status", **{name: value for name, value in words.items() if value is not None}}
        case OverCapacity(rate_per_s=rate_per_s, burst=burst):
            return {"kind": "capacity", "rate_per_s": rate_per_s, "burst": burst}
        case Slow(factor=factor):
            return {"kind": "slow", "factor": factor}
        case Hang():
            return {"kind": "hang"}
        case CutOff(after_tokens=after_tokens):
            return {"kind": "cut", "after_tokens": after_tokens}
        case NotReady():
            return {"kind": "not-ready"}
