"""The order of a timeline's steps, and which steps conflict; equal for every world. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from harness.scenario.faults import Restart, Step, heals_at_s, is_fault
from harness.scenario.ledger import FaultLedger

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


def conflict(steps: Sequence[Step]) -> str:
    """The first step that cannot be carried out or verified, in one line; "" if there is none. Both worlds reject it.

    Membership changes and steps on other backends never conflict.
    """
    ledger = FaultLedger()
    for due in schedule(steps, RESTART_S):
        step = due.step
        if not is_fault(step) or (due.heal and not ledger.holds(due.position)):
            continue
        if due.heal:
            if pause := ledger.blocked_by(step):
                what = f"{_name(step)} cannot heal at {due.at_s:g} s, during {_name(pause.step)}"
                return f"{what}: a stopped process takes no change"
            ledger.heal(due.position, due.at_s)
            continue
        if refusal := ledger.refusal(step):
            began, why = refusal
            return f"{_name(step)} cannot begin during {_name(began.step)}: {why}"
        ledger.begin(due.position, step, due.at_s, due.at_s)
    return ""


def _name(step: Step) -> str:
    return f"{type(step).__name__} of {step.backend} at {step.at_s:g} s"
