"""Carries out the faults of one run in the background: in order on each backend, concurrently across backends.

Setting a fault, verifying it and restarting a process take time. None of this may delay the steps of another backend,
so each backend has its own thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from harness.evidence.history import StepSeen
from harness.live.faults.injector import FaultInjector
from harness.live.fleet import FleetProcess
from harness.scenario.fault_schedule import ends
from harness.scenario.faults import Evict, Fault, Kill, Pause, RequestFault, Restart, Step

SILENCED = (Kill, Restart, Pause)
"""While one of these faults is in force on a backend, its process cannot be queried."""


class LiveTimelineRunner:
    """Begins and heals faults; `observed` holds the steps of the run carried out so far, by position in its timeline.

    `numbers` are the backends' numbers by name, `start_s` is second 0 of the run on CLOCK_MONOTONIC.
    """

    def __init__(self, injector: FaultInjector, fleet: FleetProcess, numbers: dict[str, int], seed: int) -> None:
        self._injector = injector
        self._fleet = fleet
        self._numbers = numbers
        self._seed = seed
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._over: dict[int, threading.Event] = {}
        self._work: list[Future[None]] = []
        self._in_force: dict[str, dict[int, Fault]] = {}
        """By backend and position; each backend's thread uses only its own entry."""
        self.start_s = 0.0
        self.observed: dict[int, StepSeen] = {}

    def begin(self, position: int, fault: Fault) -> None:
        """Set and probe a fault in the background; returns at once."""
        self._over[position] = threading.Event()
        self._submit(fault.backend, self._begin, position, fault)

    def heal(self, position: int, fault: Fault) -> None:
        """Heal a fault in the background and stop its probes; returns at once."""
        self._over[position].set()
        self._submit(fault.backend, self._heal, position, fault)

    def record(self, position: int, step: Step, requested_s: float, effective_s: float | None) -> None:
        """Record when a step was requested and took effect (CLOCK_MONOTONIC; `effective_s` None: it had no effect)."""
        effective = float("nan") if effective_s is None else effective_s - self.start_s
        name, number = type(step).__name__, self._numbers[step.backend]
        self.observed[position] = StepSeen(name, number, requested_s - self.start_s, effective)

    def in_order(self, timeline: Sequence[Step]) -> tuple[StepSeen, ...]:
        """The observed steps, ordered by their times in `timeline`."""
        return tuple(
            self.observed[position] for position in sorted(self.observed, key=lambda item: (timeline[item].at_s, item))
        )

    def check(self) -> None:
        """HarnessError if a completed operation failed. Cancelled ones do not count as failed."""
        for work in self._work:
            if work.done() and not work.cancelled():
                work.result()

    def finish(self) -> None:
        """Wait for all operations; count the requests affected by faults still in force. HarnessError on failure."""
        for work in self._work:
            work.result()
        for backend, in_force in self._in_force.items():
            self._count(backend, [*in_force])

    def close(self) -> None:
        """Cancel pending operations and end the threads."""
        for over in self._over.values():
            over.set()
        for thread in self._threads.values():
            thread.shutdown(cancel_futures=True)

    def _submit(self, backend: str, work: Callable[[int, Fault], None], position: int, fault: Fault) -> None:
        if backend not in self._threads:
            self._threads[backend] = ThreadPoolExecutor(1, thread_name_prefix=f"faults of {backend}")
            self._in_force[backend] = {}
        self._work.append(self._threads[backend].submit(work, position, fault))

    def _begin(self, position: int, fault: Fault) -> None:
        in_force = self._in_force[fault.backend]
        ended = [other for other, began in in_force.items() if ends(began, fault)]
        self._count(fault.backend, ended)
        requested_s = time.monotonic()
        effective_s = self._injector.begin(fault, self._fleet, self._seed, self._over[position])
        for other in ended:
            del in_force[other]
            self._healed(other, effective_s or time.monotonic())
        if not isinstance(fault, Evict):  # it ends at once
            in_force[position] = fault
        self.record(position, fault, requested_s, effective_s)

    def _heal(self, position: int, fault: Fault) -> None:
        if position not in self._in_force[fault.backend]:  # another fault ended it
            return
        self._count(fault.backend, [position])
        self._injector.heal(fault, self._fleet)
        del self._in_force[fault.backend][position]
        self._healed(position, time.monotonic())

    def _healed(self, position: int, at_s: float) -> None:
        self.observed[position] = replace(self.observed[position], healed_s=at_s - self.start_s)

    def _count(self, backend: str, positions: Sequence[int]) -> None:
        """Record how many requests each of these faults has affected, if they are request faults."""
        in_force = self._in_force[backend]
        counted = {position: fault for position in positions if isinstance(fault := in_force[position], RequestFault)}
        if not counted or any(isinstance(fault, SILENCED) for fault in in_force.values()):
            return
        hits = {active["kind"]: active["hits"] for active in self._fleet.faults(backend)}
        for position, fault in counted.items():
            affected = hits.get(fault.kind)
            if isinstance(affected, int):
                self.observed[position] = replace(self.observed[position], hits=affected)
