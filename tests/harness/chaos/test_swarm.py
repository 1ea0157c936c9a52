"""Random fault plans: seeded, healed in time, without conflicts, and different from each other."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import get_args

import pytest

from harness.chaos.swarm import KINDS, MEMBERSHIP, random_fault_plan
from harness.scenario.faults import (
    Drain,
    Garbage,
    Join,
    Kill,
    Leave,
    Pause,
    RequestFault,
    Restart,
    Step,
    TransportFault,
    Truncated,
    Weigh,
    WrongLength,
)

FOUR = ("gpu-0", "gpu-1", "gpu-2", "gpu-3")
AT_S, SECONDS = 0.75, 4.0
SEEDS = range(300)
ALONE = (Kill, Pause, Restart, Leave, Drain, Weigh)


def drawn(seed: int, without: tuple[str, ...] = (), spare_one: bool = True) -> tuple[Step, ...]:
    return random_fault_plan(seed, FOUR, SECONDS, at_s=AT_S, without=without, spare_one=spare_one)


def spans(steps: tuple[Step, ...]) -> list[tuple[Step, float, float]]:
    """Each fault with its start and end; a leave and its join count as one."""
    found: list[tuple[Step, float, float]] = []
    for step in steps:
        if isinstance(step, Join) or (isinstance(step, Weigh) and step.weight == 1):
            continue
        if isinstance(step, Leave | Drain | Weigh):
            back = [
                s for s in steps if s.backend == step.backend and s.at_s > step.at_s and isinstance(s, Join | Weigh)
            ]
            found.append((step, step.at_s, min(s.at_s for s in back)))
        else:
            found.append((step, step.at_s, step.at_s + (getattr(step, "for_s", None) or 0.0)))
    return found


def test_a_seed_gives_the_same_steps_and_another_one_others() -> None:
    assert drawn(7) == drawn(7)
    assert len({drawn(seed) for seed in range(20)}) == 20


@pytest.mark.parametrize("seed", range(40))
def test_all_is_over_in_time_and_nothing_is_in_the_way_of_anything(seed: int) -> None:
    steps = drawn(seed)
    assert steps and list(steps) == sorted(steps, key=lambda step: step.at_s)
    for step, start_s, end_s in spans(steps):
        assert AT_S <= start_s <= end_s <= AT_S + SECONDS + 1e-9, step
    for (one, one_s, one_end_s), (two, two_s, two_end_s) in combinations(spans(steps), 2):
        if one.backend != two.backend or one_end_s < two_s or two_end_s < one_s:
            continue
        assert not isinstance(one, ALONE) and not isinstance(two, ALONE), (one, two)
        assert isinstance(one, TransportFault) != isinstance(two, TransportFault), (one, two)


@pytest.mark.parametrize("seed", range(40))
def test_some_backend_is_untouched_at_any_time(seed: int) -> None:
    faults = spans(drawn(seed))
    for _, at_s, _ in faults:
        assert len({step.backend for step, start_s, end_s in faults if start_s <= at_s <= end_s}) < len(FOUR)


def test_unless_asked() -> None:
    """Without `spare_one` two backends are both faulty at some time."""
    both = 0
    for seed in range(60):
        faults = spans(random_fault_plan(seed, FOUR[:2], SECONDS, spare_one=False))
        both += any(
            len({step.backend for step, start_s, end_s in faults if start_s <= at_s <= end_s}) == 2
            for _, at_s, _ in faults
        )
    assert both > 10


def test_a_new_process_is_given_time() -> None:
    """A dead backend accepts no fault: the fault after a restart begins a second later."""
    followed = 0
    for seed in SEEDS:
        faults = spans(drawn(seed))
        for died, _, end_s in faults:
            later = [at_s for step, at_s, _ in faults if step.backend == died.backend and at_s > end_s]
            if isinstance(died, Kill | Restart | Pause) and later:
                followed += 1
                assert min(later) >= end_s + 0.99
    assert followed > 5


def test_swarms_differ() -> None:
    """Every kind occurs for some seed; no plan has many kinds, and some have hardly more than one."""
    observed: Counter[str] = Counter()
    kinds = []
    for seed in SEEDS:
        names = {type(step).__name__ for step in drawn(seed)} - {"Join"}
        observed.update(names)
        kinds.append(len(names))
    assert len(observed) == len(KINDS)
    assert min(kinds) <= 2 and max(kinds) <= 10


def test_what_is_off_is_never_drawn() -> None:
    assert not any(isinstance(step, Kill | Leave | Join | Drain | Weigh)
                   for seed in SEEDS for step in drawn(seed, ("kill", *MEMBERSHIP)))  # fmt: skip
    only = tuple(name for name in KINDS if name != "reset")
    assert {type(step).__name__ for seed in range(20) for step in drawn(seed, only)} == {"Reset"}


def test_what_would_spoil_an_answer_is_no_kind() -> None:
    """All faults of the timeline except those after which an answer cannot be matched to its request."""
    made = {type(step).__name__ for seed in SEEDS for step in drawn(seed)}
    every = {kind.__name__ for kind in get_args(Step)}
    assert every - made == {Garbage.__name__, Truncated.__name__, WrongLength.__name__}
    assert {kind.__name__ for kind in get_args(RequestFault)} <= every


def test_wrong_names_are_told() -> None:
    with pytest.raises(ValueError, match="unknown kinds kil"):
        drawn(1, ("kil",))
    with pytest.raises(ValueError, match="no kind of fault is left"):
        drawn(1, tuple(KINDS))
