"""The time scale of live runs: of the judge, and as an option of the plugin."""

from __future__ import annotations

import pytest

from harness.judge import Judge
from harness.live import machine
from harness.live.machine import Machine
from harness.property.verdict import Outcome
from harness.scenario.model import World
from tests.harness.test_judge import GOOD, FakeTarget, FakeWorld, history_of, noisy_once, promise
from tests.harness.test_plugin import live as live
from tests.harness.test_plugin import output_of, run
from tests.harness.test_plugin import suite as suite

pytest_plugins = ["pytester"]


def test_live_runs_are_slower_and_the_simulator_is_not() -> None:
    play = FakeWorld()
    judge = Judge(FakeTarget(), 7, {World.SIM: play, World.LIVE: play}, time_scale=2.0)
    records = [judge.judge(promise([GOOD]), world) for world in (World.SIM, World.LIVE)]
    assert [record.time_scale for record in records] == [1.0, 2.0]
    (first, usual, _), (slow, slower, _) = play.calls
    assert slower.end_s == 2 * usual.end_s
    assert slow.claims != first.claims


def test_an_inconclusive_run_is_repeated_at_twice_that() -> None:
    play = FakeWorld(lambda scenario: history_of(scenario, slack_s=9.0))
    record = Judge(FakeTarget(), 7, {World.LIVE: play}, time_scale=2.0).judge(promise([GOOD]), World.LIVE)
    assert (record.outcome, record.time_scale) == (Outcome.INCONCLUSIVE, 4.0)
    assert record.first_try is not None and record.first_try.time_scale == 2.0


def test_a_target_with_fixed_settings_keeps_its_pace() -> None:
    play = FakeWorld(noisy_once)
    record = Judge(FakeTarget(fixed=True), 7, {World.LIVE: play}, time_scale=2.0).judge(promise([GOOD]), World.LIVE)
    assert (record.outcome, record.time_scale, len(play.calls)) == (Outcome.INCONCLUSIVE, 1.0, 1)


@pytest.mark.parametrize("value", ["0.5", "0", "101", "-1", "fast", "nan", ""])
def test_a_wrong_value_is_one_line(suite: pytest.Pytester, value: str) -> None:
    result = run(suite, "mine", f"--time-scale={value}")
    assert result.ret == 2
    assert f"--time-scale {value!r}: expected auto, or a number from 1 to 100" in output_of(result)


def test_a_busy_machine_is_said_at_the_start_and_at_the_end(
    live: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "observed_machine", lambda: Machine(2, 1.9))
    output = output_of(run(live, "mine", "-k", "kept"))
    assert output.count("This machine is busy: other processes use 1.9 of 2 cores.") == 2
    assert "This machine" not in output_of(run(live, "mine", "-k", "kept", "--time-scale", "1"))
    assert "This machine" not in output_of(run(live, "mine", "-k", "kept", "--world", "sim"))


def test_a_quiet_machine_needs_no_word(live: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "observed_machine", lambda: Machine(2, 0.3))
    assert "This machine" not in output_of(run(live, "mine", "-k", "kept"))


def test_a_target_with_fixed_settings_is_said_to_keep_its_pace(
    live: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = ("--target", "python:tests.mutants.policies:Modulo")
    monkeypatch.setattr(machine, "observed_machine", lambda: Machine(2, 1.9))
    assert "This target's settings are fixed" in output_of(run(live, "mine", "-k", "kept", *python))
    result = run(live, "mine", "-k", "kept", *python, "--time-scale", "2")
    assert result.ret == 2
    assert "--time-scale 2: the settings of" in output_of(result)
    assert run(live, "mine", "-k", "kept", *python, "--time-scale", "2", "--world", "sim").ret == 0


def test_the_repeat_command_keeps_a_slower_pace(live: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "observed_machine", lambda: Machine(2, 1.9))
    output = output_of(run(live, "mine", "--world", "live"))
    assert "--time-scale 2" in output
