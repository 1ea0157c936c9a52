"""Faults in the background: in order on one backend, concurrent across backends, and no failure is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from math import isnan
from typing import cast

import pytest

from harness.live.faults.injector import FaultInjector
from harness.live.faults.timeline_runner import LiveTimelineRunner
from harness.live.fleet import FleetProcess
from harness.scenario.faults import Down, Evict, FailingStatus, Fault, Join, Kill, Latency, Pause, Slow
from harness.scenario.model import HarnessError
from tests.harness.live.helpers import PATIENCE_S, until

FLEET = cast(FleetProcess, None)
ONE, OTHER = Down("gpu-0", 1.0, 0.5), Down("gpu-1", 1.0)


class FakeInjector:
    """An injector whose faults take effect when `go` is set, or end when `over` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.log: list[str] = []
        self.failing = False

    def begin(
        self, fault: Fault, fleet: FleetProcess, others: Sequence[Fault], seed: int, over: threading.Event
    ) -> float | None:
        """As the fault injector's."""
        self.log.append(f"begin {fault.backend}")
        if self.failing:
            raise HarnessError("no fault proxy")
        until(lambda: self.go.is_set() or over.is_set())
        return time.monotonic() if self.go.is_set() else None

    def heal(self, fault: Fault, fleet: FleetProcess, others: Sequence[Fault]) -> None:
        """As the fault injector's."""
        self.log.append(f"heal {fault.backend}")


@pytest.fixture
def injector() -> FakeInjector:
    return FakeInjector()


@pytest.fixture
def steps(injector: FakeInjector) -> Iterator[LiveTimelineRunner]:
    threads = threading.active_count()
    made = LiveTimelineRunner(cast(FaultInjector, injector), FLEET, 7)
    made.start_s = time.monotonic()
    yield made
    made.close()
    until(lambda: threading.active_count() == threads)


def test_backends_do_not_wait_for_each_other_and_steps_of_one_do(
    steps: LiveTimelineRunner, injector: FakeInjector
) -> None:
    steps.begin(0, ONE)
    steps.begin(1, Latency("gpu-0", 1.0, 0.1))
    steps.begin(2, OTHER)
    until(lambda: len(injector.log) == 2)
    assert sorted(injector.log) == ["begin gpu-0", "begin gpu-1"]
    assert steps.ledger.entries() == []
    injector.go.set()
    steps.finish()
    assert len(injector.log) == 3
    assert steps.ledger.entry(1).asked_s >= steps.ledger.entry(0).effective_s


def test_what_is_healed_is_probed_no_more(steps: LiveTimelineRunner, injector: FakeInjector) -> None:
    steps.begin(0, ONE)
    until(lambda: injector.log)
    steps.heal(0, ONE)
    steps.finish()
    assert injector.log == ["begin gpu-0", "heal gpu-0"]
    assert isnan(steps.ledger.entry(0).effective_s)
    assert 0.0 <= steps.ledger.entry(0).asked_s <= steps.ledger.entry(0).healed_s < PATIENCE_S


def test_a_membership_change_is_recorded_beside_faults(steps: LiveTimelineRunner, injector: FakeInjector) -> None:
    injector.go.set()
    steps.begin(1, OTHER)
    steps.begin(0, ONE)
    steps.finish()
    steps.record(2, Join("gpu-1", 0.5), steps.start_s + 0.5, steps.start_s + 0.6)
    join, *_ = entries = steps.ledger.entries()
    assert [entry.number for entry in entries] == [2, 0, 1], "in the order in which they were due"
    assert (join.asked_s, join.effective_s) == pytest.approx((0.5, 0.6))
    assert isnan(join.healed_s)


def test_a_failure_is_told_by_the_next_look_and_in_the_end(steps: LiveTimelineRunner, injector: FakeInjector) -> None:
    injector.failing = True
    steps.check()
    steps.begin(0, ONE)

    def message() -> bool:
        try:
            steps.check()
        except HarnessError:
            return True
        return False

    until(message)
    with pytest.raises(HarnessError, match=r"^no fault proxy$"):
        steps.finish()


def test_closing_gives_up_what_waits(steps: LiveTimelineRunner, injector: FakeInjector) -> None:
    steps.begin(0, ONE)
    until(lambda: injector.log)
    steps.begin(1, Latency("gpu-0", 1.0, 0.1))
    steps.close()
    assert injector.log == ["begin gpu-0"]
    steps.check()  # what was given up has not failed


# --- requests affected by request faults ------------------------------------------------------------------


class FakeFleet:
    """A fleet whose faults report as many affected requests as there were queries."""

    def __init__(self) -> None:
        self.asked = 0

    def faults(self, backend: str) -> list[dict[str, object]]:
        """As the fleet's."""
        self.asked += 1
        return [{"kind": kind, "hits": self.asked} for kind in ("status", "slow", "evict")]


@pytest.fixture
def counted(injector: FakeInjector) -> Iterator[LiveTimelineRunner]:
    injector.go.set()
    made = LiveTimelineRunner(cast(FaultInjector, injector), cast(FleetProcess, FakeFleet()), 7)
    made.start_s = time.monotonic()
    yield made
    made.close()


STATUS, SLOW, KILL, PAUSE = (
    FailingStatus("gpu-0", 0.0, 500),
    Slow("gpu-0", 0.0, 2.0),
    Kill("gpu-0", 0.0),
    Pause("gpu-0", 0),
)


def test_hits_are_read_at_the_heal_and_at_the_end(counted: LiveTimelineRunner, injector: FakeInjector) -> None:
    counted.begin(0, STATUS)
    counted.begin(1, SLOW)
    counted.begin(2, Evict("gpu-0", 0.0))
    counted.heal(0, STATUS)
    counted.finish()
    assert [counted.ledger.entry(position).hits for position in range(3)] == [1, 2, None]
    assert injector.log.count("heal gpu-0") == 1


@pytest.mark.parametrize("end", [KILL, FailingStatus("gpu-0", 1.0, 503)], ids=lambda fault: type(fault).__name__)
def test_what_another_ends_is_counted_before_and_healed_no_more(
    counted: LiveTimelineRunner, injector: FakeInjector, end: Fault
) -> None:
    counted.begin(0, STATUS)
    counted.begin(1, end)
    counted.heal(0, STATUS)
    counted.finish()
    ended, other = counted.ledger.entry(0), counted.ledger.entry(1)
    assert (ended.hits, ended.healed_s) == (1, other.effective_s)
    assert injector.log == ["begin gpu-0", "begin gpu-0"]


def test_a_stopped_process_is_not_asked(counted: LiveTimelineRunner) -> None:
    counted.begin(0, STATUS)
    counted.begin(1, PAUSE)
    counted.finish()
    counted.begin(2, KILL)
    counted.finish()
    assert counted.ledger.entry(0).hits is None
    assert counted.ledger.entry(0).healed_s == counted.ledger.entry(1).healed_s == counted.ledger.entry(2).effective_s
