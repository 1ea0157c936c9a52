"""Steps of a scenario's timeline: faults, which can heal, and membership changes. Standard library only.

`at_s` and `for_s` are seconds of the run; a fault without `for_s` lasts until the run ends. Faults of single requests
are declared in `mockgpu.faults.kinds`; order and conflicts of steps are in `harness.scenario.fault_schedule`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from mockgpu.faults.kinds import BadMetrics as BadMetrics
from mockgpu.faults.kinds import CutOff as CutOff
from mockgpu.faults.kinds import Drip as Drip
from mockgpu.faults.kinds import Evict as Evict
from mockgpu.faults.kinds import FailingStatus as FailingStatus
from mockgpu.faults.kinds import Garbage as Garbage
from mockgpu.faults.kinds import Hang as Hang
from mockgpu.faults.kinds import NotAlive as NotAlive
from mockgpu.faults.kinds import NotReady as NotReady
from mockgpu.faults.kinds import OutOfMemory as OutOfMemory
from mockgpu.faults.kinds import OverCapacity as OverCapacity
from mockgpu.faults.kinds import QueueFull as QueueFull
from mockgpu.faults.kinds import RequestFault as RequestFault
from mockgpu.faults.kinds import Slow as Slow
from mockgpu.faults.kinds import Stall as Stall
from mockgpu.faults.kinds import StreamError as StreamError
from mockgpu.faults.kinds import Truncated as Truncated
from mockgpu.faults.kinds import WrongLength as WrongLength
from mockgpu.faults.kinds import Zombie as Zombie

# --- faults of a process or of the link to it ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL of a backend; connects are refused until it restarts, `for_s` later, with a cold cache."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """SIGSTOP of a backend: its kernel accepts connections, nothing is answered; SIGCONT `for_s` later."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """A backend's process ends, with all its requests, and starts again at once with a cold cache.

    Connects are refused until its listener accepts again, which heals the fault. `for_s` is its minimum downtime.
    """

    backend: str
    at_s: float
    for_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Down:
    """The link to a backend is closed: open connections end, connects are refused. The backend keeps running."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """All data from a backend arrives `latency_s` ± `jitter_s` (uniform) later."""

    backend: str
    at_s: float
    latency_s: float
    for_s: float | None = None
    jitter_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Blackhole:
    """Connections to a backend are accepted, then no data passes in either direction."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """Connections to a backend are reset as soon as a request is written to them."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The link from a backend carries `kb_per_s` kilobytes (1,000 bytes) a second on each connection."""

    backend: str
    at_s: float
    kb_per_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class SlowClose:
    """A backend's close of a connection arrives `delay_s` later."""

    backend: str
    at_s: float
    delay_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Timeout:
    """No data on a connection to a backend arrives, and after `after_s` the connection is closed."""

    backend: str
    at_s: float
    after_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Slicer:
    """Data from a backend arrives in slices of about `slice_bytes`, `gap_s` apart."""

    backend: str
    at_s: float
    slice_bytes: int
    gap_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class LimitData:
    """A connection to a backend is closed after `limit_bytes` from the backend.

    `sim` counts each answer separately: the worlds agree only if a single answer exceeds the limit, or none does.
    """

    backend: str
    at_s: float
    limit_bytes: int
    for_s: float | None = None


# --- membership ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leave:
    """A backend leaves the balancer's membership; it stays reachable until the run ends."""

    backend: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Join:
    """A backend (one that left, or a spare one) joins the balancer's membership."""

    backend: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Weigh:
    """A backend's weight in the balancer's membership becomes `weight` (1 is normal)."""

    backend: str
    at_s: float
    weight: int


@dataclass(frozen=True, slots=True)
class Drain:
    """A backend is drained: it stays listed but gets no new requests until a `Join` (active again) or a `Leave`."""

    backend: str
    at_s: float


ProcessFault = Kill | Pause | Restart
TransportFault = Down | Latency | Blackhole | Reset | Bandwidth | SlowClose | Timeout | Slicer | LimitData
Fault = ProcessFault | TransportFault | RequestFault
Membership = Leave | Join | Weigh | Drain
Step = Fault | Membership


def is_fault(step: Step) -> TypeGuard[Fault]:
    """Whether a step is a fault, not a membership change."""
    return isinstance(step, Fault)


def heals_at_s(step: Step) -> float | None:
    """Time at which a step is to be reverted, in seconds of the run; None: never, or it heals by itself (`Restart`)."""
    for_s = None if isinstance(step, Restart) else getattr(step, "for_s", None)
    return None if for_s is None else step.at_s + for_s
