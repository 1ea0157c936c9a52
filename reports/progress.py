"""Run events as lines of text, for terminals and logs."""

from __future__ import annotations

from harness.evidence.run_events import Judged, PhaseBegan, RunEvent, RunStarted, StepEffective, StepHealed
from reports.run_timeseries import step_text


def progress_line(event: RunEvent) -> str:
    """One line for an event of a run; "" for events that need none.

    >>> progress_line(StepHealed(2.5, "FailingStatus", "gpu-1"))
    '   2.50 s  failing status gpu-1 over'
    """
    match event:
        case RunStarted(scenario=scenario, world=world, target=target, seed=seed, time_scale=time_scale):
            scale = f", at {time_scale:g}x the time scale" if time_scale != 1.0 else ""
            fleet = f"{scenario.backends} backends, {scenario.end_s:.1f} s"
            return f"run of {scenario.name} in {world.value}: {target}, seed {seed}, {fleet}{scale}"
        case PhaseBegan(at_s=at_s, phase=phase):
            return f"{at_s:7.2f} s  phase: {phase}"
        case StepEffective(at_s=at_s) | StepHealed(at_s=at_s):
            return f"{at_s:7.2f} s  {step_text(event)}"
        case Judged(property=name, world=world, outcome=outcome, reason=reason):
            return f"{name}[{world.value}] {outcome}{f': {reason}' if reason else ''}"
        case _:
            return ""
