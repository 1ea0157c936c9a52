"""What happens in a scenario beside its load: faults, which can heal, and changes of membership. Standard library only.

`at_s` and `for_s` are seconds of the run; a fault without `for_s` stays until the run ends. Those of single requests
are in `harness.scenario.request_faults`; what comes in which order and what does not go together is in
`harness.scenario.fault_schedule`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from harness.scenario.request_faults import AnswerFault as AnswerFault
from harness.scenario.request_faults import BadMetrics as BadMetrics
from harness.scenario.request_faults import CutOff as CutOff
from harness.scenario.request_faults import Drip as Drip
from harness.scenario.request_faults import Evict as Evict
from harness.scenario.request_faults import FailingStatus as FailingStatus
from harness.scenario.request_faults import Garbage as Garbage
from harness.scenario.request_faults import Hang as Hang
from harness.scenario.request_faults import NotAlive as NotAlive
from harness.scenario.request_faults import NotReady as NotReady
from harness.scenario.request_faults import OutOfMemory as OutOfMemory
from harness.scenario.request_faults import OverCapacity as OverCapacity
from harness.scenario.request_faults import QueueFull as QueueFull
from harness.scenario.request_faults import RequestFault as RequestFault
from harness.scenario.request_faults import Slow as Slow
from harness.scenario.request_faults import Stall as Stall
from harness.scenario.request_faults import StreamError as StreamError
from harness.scenario.request_faults import Truncated as Truncated
from harness.scenario.request_faults import WrongLength as WrongLength
from harness.scenario.request_faults import Zombie as Zombie
from harness.scenario.request_faults import as_mock as as_mock

# --- faults of a process or of the way to it ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL of a backend; connects are refused until it is restarted, `for_s` later, with a cold cache."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """SIGSTOP of a backend: its kernel still accepts, nothing is answered; `for_s` later SIGCONT, and it goes on."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """A backend's process ends, with all that is inside, and starts again at once with a cold cache.

    Connects are refused until its listener accepts again, which heals it. `for_s` is how long it stays away at least.
    """

    backend: str
    at_s: float
    for_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Down:
    """The way to a backend is closed: live connections end, connects are refused. The backend itself lives on."""

    backend: str
    at_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """Everything that a backend sends arrives `latency_s` later, give or take `jitter_s` (uniform)."""

    backend: str
    at_s: float
    latency_s: float
    for_s: float | None = None
    jitter_s: float = 0.0


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


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The way from a backend carries `kb_per_s` kilobytes (1,000 bytes) a second on each connection."""

    backend: str
    at_s: float
    kb_per_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class SlowClose:
    """That a backend closed a connection shows `delay_s` later."""

    backend: str
    at_s: float
    delay_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Timeout:
    """Nothing that is sent on a connection to a backend arrives, and after `after_s` it is closed."""

    backend: str
    at_s: float
    after_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Slicer:
    """What a backend sends comes in slices of about `slice_bytes`, with `gap_s` between two of them."""

    backend: str
    at_s: float
    slice_bytes: int
    gap_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class LimitData:
    """A connection to a backend is closed once `limit_bytes` have come from there.

    The two worlds agree where one answer is longer than that, or none: `sim` counts each answer on its own.
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
    """A backend (back from a leave, or a spare one) joins the balancer's membership."""

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
    """A backend is drained: it stays listed but is sent nothing new, until a `Join` (back to work) or a `Leave`."""

    backend: str
    at_s: float


ProcessFault = Kill | Pause | Restart
TransportFault = Down | Latency | Blackhole | Reset | Bandwidth | SlowClose | Timeout | Slicer | LimitData
Fault = ProcessFault | TransportFault | RequestFault
Membership = Leave | Join | Weigh | Drain
Step = Fault | Membership


def is_fault(step: Step) -> TypeGuard[Fault]:
    """Whether a step is a fault and not a change of membership."""
    return isinstance(step, Fault)


def heals_at_s(step: Step) -> float | None:
    """When a step is to be taken back, in seconds of the run; None if it never is, or heals by itself (`Restart`)."""
    for_s = None if isinstance(step, Restart) else getattr(step, "for_s", None)
    return None if for_s is None else step.at_s + for_s
