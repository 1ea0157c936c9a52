"""The faults in force in a running environment: set on demand, verified by a probe, healed on time or on request.

Operations on one backend are serialized; those on different backends do not wait for each other.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from harness.evidence.run_events import Listener, ignore, step_observer
from harness.live.faults.command_words import describe, duration, kind_of
from harness.live.faults.injector import FaultInjector
from harness.live.fleet import FleetProcess
from harness.scenario.faults import Evict, Fault, Kill, Pause, ProcessFault, Restart
from harness.scenario.ledger import FaultLedger, LedgerEntry
from harness.scenario.model import ClaimsError, HarnessError, SteelyardError


class ActiveFaults:
    """The faults in force. Times are on CLOCK_MONOTONIC.

    `failed` is the error of a scheduled heal, which has no caller. `listener` is told of each fault in force and
    healed, in seconds since this object was made.
    """

    def __init__(self, injector: FaultInjector, fleet: FleetProcess, seed: int, listener: Listener = ignore) -> None:
        self._injector = injector
        self._fleet = fleet
        self._seed = seed
        start_s = time.monotonic()
        self._ledger = FaultLedger(step_observer(listener, lambda: start_s))
        self._numbers = itertools.count()
        self._timers: dict[int, threading.Timer] = {}
        self._locks: dict[str, threading.RLock] = {}
        self._closed = False
        self.failed: SteelyardError | None = None

    def rows(self, now_s: float) -> list[dict[str, Any]]:
        """All faults in force, oldest first.

        Each is a row: backend, kind, told (description), seconds in force, seconds left (None: until cleared).
        """
        return [
            {
                "backend": entry.fault.backend,
                "kind": kind_of(entry.fault),
                "told": describe(entry.fault),
                "since_s": now_s - entry.effective_s,
                "heals_in_s": None if entry.heals_s is None else max(0.0, entry.heals_s - now_s),
            }
            for entry in sorted(self._ledger.in_force(), key=lambda entry: entry.effective_s)
        ]

    def ended(self) -> Mapping[str, float]:
        """When (CLOCK_MONOTONIC) a fault last killed or restarted the process of each backend."""
        ends = [entry for entry in self._ledger.entries() if isinstance(entry.step, Kill | Restart)]
        return {entry.step.backend: entry.effective_s for entry in sorted(ends, key=lambda entry: entry.effective_s)}

    def add(self, fault: Fault) -> tuple[bool, str]:
        """Set a fault; returns whether a probe observed its effect, and a line that reports it.

        ClaimsError if it conflicts with a fault in force, HarnessError if it cannot be set.
        """
        name, kind = fault.backend, kind_of(fault)
        with self._lock(name):
            self._check(fault)
            requested_s = time.monotonic()
            ended = self._ledger.ended_by(fault)
            try:
                effective_s = self._injector.begin(fault, self._fleet, self._ledger.others(fault), self._seed)
            except HarnessError:
                self._undo(fault, ended)
                raise
            if effective_s is None:
                self._undo(fault, ended)
                return False, f"{kind} on {name} never took effect: no probe saw it, so it was taken back"
            heals_s = None if isinstance(fault, Evict) or fault.for_s is None else effective_s + fault.for_s
            number = next(self._numbers)
            self._ledger.begin(number, fault, requested_s, effective_s, heals_s)
            self._forget_timers(ended)
            message = f"{kind} on {name} in force after {duration(effective_s - requested_s)}"
            if isinstance(fault, Evict):  # takes effect once
                self._fleet.clear_fault(fault)
                return True, message
            if fault.for_s is None or heals_s is None:
                return True, f"{message}, until: steelyard fault clear {name} {kind}"
            timer = threading.Timer(max(0.0, heals_s - time.monotonic()), self._due, (self._ledger.entry(number),))
            timer.daemon = True
            self._timers[number] = timer
            timer.start()
            return True, f"{message}, heals {f'in {duration(fault.for_s)}' if fault.for_s else 'at once'}"

    def clear(self, backend: str | None, kind: str | None) -> list[str]:
        """Heal faults in force, of one backend or kind if given; returns a line for each. HarnessError on failure."""
        selected = [entry for entry in self._ledger.in_force(backend) if kind in (None, kind_of(entry.fault))]
        lines = []
        # Process faults first: a paused process accepts no other change.
        for entry in sorted(selected, key=lambda item: not isinstance(item.fault, ProcessFault)):
            name = entry.fault.backend
            with self._lock(name):
                if not self._ledger.holds(entry.number):
                    continue  # it has healed in the meantime
                if self._ledger.blocked_by(entry.fault):
                    raise ClaimsError(f"{name} is paused and takes no change: steelyard fault clear {name} pause first")
                self._heal(entry)
                lines.append(f"{kind_of(entry.fault)} on {name} cleared")
        return lines

    def close(self) -> None:
        """Cancel scheduled heals; faults in force end with the environment."""
        self._closed = True
        for timer in list(self._timers.values()):
            timer.cancel()
            if timer is not threading.current_thread():
                timer.join()

    def _lock(self, name: str) -> threading.RLock:
        """The lock that serializes the faults of one backend; created atomically: two threads may ask at once."""
        return self._locks.setdefault(name, threading.RLock())

    def _check(self, fault: Fault) -> None:
        if self._closed:
            raise ClaimsError("steelyard up is ending")
        if refusal := self._ledger.refusal(fault):
            name, (began, why) = fault.backend, refusal
            other = kind_of(began.fault)
            raise ClaimsError(
                f"{other} is in force on {name}, and {kind_of(fault)} does not go with it: {why}; "
                f"steelyard fault clear {name} {other} first"
            )

    def _due(self, entry: LedgerEntry) -> None:
        """Heal a fault whose duration has ended; after a pause, if there is one. Runs in a timer thread."""
        with self._lock(entry.fault.backend):
            if self._closed or not self._ledger.holds(entry.number) or self._ledger.blocked_by(entry.fault):
                return
            try:
                self._heal(entry)
            except SteelyardError as error:
                self.failed = error

    def _heal(self, entry: LedgerEntry) -> None:
        if timer := self._timers.get(entry.number):
            timer.cancel()
        self._injector.heal(entry.fault, self._fleet, self._ledger.others(entry.fault))
        self._ledger.heal(entry.number, time.monotonic())
        self._forget_timers([entry])  # only now: `close` waits for a heal that goes on
        if isinstance(entry.fault, Pause):
            for other in self._ledger.overdue(entry.fault.backend, time.monotonic()):
                self._heal(other)

    def _undo(self, fault: Fault, ended: list[LedgerEntry]) -> None:
        """Heal a partially set fault, as far as possible. The faults that it was to end count as ended."""
        for entry in ended:
            self._ledger.heal(entry.number, time.monotonic())
        self._forget_timers(ended)
        with suppress(HarnessError):
            self._injector.heal(fault, self._fleet, self._ledger.others(fault))

    def _forget_timers(self, entries: list[LedgerEntry]) -> None:
        """Cancel the scheduled heals of these faults."""
        for entry in entries:
            if timer := self._timers.pop(entry.number, None):
                timer.cancel()
