"""The order of a timeline, and the conflicting pairs of faults on one backend."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest

from harness.chaos.fault_plans import FAULT_PLANS
from harness.chaos.swarm import random_fault_plan
from harness.scenario.fault_schedule import RESTART_S, conflict, schedule
from harness.scenario.faults import (
    Blackhole,
    Down,
    Evict,
    FailingStatus,
    Hang,
    Kill,
    Latency,
    Leave,
    LimitData,
    Pause,
    ProcessFault,
    Reset,
    Restart,
    Slow,
    Step,
    Timeout,
    TransportFault,
)
from harness.scenario.ledger import clash
from tests.harness.fault_effects import sample

NAMES = ("gpu-0", "gpu-1", "gpu-2")
PROBED = (*get_args(ProcessFault), *get_args(TransportFault))
FAULTS: tuple[Any, ...] = tuple(replace(sample(kind), at_s=1.0, for_s=2.0) for kind in (*PROBED, Slow))
TOGETHER: dict[type[Any], set[type[Any]]] = {
    Kill: set(),
    Restart: set(),
    Pause: {Kill, Restart, Down, Reset},
    Down: {Kill, Restart, Pause, Slow},
    Reset: {Kill, Restart, Pause, Down, Slow},
    Blackhole: {Kill, Restart, Pause, Down, Slow},
    Timeout: {Kill, Restart, Pause, Down, Slow},
    LimitData: {Kill, Restart, Pause, Down, Reset, Blackhole, Timeout, Slow},
    Slow: {type(fault) for fault in FAULTS} - {Slow},
}
TOGETHER |= {kind: {type(fault) for fault in FAULTS} - {kind} for kind in PROBED if kind not in TOGETHER}
"""For a fault in force, the faults that may begin on the same backend. `Slow` stands for all request faults."""


def order(*steps: Step, restart_s: float = 0.0) -> list[tuple[float, int, bool]]:
    """Time, position and whether it heals, of each event."""
    return [(due.at_s, due.position, due.heal) for due in schedule(steps, restart_s)]


def test_steps_and_heals_come_in_order_of_time() -> None:
    steps = (Down("gpu-0", 2.0, 1.0), Leave("gpu-1", 2.5), Kill("gpu-1", 1.0))
    assert order(*steps) == [(1.0, 2, False), (2.0, 0, False), (2.5, 1, False), (3.0, 0, True)]


def test_what_ends_does_so_before_the_next_begins_even_where_rounding_says_otherwise() -> None:
    steps = (Down("gpu-0", 1.1, 2.2), Down("gpu-0", 3.3, 1.0))
    assert 1.1 + 2.2 > 3.3
    assert [(position, heal) for _, position, heal in order(*steps)] == [
        (0, False),
        (0, True),
        (1, False),
        (1, True),
    ]
    times_s = [at_s for at_s, _, _ in order(*steps)]
    assert times_s == sorted(times_s)
    assert conflict(steps) == ""


def test_nothing_heals_before_it_began() -> None:
    assert order(Kill("gpu-0", 1.0, 0.0), Down("gpu-0", 1.0)) == [(1.0, 0, False), (1.0, 0, True), (1.0, 1, False)]


def test_a_restart_takes_its_time() -> None:
    assert order(Restart("gpu-0", 1.0, 0.2)) == [(1.0, 0, False), (1.2, 0, True)]
    assert order(Restart("gpu-0", 1.0, 0.2), restart_s=0.5) == [(1.0, 0, False), (1.5, 0, True)]
    assert order(Restart("gpu-0", 1.0, 0.7), restart_s=0.5) == [(1.0, 0, False), (1.7, 0, True)]


@pytest.mark.parametrize(("began", "fault"), [*product(FAULTS, FAULTS)], ids=lambda fault: type(fault).__name__)
def test_which_faults_go_together(began: Any, fault: Any) -> None:
    fine = type(fault) in TOGETHER[type(began)]
    later = replace(fault, at_s=1.5, for_s=0.2)
    assert (clash(began, later) == "") == fine
    assert (conflict((began, later)) == "") == fine
    assert conflict((began, replace(later, at_s=3.0))) == "", "one after the other is fine"
    assert conflict((began, replace(later, backend="gpu-1"))) == ""


def test_a_conflict_is_one_line_that_names_both() -> None:
    steps = (Down("gpu-1", 1.0, 2.0), Latency("gpu-1", 1.3, 0.1))
    assert conflict(steps) == (
        "Latency of gpu-1 at 1.3 s cannot begin during Down of gpu-1 at 1 s: no probe could detect it behind that"
    )


def test_a_stopped_process_takes_no_heal() -> None:
    steps = (Slow("gpu-1", 1.0, 10.0, 1.0), Pause("gpu-1", 1.5, 1.0))
    assert conflict(steps) == (
        "Slow of gpu-1 at 1 s cannot heal at 2 s, during Pause of gpu-1 at 1.5 s: a stopped process takes no change"
    )
    assert conflict((replace(steps[0], for_s=2.0), steps[1])) == ""
    assert conflict((*steps, Kill("gpu-1", 1.8, 0.1))) == "", "both ended with the process"


def test_a_process_takes_nothing_until_it_is_back() -> None:
    assert conflict((Restart("gpu-0", 1.0), Hang("gpu-0", 1.0 + RESTART_S / 2)))
    assert conflict((Restart("gpu-0", 1.0), Hang("gpu-0", 1.0 + RESTART_S))) == ""
    assert conflict((Kill("gpu-0", 1.0), Hang("gpu-0", 9.0)))


def test_what_has_no_end_gives_way_to_the_next_of_its_kind() -> None:
    first, second = FailingStatus("gpu-0", 1.0, 500), FailingStatus("gpu-0", 2.0, 503, for_s=1.0)
    assert conflict((first, second)) == ""
    assert conflict((second, replace(first, at_s=2.5)))
    assert conflict((Evict("gpu-0", 1.0), Evict("gpu-0", 2.0))) == ""
    assert conflict((Latency("gpu-0", 1.0, 0.1), Latency("gpu-0", 2.0, 0.1))), "but only where the mock says so"


def test_what_the_fault_plans_do_goes_together() -> None:
    assert FAULT_PLANS
    for make in FAULT_PLANS.values():
        assert conflict(make(NAMES, 1.0, 3.0)) == ""
    assert [conflict(random_fault_plan(seed, NAMES, 6.0)) for seed in range(300)] == [""] * 300
