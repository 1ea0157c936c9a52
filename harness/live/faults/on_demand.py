"""The faults in force in a running environment: set on demand, verified by a probe, healed on time or on request.

Operations on one backend are serialized; those on different backends do not wait for each other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from harness.live.faults.command_words import describe, duration, kind_of
from harness.live.faults.injector import FaultInjector
from harness.live.fleet import FleetProcess
from harness.scenario.fault_schedule import clash, ends
from harness.scenario.faults import Evict, Fault, Kill, Pause, ProcessFault, RequestFault, Restart
from harness.scenario.model import ClaimsError, HarnessError, SteelyardError


@dataclass(slots=True)
class ActiveFault:
    """A fault in force. Times on CLOCK_MONOTONIC; `heals_s` None: until cleared."""

    fault: Fault
    effective_s: float
    heals_s: float | None
    timer: threading.Timer | None = None
    overdue: bool = False

    @property
    def kind(self) -> str:
        """The name of the fault's kind."""
        return kind_of(self.fault)

    def row(self, now_s: float) -> dict[str, Any]:
        """As a row: backend, kind, told (description), seconds in force, seconds left (None: until cleared)."""
        left_s = None if self.heals_s is None else max(0.0, self.heals_s - now_s)
        return {
            "backend": self.fault.backend,
            "kind": self.kind,
            "told": describe(self.fault),
            "since_s": now_s - self.effective_s,
            "heals_in_s": left_s,
        }


class ActiveFaults:
    """The faults in force, by backend and kind. `failed` is the error of a scheduled heal, which has no caller."""

    def __init__(self, injector: FaultInjector, fleet: FleetProcess, seed: int) -> None:
        self._injector = injector
        self._fleet = fleet
        self._seed = seed
        self._active: dict[tuple[str, str], ActiveFault] = {}
        self._locks: dict[str, threading.RLock] = {}
        self._ended: dict[str, float] = {}
        self._closed = False
        self.failed: SteelyardError | None = None

    def entries(self) -> list[ActiveFault]:
        """All faults in force, oldest first."""
        return sorted(self._active.values(), key=lambda entry: entry.effective_s)

    def ended(self) -> Mapping[str, float]:
        """When (CLOCK_MONOTONIC) a fault last killed or restarted the process of each backend."""
        return dict(self._ended)

    def add(self, fault: Fault) -> tuple[bool, str]:
        """Set a fault; returns whether a probe observed its effect, and a line that reports it.

        ClaimsError if it conflicts with a fault in force, HarnessError if it cannot be set.
        """
        name, kind = fault.backend, kind_of(fault)
        with self._lock(name):
            self._check(fault)
            requested_s = time.monotonic()
            try:
                effective_s = self._injector.begin(fault, self._fleet, self._seed)
            except HarnessError:
                self._forget_ended(fault)
                self._undo(fault)
                raise
            if effective_s is None:
                self._forget_ended(fault)
                self._undo(fault)
                return False, f"{kind} on {name} never took effect: no probe saw it, so it was taken back"
            message = f"{kind} on {name} in force after {duration(effective_s - requested_s)}"
            if isinstance(fault, Evict):  # takes effect once
                self._fleet.clear_fault(fault)
                return True, message
            if isinstance(fault, Kill | Restart):
                self._ended[name] = effective_s
            self._forget_ended(fault)
            heals_s = None if fault.for_s is None else effective_s + fault.for_s
            entry = ActiveFault(fault, effective_s, heals_s)
            self._active[name, kind] = entry
            if fault.for_s is None:
                return True, f"{message}, until: steelyard fault clear {name} {kind}"
            entry.timer = threading.Timer(max(0.0, effective_s + fault.for_s - time.monotonic()), self._due, (entry,))
            entry.timer.daemon = True
            entry.timer.start()
            return True, f"{message}, heals {f'in {duration(fault.for_s)}' if fault.for_s else 'at once'}"

    def clear(self, backend: str | None, kind: str | None) -> list[str]:
        """Heal faults in force, of one backend or kind if given; returns a line for each. HarnessError on failure."""
        selected = [
            entry for entry in self.entries() if backend in (None, entry.fault.backend) and kind in (None, entry.kind)
        ]
        lines = []
        # Process faults first: a paused process accepts no other change.
        for entry in sorted(selected, key=lambda item: not isinstance(item.fault, ProcessFault)):
            name = entry.fault.backend
            with self._lock(name):
                if self._active.get((name, entry.kind)) is not entry:
                    continue  # it has healed in the meantime
                if isinstance(entry.fault, RequestFault) and (name, "pause") in self._active:
                    raise ClaimsError(f"{name} is paused and takes no change: steelyard fault clear {name} pause first")
                self._heal(entry)
                lines.append(f"{entry.kind} on {name} cleared")
        return lines

    def close(self) -> None:
        """Cancel scheduled heals; faults in force end with the environment."""
        self._closed = True
        for entry in self.entries():
            if entry.timer is not None:
                entry.timer.cancel()
                if entry.timer is not threading.current_thread():
                    entry.timer.join()

    def _lock(self, name: str) -> threading.RLock:
        """The lock that serializes the faults of one backend; created atomically: two threads may ask at once."""
        return self._locks.setdefault(name, threading.RLock())

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
        """Heal a fault whose duration has ended. Runs in a timer thread."""
        name = entry.fault.backend
        with self._lock(name):
            if self._closed or self._active.get((name, entry.kind)) is not entry:
                return
            if isinstance(entry.fault, RequestFault) and (name, "pause") in self._active:
                entry.overdue = True  # healed as soon as its process resumes
                return
            try:
                self._heal(entry)
            except SteelyardError as error:
                self.failed = error

    def _heal(self, entry: ActiveFault) -> None:
        name = entry.fault.backend
        if entry.timer is not None:
            entry.timer.cancel()
        self._injector.heal(entry.fault, self._fleet)
        del self._active[name, entry.kind]
        if isinstance(entry.fault, Pause):
            for other in [item for item in self.entries() if item.fault.backend == name and item.overdue]:
                self._heal(other)

    def _undo(self, fault: Fault) -> None:
        """Heal a partially set fault, as far as possible."""
        with suppress(HarnessError):
            self._injector.heal(fault, self._fleet)

    def _forget_ended(self, fault: Fault) -> None:
        """Remove the faults that ended because `fault` has begun."""
        for entry in [item for item in self.entries() if item.fault.backend == fault.backend]:
            if ends(entry.fault, fault):
                if entry.timer is not None:
                    entry.timer.cancel()
                del self._active[fault.backend, entry.kind]
