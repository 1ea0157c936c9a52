"""The faults of one run, carried out beside its timeline: in order on each backend, and backends beside each other.

To set a fault, to see it bite and to start a process again takes a while. None of that may make the steps of another
backend late, so each backend has a thread of its own.
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
from harness.scenario.faults import Evict, Fault, Kill, Pause, RequestFault, Restart, Step, as_mock

SILENCED = (Kill, Restart, Pause)
"""While one of them is in force on a backend, its process can't be asked."""


class LiveTimelineRunner:
    """Begins and heals faults; `seen` are all steps of the run that were carried out, by position in its timeline.

    `numbers` are the backends' numbers by name, `start_s` is second 0 of the run on CLOCK_MONOTONIC.
    """

    def __init__(self, way: FaultInjector, fleet: FleetProcess, numbers: dict[str, int], seed: int) -> None:
        self._way = way
        self._fleet = fleet
        self._numbers = numbers
        self._seed = seed
        self._lanes: dict[str, ThreadPoolExecutor] = {}
        self._over: dict[int, threading.Event] = {}
        self._work: list[Future[None]] = []
        self._in_force: dict[str, dict[int, Fault]] = {}
        """By backend and position; each lane looks after its own."""
        self.start_s = 0.0
        self.seen: dict[int, StepSeen] = {}

    def begin(self, position: int, fault: Fault) -> None:
        """Have a fault set and probed; returns at once."""
        self._over[position] = threading.Event()
        self._submit(fault.backend, self._begin, position, fault)

    def heal(self, position: int, fault: Fault) -> None:
        """Have a fault taken back; returns at once. It is probed no more."""
        self._over[position].set()
        self._submit(fault.backend, self._heal, position, fault)

    def note(self, position: int, step: Step, asked_s: float, effective_s: float | None) -> None:
        """A step was asked for and took effect then (CLOCK_MONOTONIC; None: it never did)."""
        effective = float("nan") if effective_s is None else effective_s - self.start_s
        name, number = type(step).__name__, self._numbers[step.backend]
        self.seen[position] = StepSeen(name, number, asked_s - self.start_s, effective)

    def in_order(self, timeline: Sequence[Step]) -> tuple[StepSeen, ...]:
        """What was seen, in the order in which the steps of `timeline` were due."""
        return tuple(
            self.seen[position] for position in sorted(self.seen, key=lambda item: (timeline[item].at_s, item))
        )

    def check(self) -> None:
        """HarnessError if one that is done with failed. What was given up has not failed."""
        for work in self._work:
            if work.done() and not work.cancelled():
                work.result()

    def finish(self) -> None:
        """Wait until all is done, and count what is still in force has struck; HarnessError if something failed."""
        for work in self._work:
            work.result()
        for backend, in_force in self._in_force.items():
            self._count(backend, [*in_force])

    def close(self) -> None:
        """Give up what waits and end the threads."""
        for over in self._over.values():
            over.set()
        for lane in self._lanes.values():
            lane.shutdown(cancel_futures=True)

    def _submit(self, backend: str, work: Callable[[int, Fault], None], position: int, fault: Fault) -> None:
        if backend not in self._lanes:
            self._lanes[backend] = ThreadPoolExecutor(1, thread_name_prefix=f"faults of {backend}")
            self._in_force[backend] = {}
        self._work.append(self._lanes[backend].submit(work, position, fault))

    def _begin(self, position: int, fault: Fault) -> None:
        in_force = self._in_force[fault.backend]
        ended = [place for place, began in in_force.items() if ends(began, fault)]
        self._count(fault.backend, ended)
        asked_s = time.monotonic()
        effective_s = self._way.begin(fault, self._fleet, self._seed, self._over[position])
        for place in ended:
            del in_force[place]
            self._healed(place, effective_s or time.monotonic())
        if not isinstance(fault, Evict):  # it is over at once
            in_force[position] = fault
        self.note(position, fault, asked_s, effective_s)

    def _heal(self, position: int, fault: Fault) -> None:
        if position not in self._in_force[fault.backend]:  # it ended when another began
            return
        self._count(fault.backend, [position])
        self._way.heal(fault, self._fleet)
        del self._in_force[fault.backend][position]
        self._healed(position, time.monotonic())

    def _healed(self, position: int, at_s: float) -> None:
        self.seen[position] = replace(self.seen[position], healed_s=at_s - self.start_s)

    def _count(self, backend: str, positions: Sequence[int]) -> None:
        """Note how many requests these faults have struck, where they are faults of single requests."""
        in_force = self._in_force[backend]
        counted = {place: fault for place in positions if isinstance(fault := in_force[place], RequestFault)}
        if not counted or any(isinstance(fault, SILENCED) for fault in in_force.values()):
            return
        hits = {active["kind"]: active["hits"] for active in self._fleet.faults(backend)}
        for place, fault in counted.items():
            struck = hits.get(as_mock(fault, 0)["kind"])
            if isinstance(struck, int):
                self.seen[place] = replace(self.seen[place], hits=struck)
