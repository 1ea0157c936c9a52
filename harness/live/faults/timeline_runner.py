"""Carries out the faults of one run in the background: in order on each backend, concurrently across backends.

Setting a fault, verifying it and restarting a process take time. None of this may delay the steps of another backend,
so each backend has its own thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from harness.evidence.run_events import Listener, ignore, step_observer
from harness.live.faults.injector import FaultInjector
from harness.live.fleet import FleetProcess
from harness.scenario.faults import Fault, Membership, RequestFault
from harness.scenario.ledger import FaultLedger, LedgerEntry


class LiveTimelineRunner:
    """Begins and heals faults; `ledger` holds the steps carried out so far, in seconds of the run.

    `start_s` is second 0 of the run on CLOCK_MONOTONIC. `listener` is told of each step in force and healed.
    """

    def __init__(self, injector: FaultInjector, fleet: FleetProcess, seed: int, listener: Listener = ignore) -> None:
        self._injector = injector
        self._fleet = fleet
        self._seed = seed
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._over: dict[int, threading.Event] = {}
        self._work: list[Future[None]] = []
        self.start_s = 0.0
        self.ledger = FaultLedger(step_observer(listener, lambda: 0.0))
        """Each backend's thread writes only of its own backend."""

    def begin(self, position: int, fault: Fault) -> None:
        """Set and probe a fault in the background; returns at once."""
        self._over[position] = threading.Event()
        self._submit(fault.backend, self._begin, position, fault)

    def heal(self, position: int, fault: Fault) -> None:
        """Heal a fault in the background and stop its probes; returns at once."""
        self._over[position].set()
        self._submit(fault.backend, self._heal, position, fault)

    def record(self, position: int, change: Membership, asked_s: float, effective_s: float) -> None:
        """Record when a membership change was requested and took effect (CLOCK_MONOTONIC)."""
        self.ledger.record(position, change, asked_s - self.start_s, effective_s - self.start_s)

    def check(self) -> None:
        """HarnessError if a completed operation failed. Cancelled ones do not count as failed."""
        for work in self._work:
            if work.done() and not work.cancelled():
                work.result()

    def finish(self) -> None:
        """Wait for all operations; count the requests affected by faults still in force. HarnessError on failure."""
        for work in self._work:
            work.result()
        for backend in self._threads:
            self._count(backend, self.ledger.in_force(backend))

    def close(self) -> None:
        """Cancel pending operations and end the threads."""
        for over in self._over.values():
            over.set()
        for thread in self._threads.values():
            thread.shutdown(cancel_futures=True)

    def _submit(self, backend: str, work: Callable[[int, Fault], None], position: int, fault: Fault) -> None:
        if backend not in self._threads:
            self._threads[backend] = ThreadPoolExecutor(1, thread_name_prefix=f"faults of {backend}")
        self._work.append(self._threads[backend].submit(work, position, fault))

    def _begin(self, position: int, fault: Fault) -> None:
        self._count(fault.backend, self.ledger.ended_by(fault))
        asked_s, others = self._now_s(), self.ledger.others(fault)
        effective_s = self._injector.begin(fault, self._fleet, others, self._seed, self._over[position])
        self.ledger.begin(position, fault, asked_s, None if effective_s is None else effective_s - self.start_s)

    def _heal(self, position: int, fault: Fault) -> None:
        if not self.ledger.holds(position):  # another fault ended it
            return
        self._count(fault.backend, [self.ledger.entry(position)])
        self._injector.heal(fault, self._fleet, self.ledger.others(fault))
        self.ledger.heal(position, self._now_s())

    def _count(self, backend: str, entries: Sequence[LedgerEntry]) -> None:
        """Record how many requests each of these faults of a backend has affected, if it counts them."""
        counted = self.ledger.countable(entries)
        hits = {active["kind"]: active["hits"] for active in self._fleet.faults(backend)} if counted else {}
        for entry in counted:
            affected = hits.get(entry.step.kind) if isinstance(entry.step, RequestFault) else None
            if isinstance(affected, int):
                entry.hits = affected

    def _now_s(self) -> float:
        return time.monotonic() - self.start_s
