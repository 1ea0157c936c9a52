"""The shrinker: with rules whose smallest failing scenario is known, and with a balancer that sulks after a reset."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from harness.judge import Judge
from harness.model import Scenario, World
from harness.scenario_text import from_json, to_json, to_python
from harness.shrink import FEWEST_REQUESTS, Shrunk, shrink
from harness.sim.world import play
from harness.targets.python import PythonTarget
from harness.targets.reference import ReferenceTarget
from harness.timeline import Down, Join, Kill, Latency, Leave, NotReady, Reset, Slow, Step
from harness.verdict import Outcome
from suites.chaos_evidence import under, under_any

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
    """The joins can go but for one: every balancer fails without anybody to send requests to."""
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
