"""Overlapping faults have their effects of the table in a simulated history; the live world uses the same table."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from unittest.mock import Mock

import pytest

from harness.evidence.history import History
from harness.judge import Judge
from harness.property.verdict import Outcome
from harness.scenario.faults import Down, Hang, Kill, Latency, Pause
from harness.scenario.model import ClaimsError, World
from harness.sim.world import play
from harness.targets.reference import ReferenceTarget
from suites.chaos.properties import under_any
from suites.chaos.scenarios import under
from tests.harness.fault_mixes import CASES, lacking, scenario
from tests.harness.sim.rig import bare
from tests.harness.sim.rig import run as run_of
from tests.harness.sim.rig import scenario as small


@cache
def played(run: int, still: bool = False) -> History:
    """The run of a mix, or the same run without its steps."""
    what = scenario(run)
    return play(ReferenceTarget(), replace(what, timeline=()) if still else what, 1)


@pytest.mark.parametrize(("run", "name"), CASES)
def test_it_shows(run: int, name: str) -> None:
    assert lacking(played(run), run, name) == []


@pytest.mark.parametrize(("run", "name"), [case for case in CASES if case[1] != "pause-kill"])
def test_it_does_not_show_without_it(run: int, name: str) -> None:
    """The table examines evidence: it fails for a history in which only the log of steps contains the faults."""
    assert lacking(replace(played(run, still=True), steps=played(run).steps), run, name) != []


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((Kill("gpu-0", 0.1, 0.5), Hang("gpu-0", 0.3)), "Hang of gpu-0 at 0.3 s cannot begin during Kill of gpu-0"),
        ((Pause("gpu-0", 0.1, 0.5), Hang("gpu-0", 0.3)), "Hang of gpu-0 at 0.3 s cannot begin during Pause of gpu-0"),
        ((Down("gpu-0", 0.1, 0.5), Latency("gpu-0", 0.3, 0.1)), "Latency of gpu-0 at 0.3 s cannot begin during Down"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_runs(steps: tuple[Kill, Hang], message: str) -> None:
    gateway = bare()
    with pytest.raises(ClaimsError, match=f"^scenario small: {message}"):
        run_of(gateway, small(*steps))
    assert gateway.heard == []


def test_a_property_whose_steps_do_not_go_together_is_an_error_of_its_own() -> None:
    steps = (Kill("gpu-1", 0.5), Kill("gpu-1", 0.7))
    never = Mock()
    for item in under_any(under("random", steps, 3, ReferenceTarget().claims)):
        record = Judge(ReferenceTarget(), 1, {World.SIM: never}).judge(item, World.SIM)
        assert record.outcome is Outcome.ERROR
        assert record.reason.startswith(
            "the scenario cannot be played: Kill of gpu-1 at 0.7 s cannot begin during Kill"
        )
    assert not never.called
