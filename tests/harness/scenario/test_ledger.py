"""What is in force on a backend: what may begin, what it ends, what heals, and the times of each step."""

from __future__ import annotations

import math
from typing import Any

import pytest

from harness.scenario.faults import Down, Evict, FailingStatus, Fault, Hang, Kill, Latency, Leave, Pause, Restart, Slow
from harness.scenario.ledger import FaultLedger, ends

STATUS, SLOW = FailingStatus("gpu-0", 1.0, 500), Slow("gpu-0", 1.0, 2.0, 0.5)
PAUSE, KILL, DOWN = Pause("gpu-0", 2.0), Kill("gpu-0", 3.0), Down("gpu-0", 2.0)


def ledger(*faults: Fault) -> FaultLedger:
    """A ledger in which these began at their times, numbered from 0."""
    made = FaultLedger()
    for number, fault in enumerate(faults):
        made.begin(number, fault, fault.at_s, fault.at_s + 0.1)
    return made


def numbers(entries: list[Any]) -> list[int]:
    return [entry.number for entry in entries]


def test_what_has_no_end_gives_way_to_the_next_of_its_kind() -> None:
    first, second = FailingStatus("gpu-0", 1.0, 500), FailingStatus("gpu-0", 2.0, 503, for_s=1.0)
    assert ends(first, second) and not ends(second, first)
    found = ledger(first, second)
    assert numbers(found.in_force()) == [1]
    assert found.entry(0).healed_s == found.entry(1).effective_s == 2.1


@pytest.mark.parametrize("end", [KILL, Restart("gpu-0", 3.0)], ids=lambda fault: type(fault).__name__)
def test_what_lives_in_a_process_ends_with_it(end: Fault) -> None:
    before = ledger(STATUS, PAUSE, DOWN, Hang("gpu-1", 1.0))
    assert numbers(before.ended_by(end)) == [0, 1]
    before.begin(4, end, 3.0, 3.5)
    assert numbers(before.in_force("gpu-0")) == [2, 4] and numbers(before.in_force()) == [2, 3, 4]
    assert [before.entry(number).healed_s for number in (0, 1)] == [3.5, 3.5]


def test_an_eviction_is_never_in_force() -> None:
    found = ledger(Evict("gpu-0", 1.0))
    assert found.in_force() == [] and not found.holds(0)
    assert found.refusal(Evict("gpu-0", 2.0)) is None and numbers(found.entries()) == [0]


def test_a_refusal_names_the_fault_in_force() -> None:
    began, why = ledger(STATUS, DOWN).refusal(Latency("gpu-0", 3.0, 0.1)) or (None, "")
    assert began is not None and began.fault == DOWN and why == "no probe could detect it behind that"
    assert ledger(DOWN).refusal(Latency("gpu-1", 3.0, 0.1)) is None


def test_a_pause_blocks_the_heal_of_a_request_fault() -> None:
    paused = ledger(SLOW, DOWN, PAUSE)
    block = paused.blocked_by(SLOW)
    assert block is not None and block.fault == PAUSE
    assert paused.blocked_by(DOWN) is None and paused.blocked_by(Slow("gpu-1", 1.0, 2.0)) is None
    paused.heal(2, 4.0)
    assert paused.blocked_by(SLOW) is None


def test_what_is_overdue_and_what_is_not() -> None:
    found = FaultLedger()
    found.begin(0, SLOW, 1.0, 1.0, heals_s=1.5)
    found.begin(1, DOWN, 2.0, 2.0)
    assert found.overdue("gpu-0", 1.4) == [] == found.overdue("gpu-1", 9.0)
    assert numbers(found.overdue("gpu-0", 1.5)) == [0]


@pytest.mark.parametrize("silence", [PAUSE, KILL])
def test_hits_are_those_of_request_faults_of_a_process_that_answers(silence: Fault) -> None:
    found = ledger(SLOW, DOWN, Hang("gpu-1", 1.0))
    assert numbers(found.countable(found.in_force())) == [0, 2]
    mine = found.entry(0)
    found.begin(3, silence, 4.0, 4.0)
    assert found.countable([mine]) == [] and numbers(found.countable(found.in_force())) == [2]


def test_a_heal_is_once() -> None:
    found = ledger(DOWN)
    assert found.others(DOWN) == () and found.others(KILL) == (DOWN,)
    found.heal(0, 5.0)
    assert not found.holds(0) and found.entry(0).healed_s == 5.0
    with pytest.raises(KeyError):
        found.heal(0, 6.0)


def test_steps_come_in_the_order_in_which_they_were_due() -> None:
    found = ledger(KILL, DOWN)
    found.record(2, Leave("gpu-1", 0.5), 0.5, 0.6)
    found.begin(3, Latency("gpu-1", 2.0, 0.1), 2.0, None)
    assert numbers(found.entries()) == [2, 1, 3, 0]
    assert math.isnan(found.entry(3).effective_s) and found.holds(3), "it is there, although no probe saw it"


def test_an_observer_sees_each_step_recorded_and_healed() -> None:
    seen: list[tuple[str, bool]] = []
    ledger = FaultLedger(lambda entry: seen.append((type(entry.step).__name__, math.isnan(entry.healed_s))))
    ledger.record(0, Leave("gpu-1", 0.5), 0.5, 0.6)
    ledger.begin(1, Hang("gpu-0", 1.0), 1.0, 1.0)
    ledger.begin(2, Kill("gpu-0", 2.0), 2.0, 2.1)
    ledger.heal(2, 3.0)
    assert seen == [("Leave", True), ("Hang", True), ("Hang", False), ("Kill", True), ("Kill", False)]
