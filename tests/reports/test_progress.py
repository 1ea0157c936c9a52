"""Lines for run events."""

from __future__ import annotations

import pytest

from harness.evidence.example import example_history
from harness.evidence.run_events import (
    Judged,
    LoadProgressed,
    PhaseBegan,
    RunEnded,
    RunEvent,
    RunStarted,
    StepEffective,
    StepHealed,
)
from harness.scenario.model import World
from reports.progress import progress_line

SCENARIO = example_history().scenario


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            RunStarted(SCENARIO, World.LIVE, "nginx", 7),
            "run of example in live: nginx, seed 7, 2 backends, 2.0 s",
        ),
        (
            RunStarted(SCENARIO, World.SIM, "nginx", 7, 2.0),
            "run of example in sim: nginx, seed 7, 2 backends, 2.0 s, at 2x the time scale",
        ),
        (PhaseBegan(0.5, "failing"), "   0.50 s  phase: failing"),
        (StepEffective(1.25, "FailingStatus", "gpu-0"), "   1.25 s  failing status gpu-0"),
        (StepEffective(1.25, "Slow", "gpu-0", hits=0), "   1.25 s  slow gpu-0 (no request affected)"),
        (StepEffective(1.25, "Kill", "gpu-0", effective=False), "   1.25 s  kill gpu-0 (no effect)"),
        (StepHealed(12.5, "Kill", "gpu-0"), "  12.50 s  kill gpu-0 over"),
        (Judged("a.b", World.SIM, "fail", "2 of 3 broken"), "a.b[sim] fail: 2 of 3 broken"),
        (Judged("a.b", World.SIM, "pass", ""), "a.b[sim] pass"),
        (LoadProgressed(1.0, None), ""),
        (RunEnded("ab" * 32), ""),
    ],
)
def test_a_line_for_each_event(event: RunEvent, line: str) -> None:
    assert progress_line(event) == line
