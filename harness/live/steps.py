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

from harness.history import StepSeen
from harness.live.faults import FaultWay
from harness.live.fleet import Fleet
from harness.timeline import Fault, Step


class Steps:
    """Begins and heals faults; `seen` are all steps of the run that were carried out, by position in its timeline.

    `numbers` are the backends' numbers by name, `start_s` is second 0 of the run on CLOCK_MONOTONIC.
    """

    def __init__(self, way: FaultWay, fleet: Fleet, numbers: dict[str, int], seed: int) -> None:
        self._way = way
        self._fleet = fleet
        self._numbers = numbers
        self._seed = seed
        self._lanes: dict[str, ThreadPoolExecutor] = {}
        self._over: dict[int, threading.Event] = {}
        self._work: list[Future[None]] = []
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
        """Wait until all is done; HarnessError if something failed."""
        for work in self._work:
            work.result()

    def close(self) -> None:
        """Give up what waits and end the threads."""
        for over in self._over.values():
            over.set()
        for lane in self._lanes.values():
            lane.shutdown(cancel_futures=True)

    def _submit(self, backend: str, work: Callable[[int, Fault], None], position: int, fault: Fault) -> None:
        if backend not in self._lanes:
            self._lanes[backend] = ThreadPoolExecutor(1, thread_name_prefix=f"faults of {backend}")
        self._work.append(self._lanes[backend].submit(work, position, fault))

    def _begin(self, position: int, fault: Fault) -> None:
        asked_s = time.monotonic()
        effective_s = self._way.begin(fault, self._fleet, self._seed, self._over[position])
        self.note(position, fault, asked_s, effective_s)

    def _heal(self, position: int, fault: Fault) -> None:
        self._way.heal(fault, self._fleet)
        self.seen[position] = replace(self.seen[position], healed_s=time.monotonic() - self.start_s)
