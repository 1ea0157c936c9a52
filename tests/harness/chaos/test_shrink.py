"""The shrinker: on rules with a known smallest failing scenario, and on a balancer that fails after a reset."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from harness.chaos.scenario_text import from_json, to_python
from harness.chaos.shrink import FEWEST_REQUESTS, SHORTEST_S, Shrunk, shrink
from harness.judge import Judge
from harness.property.verdict import Outcome
from harness.scenario.fault_schedule import conflict
from harness.scenario.faults import Down, Join, Kill, Latency, Leave, NotReady, Pause, Reset, Slow, Step
from harness.scenario.model import Chats, Scenario, World
from harness.scenario.text_form import to_json
from harness.sim.world import play
from harness.targets.python import PythonTarget
from harness.targets.reference import ReferenceTarget
from suites.chaos.properties import under_any
from suites.chaos.scenarios import under

STEPS: tuple[Step, ...] = (
    Latency("gpu-0", 0.75, 0.02, 1.0),
    Slow("gpu-2", 0.8, 10.0, 0.5),
    Down("gpu-1", 1.0, 0.3),
    Reset("gpu-3", 1.4, 0.6),
    NotReady("gpu-2", 1.5, 0.4),
    Kill("gpu-0", 1.9, 0.4),
)
FULL = under("random", STEPS, 4, ReferenceTarget().claims)
SEED = 3


def kinds(scenario: Scenario) -> list[str]:
    return [type(step).__name__ for step in scenario.timeline]


def requests(scenario: Scenario) -> int:
    return sum(stream.requests for stream in scenario.load.streams)


def test_one_step_is_enough() -> None:
    found = shrink(FULL, lambda scenario: "Reset" in kinds(scenario))
    assert kinds(found.scenario) == ["Reset"] and not found.cut_short
    assert requests(found.scenario) <= 2 * FEWEST_REQUESTS
    assert found.scenario.backends == 2 and found.scenario.timeline[0].backend == "gpu-0"
    assert len(found.scenario.load.streams) == 1
    assert found.scenario.timeline[0].at_s < 0.1


def test_two_steps_that_need_each_other() -> None:
    found = shrink(FULL, lambda scenario: {"Slow", "Kill"} <= set(kinds(scenario)) and requests(scenario) >= 100)
    assert kinds(found.scenario) == ["Slow", "Kill"]
    assert 100 <= requests(found.scenario) < 120


def test_nobody_is_left_without_members_who_had_some() -> None:
    """All joins but one can be removed: without a member every balancer fails."""
    steps: list[Step] = []
    for number in range(4):
        name = f"gpu-{number}"
        steps += [Leave(name, 1.0 + number * 0.3), Join(name, 1.2 + number * 0.3)]
    changes = replace(FULL, timeline=tuple(steps))
    found = shrink(changes, lambda scenario: kinds(scenario).count("Leave") == 4)
    assert kinds(found.scenario).count("Join") == 1 and not found.cut_short
    lonely = replace(FULL, timeline=tuple(step for step in steps if isinstance(step, Leave)))
    found = shrink(lonely, lambda scenario: kinds(scenario).count("Leave") == 4 and requests(scenario) >= 100)
    assert 100 <= requests(found.scenario) < 120


def test_steps_that_do_not_go_together_are_not_tried() -> None:
    """At half its duration the slow fault would heal while its process is stopped."""
    steps = (Slow("gpu-0", 1.0, 2.0, 2.0), Pause("gpu-0", 1.5, 1.0))
    tried: list[Scenario] = []

    def fails(scenario: Scenario) -> bool:
        tried.append(scenario)
        return kinds(scenario) == ["Slow", "Pause"]

    assert conflict((replace(steps[0], for_s=1.0), steps[1]))
    assert kinds(shrink(replace(FULL, timeline=steps), fails).scenario) == ["Slow", "Pause"]
    assert tried and not any(conflict(scenario.timeline) for scenario in tried)


def test_nothing_can_go() -> None:
    found = shrink(FULL, lambda scenario: False)
    assert found.scenario == FULL and not found.cut_short


def test_no_candidate_is_played_twice_and_runs_are_bounded() -> None:
    played: list[str] = []

    def fails(scenario: Scenario) -> bool:
        played.append(scenario.digest())
        return "Down" in kinds(scenario) and scenario.backends == 4

    whole = shrink(FULL, fails)
    assert whole.runs == len(played) == len(set(played))
    short = shrink(FULL, fails, most_runs=3)
    assert (short.runs, short.cut_short) == (3, True)
    assert fails(short.scenario)


@pytest.mark.parametrize(("requests_before", "needed_s"), [(101, 1.2), (400, 1.5)])
def test_half_the_rate_is_found_where_it_takes_a_little_longer(requests_before: int, needed_s: float) -> None:
    """Either when nothing else can be removed (few spare requests), or before all spare requests are removed."""
    stream = replace(FULL.load.streams[0], rate_per_s=100.0, requests=requests_before)
    alone = replace(FULL, load=replace(FULL.load, streams=(stream,)))

    def fails(scenario: Scenario) -> bool:
        (left,) = scenario.load.streams
        return left.rate_per_s >= 50.0 and left.end_s >= (1.0 if left.rate_per_s == 100.0 else needed_s)

    (found,) = shrink(alone, fails).scenario.load.streams
    assert found.rate_per_s == 50.0
    assert 50.0 * needed_s <= found.requests < 50.0 * needed_s * 1.2


def crowded(count: int, duration_s: float) -> Scenario:
    stream = replace(FULL.load.streams[0], chats=Chats(count, 0.05, duration_s))
    return replace(FULL, load=replace(FULL.load, streams=(stream,)))


def crowd_of(scenario: Scenario) -> Chats:
    (stream,) = scenario.load.streams
    assert stream.chats is not None
    return stream.chats


def test_of_a_closed_loop_chats_and_time_go() -> None:
    found = shrink(crowded(40, 8.0), lambda scenario: crowd_of(scenario).count >= 3)
    assert crowd_of(found.scenario).count == 3 and not found.cut_short
    assert SHORTEST_S <= crowd_of(found.scenario).duration_s < 1.5 * SHORTEST_S
    (stream,) = found.scenario.load.streams
    assert stream.keys is not None and stream.keys.count == 1
    found = shrink(crowded(40, 8.0), lambda scenario: crowd_of(scenario).duration_s >= 1.1)
    assert crowd_of(found.scenario).count == 1
    assert 1.1 <= crowd_of(found.scenario).duration_s < 1.5


def test_of_a_closed_loop_the_time_before_the_first_step_goes() -> None:
    """Time from the only step to the end of the closed loop, in every failing candidate."""

    def left_s(scenario: Scenario) -> float:
        return round(crowd_of(scenario).duration_s - min(step.at_s for step in scenario.timeline), 2)

    late = replace(crowded(40, 8.0), timeline=(Down("gpu-1", 5.0, 0.5),))
    found = shrink(late, lambda scenario: bool(scenario.timeline) and left_s(scenario) == 3.0)
    assert found.scenario.timeline[0].at_s < 0.1 and left_s(found.scenario) == 3.0


def test_a_crowd_that_left_before_the_first_step_stays_a_crowd() -> None:
    early = replace(crowded(1, 0.2), timeline=(Down("gpu-1", 5.0, 0.5),))
    found = shrink(early, lambda scenario: bool(scenario.timeline) and crowd_of(scenario).duration_s >= SHORTEST_S)
    assert found.scenario.timeline[0].at_s < 0.1


# --- a real balancer ----------------------------------------------------------------------------------------


def fails_in_sim(scenario: Scenario) -> bool:
    judge = Judge(PythonTarget("python:tests.mutants.chaos:SulksAfterReset"), SEED, {World.SIM: play})
    return judge.judge(under_any(scenario)[0], World.SIM).outcome is Outcome.FAIL


@pytest.fixture(scope="module")
def shrunk() -> Shrunk:
    assert fails_in_sim(FULL)
    return shrink(FULL, fails_in_sim)


def test_a_balancer_that_sulks_after_a_reset(shrunk: Shrunk) -> None:
    assert kinds(shrunk.scenario) == ["Reset"] and not shrunk.cut_short
    assert requests(shrunk.scenario) < requests(FULL) / 10
    assert shrunk.scenario.backends == 2


def test_what_is_printed_fails_again(shrunk: Shrunk, tmp_path: Path) -> None:
    (tmp_path / "ready.py").write_text(to_python(shrunk.scenario), encoding="utf-8")
    assert fails_in_sim(runpy.run_path(str(tmp_path / "ready.py"))["SCENARIO"])
    assert fails_in_sim(from_json(to_json(shrunk.scenario)))


def test_without_the_reset_it_does_not_fail(shrunk: Shrunk) -> None:
    assert not fails_in_sim(
        replace(FULL, timeline=tuple(step for step in STEPS if not isinstance(step, Reset | Down | Kill)))
    )


def test_the_same_again(shrunk: Shrunk) -> None:
    assert shrink(FULL, fails_in_sim) == shrunk
