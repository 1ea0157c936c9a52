"""The order of a timeline, and which of its steps do not go together: the same for every world. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from types import MappingProxyType

from harness.scenario.faults import (
    Blackhole,
    Down,
    Evict,
    Fault,
    Kill,
    LimitData,
    Pause,
    RequestFault,
    Reset,
    Restart,
    Step,
    Timeout,
    TransportFault,
    heals_at_s,
    is_fault,
)

RESTART_S = 0.5
"""From the end of a process until the listener of its successor accepts; about what a mock server takes live."""

DIGITS = 9
"""Times that are equal to so many digits are one."""


@dataclass(frozen=True, slots=True)
class Due:
    """Something to do at a time of the run: step number `position` of the timeline begins, or heals."""

    at_s: float
    position: int
    step: Step
    heal: bool = False


def schedule(steps: Sequence[Step], restart_s: float = 0.0) -> list[Due]:
    """All beginnings and heals in their order. At one moment what ends does so before anything begins.

    A `Restart` heals after `restart_s` seconds at least; where that waits for a real process, 0 is right.
    """
    rows: list[tuple[tuple[float, int, int, bool], Due]] = []
    for position, step in enumerate(steps):
        rows.append(((round(step.at_s, DIGITS), 1, position, False), Due(step.at_s, position, step)))
        healed_s = step.at_s + max(step.for_s, restart_s) if isinstance(step, Restart) else heals_at_s(step)
        if healed_s is not None:
            moment_s = round(healed_s, DIGITS)
            rank = int(moment_s == round(step.at_s, DIGITS))  # it does not heal before it began
            rows.append(((moment_s, rank, position, True), Due(healed_s, position, step, heal=True)))
    due = [item for _, item in sorted(rows, key=lambda row: row[0])]
    latest_s = accumulate((item.at_s for item in due), max)
    return [replace(item, at_s=at_s) for item, at_s in zip(due, latest_s, strict=True)]


# --- what goes together -----------------------------------------------------------------------------------

SEEN_BEHIND: Mapping[type[Fault], tuple[type[Fault], ...]] = MappingProxyType(
    {
        Kill: (),
        Restart: (),
        Down: (),
        Pause: (Down, Reset),
        Blackhole: (Down,),
        Timeout: (Down,),
        Reset: (Down,),
        LimitData: (Down, Reset, Blackhole, Timeout),
    }
)
"""The faults of the way that a probe can see while another fault is in force, where these are not all."""


def clash(began: Fault, fault: Fault) -> str:
    """Why `fault` cannot begin on a backend while `began` is in force there; "" if it can."""
    if isinstance(began, Kill | Restart) and not isinstance(fault, TransportFault):
        return "its process is gone"
    if isinstance(began, Pause) and isinstance(fault, RequestFault):
        return "a stopped process takes no change"
    if type(began) is type(fault) and not ends(began, fault):
        return "two of a kind cannot be told apart"
    hidden = isinstance(fault, TransportFault) and type(fault) not in SEEN_BEHIND.get(type(began), (type(fault),))
    return "no probe would see it behind that" if hidden else ""


def ends(began: Fault, fault: Fault) -> bool:
    """Whether `began`, in force on a backend, is over because `fault` begins there.

    What lives in a process ends with it; a fault of single requests that has no end of its own gives way to the next
    one of its kind.
    """
    if isinstance(fault, Kill | Restart):
        return isinstance(began, RequestFault | Pause)
    return isinstance(fault, RequestFault) and type(began) is type(fault) and heals_at_s(began) is None


def conflict(steps: Sequence[Step]) -> str:
    """What of a timeline cannot be carried out, or not be seen, in one line; "" if all can. Both worlds refuse it.

    Changes of membership and steps on other backends are no matter.
    """
    in_force: dict[str, dict[int, Fault]] = {}
    for due in schedule(steps, RESTART_S):
        step = due.step
        if not is_fault(step):
            continue
        here = in_force.setdefault(step.backend, {})
        if due.heal:
            stops = [other for other in here.values() if isinstance(other, Pause)]
            if stops and isinstance(step, RequestFault) and due.position in here:
                told = f"{_told(step)} cannot heal at {due.at_s:g} s, during {_told(stops[0])}"
                return f"{told}: a stopped process takes no change"
            here.pop(due.position, None)
            continue
        for began in here.values():
            why = clash(began, step)
            if why:
                return f"{_told(step)} cannot begin during {_told(began)}: {why}"
        in_force[step.backend] = {place: began for place, began in here.items() if not ends(began, step)}
        if not isinstance(step, Evict):  # it is over at once
            in_force[step.backend][due.position] = step
    return ""


def _told(step: Step) -> str:
    return f"{type(step).__name__} of {step.backend} at {step.at_s:g} s"
