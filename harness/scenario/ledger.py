"""What is in force on the backends of a run: what may begin, what it ends, and when each step was carried out. Pure.

One ledger serves the check of a timeline, both worlds and `steelyard up`. Steps have numbers; those of a scenario are
positions in its timeline. Times are seconds on the clock of the ledger's owner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.scenario.faults import (
    Evict,
    Fault,
    Kill,
    Pause,
    RequestFault,
    Restart,
    Step,
    TransportFault,
    heals_at_s,
    is_fault,
)
from harness.scenario.link import ProbedFault


def clash(began: Fault, fault: Fault) -> str:
    """Why `fault` cannot begin on a backend while `began` is in force there; "" if it can."""
    if isinstance(began, Kill | Restart) and not isinstance(fault, TransportFault):
        return "its process is gone"
    if isinstance(began, Pause) and isinstance(fault, RequestFault):
        return "a stopped process takes no change"
    if type(began) is type(fault) and not ends(began, fault):
        return "two of a kind cannot be told apart"
    hidden = isinstance(fault, TransportFault) and isinstance(began, ProbedFault) and fault.sees > began.leaves
    return "no probe could detect it behind that" if hidden else ""


def ends(began: Fault, fault: Fault) -> bool:
    """Whether `began`, in force on a backend, ends because `fault` begins there.

    Faults inside a process end with it; a request fault without an end is replaced by the next one of its kind.
    """
    if isinstance(fault, Kill | Restart):
        return isinstance(began, RequestFault | Pause)
    return isinstance(fault, RequestFault) and type(began) is type(fault) and heals_at_s(began) is None


@dataclass(slots=True)
class LedgerEntry:
    """A step as carried out: when it was requested, took effect (nan: it had none) and healed (nan: not yet).

    `heals_s`: when it is due to heal (None: it is not). `hits`: number of requests or reports that a request fault
    affected; None if not counted.
    """

    number: int
    step: Step
    asked_s: float
    effective_s: float
    heals_s: float | None = None
    healed_s: float = math.nan
    hits: int | None = None

    @property
    def fault(self) -> Fault:
        """The step, of an entry that is in force: a fault."""
        assert is_fault(self.step)
        return self.step


class FaultLedger:
    """The steps carried out so far, by number, and which faults are in force.

    Reading is safe while other threads write; the faults of one backend may be written by one thread at a time.
    `observer` is called with each entry when it is recorded, and again when it has healed.

    >>> from harness.scenario.faults import Hang, Latency
    >>> ledger = FaultLedger()
    >>> ledger.begin(0, Hang("gpu-0", 1.0), asked_s=1.0, effective_s=1.0)
    >>> ledger.begin(1, Pause("gpu-0", 2.0), asked_s=2.0, effective_s=2.1)
    >>> ledger.refusal(Latency("gpu-0", 3.0, 0.1))[1]
    'no probe could detect it behind that'
    >>> ledger.begin(2, Kill("gpu-0", 4.0), asked_s=4.0, effective_s=4.1)
    >>> [(entry.fault.backend, entry.number) for entry in ledger.in_force()], ledger.entry(0).healed_s
    ([('gpu-0', 2)], 4.1)
    """

    def __init__(self, observer: Callable[[LedgerEntry], None] | None = None) -> None:
        self._observer = observer
        self._entries: dict[int, LedgerEntry] = {}
        self._in_force: dict[int, LedgerEntry] = {}

    # --- questions ----------------------------------------------------------------------------------------

    def entries(self) -> list[LedgerEntry]:
        """All steps, in the order in which they were due: by `at_s`, then by number."""
        return sorted(self._entries.values(), key=lambda entry: (entry.step.at_s, entry.number))

    def entry(self, number: int) -> LedgerEntry:
        """The step of this number; KeyError if it has not been carried out."""
        return self._entries[number]

    def in_force(self, backend: str | None = None) -> list[LedgerEntry]:
        """The faults in force, of one backend if given, in the order in which they began."""
        return [entry for entry in list(self._in_force.values()) if backend in (None, entry.step.backend)]

    def others(self, fault: Fault) -> tuple[Fault, ...]:
        """The other faults in force on the backend of `fault`."""
        return tuple(entry.fault for entry in self.in_force(fault.backend) if entry.fault is not fault)

    def holds(self, number: int) -> bool:
        """Whether the fault of this number is in force: it has begun, and neither healed nor ended with another."""
        return number in self._in_force

    def refusal(self, fault: Fault) -> tuple[LedgerEntry, str] | None:
        """The fault in force with which `fault` cannot begin, and why; None if it can."""
        reasons = ((entry, clash(entry.fault, fault)) for entry in self.in_force(fault.backend))
        return next(((entry, why) for entry, why in reasons if why), None)

    def ended_by(self, fault: Fault) -> list[LedgerEntry]:
        """The faults in force that end when `fault` begins."""
        return [entry for entry in self.in_force(fault.backend) if ends(entry.fault, fault)]

    def blocked_by(self, fault: Fault) -> LedgerEntry | None:
        """The pause during which `fault` cannot heal: a stopped process takes no change. None if it can."""
        pauses = [entry for entry in self.in_force(fault.backend) if isinstance(entry.fault, Pause)]
        return pauses[0] if pauses and isinstance(fault, RequestFault) else None

    def overdue(self, backend: str, now_s: float) -> list[LedgerEntry]:
        """The faults in force on a backend that were due to heal by `now_s`."""
        return [entry for entry in self.in_force(backend) if entry.heals_s is not None and entry.heals_s <= now_s]

    def countable(self, entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
        """Those of `entries` whose hits can be read now: request faults of processes that answer."""
        silent = {entry.step.backend for entry in self.in_force() if isinstance(entry.step, Kill | Restart | Pause)}
        return [item for item in entries if isinstance(item.step, RequestFault) and item.step.backend not in silent]

    # --- changes ------------------------------------------------------------------------------------------

    def record(self, number: int, step: Step, asked_s: float, effective_s: float) -> LedgerEntry:
        """Record a step that is done once it has taken effect, such as a membership change."""
        return self._recorded(LedgerEntry(number, step, asked_s, effective_s))

    def begin(
        self, number: int, fault: Fault, asked_s: float, effective_s: float | None, heals_s: float | None = None
    ) -> None:
        """Put a fault in force from `effective_s` (None: no probe saw it); ends the faults of `ended_by` then.

        An eviction acts once and is never in force.
        """
        for entry in self.ended_by(fault):
            self.heal(entry.number, asked_s if effective_s is None else effective_s)
        entry = LedgerEntry(number, fault, asked_s, math.nan if effective_s is None else effective_s, heals_s)
        if not isinstance(fault, Evict):
            self._in_force[number] = entry
        self._recorded(entry)

    def heal(self, number: int, at_s: float) -> None:
        """Take a fault out of force; KeyError if it is not."""
        entry = self._in_force.pop(number)
        entry.healed_s = at_s
        self._notify(entry)

    def _recorded(self, entry: LedgerEntry) -> LedgerEntry:
        self._entries[entry.number] = entry
        self._notify(entry)
        return entry

    def _notify(self, entry: LedgerEntry) -> None:
        if self._observer is not None:
            self._observer(entry)
