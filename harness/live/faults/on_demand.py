"""The faults in force on a running stage: set on demand, seen to bite, healed in time or when asked.

Faults of one backend take turns, those of different backends do not wait for each other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from harness.live.faults.command_words import duration, kind_of, told
from harness.live.faults.injector import FaultInjector
from harness.live.fleet import FleetProcess
from harness.scenario.fault_schedule import clash, ends
from harness.scenario.faults import Evict, Fault, Kill, Pause, ProcessFault, RequestFault, Restart
from harness.scenario.model import ClaimsError, HarnessError, SteelyardError


@dataclass(slots=True)
class ActiveFault:
    """A fault in force. Times on CLOCK_MONOTONIC; `heals_s` None: not before it is cleared."""

    fault: Fault
    effective_s: float
    heals_s: float | None
    timer: threading.Timer | None = None
    overdue: bool = False

    @property
    def kind(self) -> str:
        """The name of its kind."""
        return kind_of(self.fault)

    def row(self, now_s: float) -> dict[str, Any]:
        """For lists: backend, kind, in words, for how long already, and how long still (None: until cleared)."""
        left_s = None if self.heals_s is None else max(0.0, self.heals_s - now_s)
        return {
            "backend": self.fault.backend,
            "kind": self.kind,
            "told": told(self.fault),
            "since_s": now_s - self.effective_s,
            "heals_in_s": left_s,
        }


class ActiveFaults:
    """What is in force, by backend and kind. `failed` is the error of a heal in due time, which nobody waits for."""

    def __init__(self, way: FaultInjector, fleet: FleetProcess, seed: int) -> None:
        self._way = way
        self._fleet = fleet
        self._seed = seed
        self._book: dict[tuple[str, str], ActiveFault] = {}
        self._turns: dict[str, threading.RLock] = {}
        self._ended: dict[str, float] = {}
        self._closed = False
        self.failed: SteelyardError | None = None

    def entries(self) -> list[ActiveFault]:
        """All that is in force, oldest first."""
        return sorted(self._book.values(), key=lambda entry: entry.effective_s)

    def ended(self) -> Mapping[str, float]:
        """When the process of a backend was last killed or restarted by a fault."""
        return dict(self._ended)

    def add(self, fault: Fault) -> tuple[bool, str]:
        """Set a fault; returns whether it was seen to take effect, and a line that says so.

        ClaimsError if what is in force already does not go with it, HarnessError if it can't be set.
        """
        name, kind = fault.backend, kind_of(fault)
        with self._turn(name):
            self._check(fault)
            asked_s = time.monotonic()
            try:
                effective_s = self._way.begin(fault, self._fleet, self._seed)
            except HarnessError:
                self._forget_ended(fault)
                self._undo(fault)
                raise
            if effective_s is None:
                self._forget_ended(fault)
                self._undo(fault)
                return False, f"{kind} on {name} never took effect: no probe saw it, so it was taken back"
            took = f"{kind} on {name} in force after {duration(effective_s - asked_s)}"
            if isinstance(fault, Evict):  # strikes once
                self._fleet.clear_fault(name, "evict")
                return True, took
            if isinstance(fault, Kill | Restart):
                self._ended[name] = effective_s
            self._forget_ended(fault)
            heals_s = None if fault.for_s is None else effective_s + fault.for_s
            entry = ActiveFault(fault, effective_s, heals_s)
            self._book[name, kind] = entry
            if fault.for_s is None:
                return True, f"{took}, until: steelyard fault clear {name} {kind}"
            entry.timer = threading.Timer(max(0.0, effective_s + fault.for_s - time.monotonic()), self._due, (entry,))
            entry.timer.daemon = True
            entry.timer.start()
            return True, f"{took}, heals {f'in {duration(fault.for_s)}' if fault.for_s else 'at once'}"

    def clear(self, backend: str | None, kind: str | None) -> list[str]:
        """Heal what is in force, of one backend or kind where given; a line for each. HarnessError if one can't be."""
        wanted = [
            entry for entry in self.entries() if backend in (None, entry.fault.backend) and kind in (None, entry.kind)
        ]
        lines = []
        # Processes first: a paused one takes no other change.
        for entry in sorted(wanted, key=lambda item: not isinstance(item.fault, ProcessFault)):
            name = entry.fault.backend
            with self._turn(name):
                if self._book.get((name, entry.kind)) is not entry:
                    continue  # it has just healed by itself
                if isinstance(entry.fault, RequestFault) and (name, "pause") in self._book:
                    raise ClaimsError(f"{name} is paused and takes no change: steelyard fault clear {name} pause first")
                self._heal(entry)
                lines.append(f"{entry.kind} on {name} cleared")
        return lines

    def close(self) -> None:
        """No more heals; what is in force ends with the stage."""
        self._closed = True
        for entry in self.entries():
            if entry.timer is not None:
                entry.timer.cancel()
                if entry.timer is not threading.current_thread():
                    entry.timer.join()

    def _turn(self, name: str) -> threading.RLock:
        """What serializes the faults of one backend. Made in one step, for two may ask at once."""
        return self._turns.setdefault(name, threading.RLock())

    def _check(self, fault: Fault) -> None:
        name, kind = fault.backend, kind_of(fault)
        if self._closed:
            raise ClaimsError("steelyard up is ending")
        for entry in [item for item in self.entries() if item.fault.backend == name]:
            if why := clash(entry.fault, fault):
                raise ClaimsError(
                    f"{entry.kind} is in force on {name}, and {kind} does not go with it: {why}; "
                    f"steelyard fault clear {name} {entry.kind} first"
                )

    def _due(self, entry: ActiveFault) -> None:
        """Its time is over. Runs in the thread of a timer."""
        name = entry.fault.backend
        with self._turn(name):
            if self._closed or self._book.get((name, entry.kind)) is not entry:
                return
            if isinstance(entry.fault, RequestFault) and (name, "pause") in self._book:
                entry.overdue = True  # healed as soon as its process goes on
                return
            try:
                self._heal(entry)
            except SteelyardError as error:
                self.failed = error

    def _heal(self, entry: ActiveFault) -> None:
        name = entry.fault.backend
        if entry.timer is not None:
            entry.timer.cancel()
        self._way.heal(entry.fault, self._fleet)
        del self._book[name, entry.kind]
        if isinstance(entry.fault, Pause):
            for other in [item for item in self.entries() if item.fault.backend == name and item.overdue]:
                self._heal(other)

    def _undo(self, fault: Fault) -> None:
        """Take back what is half set, as far as that goes."""
        with suppress(HarnessError):
            self._way.heal(fault, self._fleet)

    def _forget_ended(self, fault: Fault) -> None:
        """What was in force and is over because `fault` has begun."""
        for entry in [item for item in self.entries() if item.fault.backend == fault.backend]:
            if ends(entry.fault, fault):
                if entry.timer is not None:
                    entry.timer.cancel()
                del self._book[fault.backend, entry.kind]
