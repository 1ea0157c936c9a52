"""The judge tells a listener of runs and verdicts."""

from __future__ import annotations

from dataclasses import replace

from harness.evidence.history import StepSeen
from harness.evidence.run_events import Judged, RunEnded, RunEvent, RunStarted, StepEffective, StepHealed
from harness.judge import Judge
from harness.scenario.model import HarnessError, World
from tests.harness.test_judge import GOOD, SCENARIO, FakeTarget, FakeWorld, history_of, promise, raising


def test_a_listener_is_told_of_each_run_once_and_of_each_verdict() -> None:
    events: list[RunEvent] = []
    steps = (StepSeen("Kill", 1, 0.4, 0.5, 0.9),)
    played = replace(history_of(), steps=steps)
    judge = Judge(FakeTarget(), 7, {World.SIM: FakeWorld(lambda *_: played)}, events.append)
    for name in ("a.b.c", "d.e.f"):
        judge.judge(promise([GOOD], name), World.SIM)
    assert events == [
        RunStarted(SCENARIO, World.SIM, "fake", 7),
        StepEffective(0.5, "Kill", "gpu-1"),
        StepHealed(0.9, "Kill", "gpu-1"),
        RunEnded(played.digest()),
        Judged("a.b.c", World.SIM, "pass", GOOD.note),
        Judged("d.e.f", World.SIM, "pass", GOOD.note),
    ]


def test_a_run_that_fails_ends_for_the_listener_too() -> None:
    events: list[RunEvent] = []
    play = FakeWorld(raising(HarnessError("the fleet died")))
    Judge(FakeTarget(), 7, {World.LIVE: play}, events.append).judge(promise([GOOD]), World.LIVE)
    assert [type(event) for event in events] == [RunStarted, RunEnded, Judged]
