"""The order of a timeline's steps, and which steps conflict; equal for every world. Pure."""

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
"""Simulated seconds from a process's end until its successor accepts; about the time of a real mock server."""

DIGITS = 9
"""Times are compared after rounding to this number of decimal digits."""


@dataclass(frozen=True, slots=True)
class Due:
    """An event of the run: step number `position` of the timeline begins, or heals (`heal`)."""

    at_s: float
    position: int
    step: Step
    heal: bool = False


def schedule(steps: Sequence[Step], restart_s: float = 0.0) -> list[Due]:
    """All beginnings and heals in order of time. At equal times, heals come before beginnings.

    A `Restart` heals after at least `restart_s` seconds; use 0 where the heal waits for a real process.
    """
    rows: list[tuple[tuple[float, int, int, bool], Due]] = []
    for position, step in enumerate(steps):
        rows.append(((round(step.at_s, DIGITS), 1, position, False), Due(step.at_s, position, step)))
        healed_s = step.at_s + max(step.for_s, restart_s) if isinstance(step, Restart) else heals_at_s(step)
        if healed_s is not None:
            moment_s = round(healed_s, DIGITS)
            rank = int(moment_s == round(step.at_s, DIGITS))  # a step does not heal before it begins
            rows.append(((moment_s, rank, position, True), Due(healed_s, position, step, heal=True)))
    due = [item for _, item in sorted(rows, key=lambda row: row[0])]
    latest_s = accumulate((item.at_s for item in due), max)
    return [replace(item, at_s=at_s) for item, at_s in zip(due, latest_s, strict=True)]


# --- conflicts --------------------------------------------------------------------------------------------

VISIBLE_BEHIND: Mapping[type[Fault], tuple[type[Fault], ...]] = MappingProxyType(
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
"""Link faults that a probe can detect while another fault is in force; a fault that is not listed hides none."""


def clash(began: Fault, fault: Fault) -> str:
    """Why `fault` cannot begin on a backend while `began` is in force there; "" if it can."""
    if isinstance(began, Kill | Restart) and not isinstance(fault, TransportFault):
        return "its process is gone"
    if isinstance(began, Pause) and isinstance(fault, RequestFault):
        return "a stopped process takes no change"
    if type(began) is type(fault) and not ends(began, fault):
        return "two of a kind cannot be told apart"
    hidden = isinstance(fault, TransportFault) and type(fault) not in VISIBLE_BEHIND.get(type(began), (type(fault),))
    return "no probe could detect it behind that" if hidden else ""


def ends(began: Fault, fault: Fault) -> bool:
    """Whether `began`, in force on a backend, ends because `fault` begins there.

    Faults inside a process end with it; a request fault without an end is replaced by the next one of its kind.
    """
    if isinstance(fault, Kill | Restart):
        return isinstance(began, RequestFault | Pause)
    return isinstance(fault, RequestFault) and type(began) is type(fault) and heals_at_s(began) is None


def conflict(steps: Sequence[Step]) -> str:
    """The first step that cannot be carried out or verified, in one line; "" if there is none. Both worlds reject it.

    Membership changes and steps on other backends never conflict.
    """
    in_force: dict[str, dict[int, Fault]] = {}
    for due in schedule(steps, RESTART_S):
        step = due.step
        if not is_fault(step):
            continue
        here = in_force.setdefault(step.backend, {})
        if due.heal:
            pauses = [other for other in here.values() if isinstance(other, Pause)]
            if pauses and isinstance(step, RequestFault) and due.position in here:
                what = f"{_name(step)} cannot heal at {due.at_s:g} s, during {_name(pauses[0])}"
                return f"{what}: a stopped process takes no change"
            here.pop(due.position, None)
            continue
        for began in here.values():
            why = clash(began, step)
            if why:
                return f"{_name(step)} cannot begin during {_name(began)}: {why}"
        in_force[step.backend] = {number: began for number, began in here.items() if not ends(began, step)}
        if not isinstance(step, Evict):  # an eviction has no duration
            in_force[step.backend][due.position] = step
    return ""


def _name(step: Step) -> str:
    return f"{type(step).__name__} of {step.backend} at {step.at_s:g} s"
