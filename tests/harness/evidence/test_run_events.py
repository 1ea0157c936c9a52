"""Events of a finished run, read from its history."""

from __future__ import annotations

from dataclasses import replace

from harness.evidence.example import example_history
from harness.evidence.history import StepSeen
from harness.evidence.run_events import PhaseBegan, StepEffective, StepHealed, events_of
from harness.scenario.model import Phase

NAN = float("nan")


def test_phases_and_steps_in_order_of_time() -> None:
    history = example_history()
    scenario = replace(history.scenario, phases=(Phase("after", 0.6, 1.0), Phase("before", 0.0, 0.6)))
    steps = (
        StepSeen("Slow", 0, 0.1, 0.2, 0.7, hits=0),
        StepSeen("Kill", 1, 0.3, NAN),
        StepSeen("Leave", 0, 0.5, 0.55),
    )
    assert events_of(replace(history, scenario=scenario, steps=steps)) == [
        PhaseBegan(0.0, "before"),
        StepEffective(0.2, "Slow", "gpu-0", hits=0),
        StepEffective(0.3, "Kill", "gpu-1", effective=False),
        StepEffective(0.55, "Leave", "gpu-0"),
        PhaseBegan(0.6, "after"),
        StepHealed(0.7, "Slow", "gpu-0"),
    ]
