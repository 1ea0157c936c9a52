"""Steps of a scenario's timeline: faults, which can heal, and membership changes. Standard library only.

`at_s` and `for_s` are seconds of the run; a fault without `for_s` lasts until the run ends. Faults of links are
declared in `harness.scenario.transport_faults`, those of single requests in `mockgpu.faults.kinds`. The order of steps
is in `harness.scenario.fault_schedule`, what goes together in `harness.scenario.ledger`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Self, TypeGuard

from harness.scenario import link
from harness.scenario.transport_faults import *  # noqa: F403
from harness.scenario.transport_faults import TransportFault
from mockgpu.faults.kinds import *  # noqa: F403
from mockgpu.faults.kinds import Draws, RequestFault

# --- faults of a process ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kill(link.ProbedFault):
    """SIGKILL of a backend; connects are refused until it restarts, `for_s` later, with a cold cache."""

    sees: ClassVar[link.Depth] = link.Depth.CONNECT
    leaves: ClassVar[link.Depth] = link.Depth.NOTHING

    for_s: float | None = None

    def shows(self, seen: link.ProbeResult, others_s: float) -> bool:
        return not seen.accepted

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, for_s)


@dataclass(frozen=True, slots=True)
class Pause(link.ProbedFault):
    """SIGSTOP of a backend: its kernel accepts connections, nothing is answered; SIGCONT `for_s` later."""

    sees: ClassVar[link.Depth] = link.Depth.SILENCE
    leaves: ClassVar[link.Depth] = link.Depth.WRITE

    for_s: float | None = None

    def probe(self) -> link.Probe:
        return link.Probe(link.SILENT_S)

    def shows(self, seen: link.ProbeResult, others_s: float) -> bool:
        return seen.silent

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, for_s)


@dataclass(frozen=True, slots=True)
class Restart(link.ProbedFault):
    """A backend's process ends, with all its requests, and starts again at once with a cold cache.

    Connects are refused until its listener accepts again, which heals the fault. `for_s` is its minimum downtime.
    """

    sees: ClassVar[link.Depth] = link.Depth.CONNECT
    leaves: ClassVar[link.Depth] = link.Depth.NOTHING

    for_s: float = 0.0

    def shows(self, seen: link.ProbeResult, others_s: float) -> bool:
        return not seen.accepted

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, for_s)


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


def hyphenated(name: str) -> str:
    """A kind's class name in words: "FailingStatus" is "failing-status"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
