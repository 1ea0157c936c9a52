"""`steelyard chaos`: plan, run, verdict, exit codes; a failing run is shrunk to a file that fails again."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from harness.chaos.fault_plans import FAULT_PLANS
from harness.chaos.swarm import KINDS
from harness.cli import app
from harness.cli.chaos import _shrunk
from harness.scenario.faults import Down, FailingStatus, Reset
from harness.scenario.model import Chats, ClaimsError, Keys, Load, Scenario, Stream, World
from harness.scenario.text_form import to_json
from harness.sim.world import play
from harness.targets import resolve
from tests.harness.live.helpers import free_ports

SULKS = "python:tests.mutants.chaos:SulksAfterReset"
ONLY = ",".join(sorted(set(KINDS) - {"reset", "latency", "slow", "not-ready", "drip", "weigh"}))
"""Kinds that are excluded so that only one drawn kind of fault breaks the balancer."""


def chaos(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, ["chaos", *words])


def test_plan_comes_first_then_course_and_outcomes() -> None:
    done = chaos("--plan", "node-crash", "--seed", "7", "--seconds", "1")
    assert done.exit_code == 0, done.output
    order = [
        done.output.index(text) for text in ("node-crash, seed 7", "1.00 s   1.00 s   kill", "from s", "pass: chaos.")
    ]
    assert order == sorted(order)
    assert "kill gpu-1 over" in done.output
    assert "pass: chaos.node-crash.recovers" in done.output and "pass: chaos.node-crash.answers-belong" in done.output


@pytest.mark.parametrize("name", FAULT_PLANS)
def test_every_fault_plan_can_be_played(name: str) -> None:
    done = chaos("--plan", name, "--seconds", "1")
    assert done.exit_code == 0, done.output


def test_runs_count_seeds_up_and_the_same_seed_is_the_same_run() -> None:
    done = chaos("--seed", "7", "--runs", "3")
    assert done.exit_code == 0, done.output
    assert re.findall(r"random, seed (\d+)", done.output) == ["7", "8", "9"]
    assert done.output.endswith("0 of 3 runs did not hold.\n")
    assert chaos("--seed", "8").output.strip() in done.output


@pytest.mark.slow
def test_what_fails_is_shrunk_and_fails_again(tmp_path: Path) -> None:
    file = tmp_path / "claims.toml"
    file.write_text(
        f'[balancer]\nname = "sulky"\npython = "{SULKS.removeprefix("python:")}"\n[claims.failover]\nwithin_s = 0.5\n'
    )
    words = ("--seed", "1", "--runs", "3", "--without", ONLY, "--out", str(tmp_path / "to keep"))
    done = chaos("--target", str(file), *words)
    assert done.exit_code == 1, done.output
    found = re.findall(r"Shrunk to (\d+) of (\d+) steps, (\d+) requests and (\d) backends", done.output)
    assert found and all(int(steps) == 1 and int(requests) < 80 for steps, _, requests, _ in found)
    assert "SCENARIO = Scenario(" in done.output
    ready = sorted((tmp_path / "to keep").glob("*.json"))
    assert len(ready) == len(found)
    seed = ready[0].stem.rpartition("-")[2]
    assert ready[0].name == f"steelyard-chaos-random-{seed}.json"
    message = re.findall(r"Play it again with: PYTHONHASHSEED=\d+ steelyard chaos (.*)", done.output)
    again = chaos(*shlex.split(message[0]), "--out", str(tmp_path / "again"))
    assert again.exit_code == 1 and "fail: chaos.random.recovers" in again.output, again.output
    assert "Shrunk" not in again.output and "Play it again" not in again.output
    assert not (tmp_path / "again").exists()
    (tmp_path / "taken").write_text("")
    kept = chaos("--target", str(file), "--seed", seed, "--without", ONLY, "--out", str(tmp_path / "taken"))
    assert isinstance(kept.exception, ClaimsError) and "cannot be written" in str(kept.exception)
    assert "fail:" not in chaos("--seed", seed, "--scenario", str(ready[0])).output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--plan", "node-crush"), "did you mean node-crash"),
        (("--without", "kil"), "did you mean kill"),
        (("--world", "moon"), "--world 'moon' is unknown"),
        (("--target", "nginx", "--world", "sim"), "runs in live only"),
        (("--scenario", "/nowhere/x.json"), "cannot be read"),
        (("--plan", "node-crash", "--without", "kill"), "leave it out with --plan node-crash"),
        (("--scenario", "x.json", "--without", "kill"), "--without does not go with --scenario"),
        (("--scenario", "x.json", "--plan", "node-crash"), "--plan does not go with --scenario"),
        (("--scenario", "x.json", "--plan", "random"), "--plan does not go with --scenario"),
        (("--scenario", "x.json", "--seconds", "4"), "--seconds does not go with --scenario"),
        (("--scenario", "x.json", "--backends", "4"), "--backends does not go with --scenario"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], message: str) -> None:
    done = chaos(*words)
    assert isinstance(done.exception, ClaimsError)
    assert message in str(done.exception) and "\n" not in str(done.exception)


def test_a_file_that_names_its_backends_says_how_many(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        f'[balancer]\nname = "acme"\nurl = "http://127.0.0.1:{free_ports(1)[0]}"\n'
        '[backends]\nlisten = ["127.0.0.1:9001", "127.0.0.1:9002", "127.0.0.1:9003"]\n'
        "[claims.failover]\nwithin_s = 0.5\n"
    )
    done = chaos("--target", str(file), "--backends", "5")
    assert isinstance(done.exception, ClaimsError)
    assert str(done.exception) == "--backends 5: acme names 3 addresses; leave --backends out"


def test_a_scenario_is_named_like_a_property(tmp_path: Path) -> None:
    named = to_json(Scenario("Black Friday", 2, Load((Stream("traffic", 0.0, 100.0, 20),))))
    (tmp_path / "x.json").write_text(named)
    done = chaos("--scenario", str(tmp_path / "x.json"))
    assert isinstance(done.exception, ClaimsError) and "'Black Friday': expected lower-case" in str(done.exception)


def test_a_bad_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"is": "Scenario", "name": "x"}')
    done = chaos("--scenario", str(tmp_path / "x.json"))
    assert isinstance(done.exception, ClaimsError) and "x.json: scenario." in str(done.exception)


def played(folder: Path, *words: str, status: int = 503, off: frozenset[str] = frozenset()) -> Result:
    """Run a scenario file in which a backend answers half of its requests with `status` for 0.5 s."""
    load = Load((Stream("traffic", 0.0, 100.0, 200, Keys(50)),))
    steps = (FailingStatus("gpu-1", 0.5, 503, share=0.5, for_s=0.5),)
    text = to_json(Scenario("half", 2, load, timeline=steps, off=off))
    (folder / "x.json").write_text(text.replace("503", str(status)))
    return chaos("--scenario", str(folder / "x.json"), *words)


def test_what_a_file_says_is_off_is_off(tmp_path: Path) -> None:
    def lost(done: Result) -> int:
        return sum(map(int, re.findall(r"^ *[0-9.]+ +[0-9]+ +([0-9]+) ", done.output, re.MULTILINE)))

    healing = frozenset({"retry", "ejection", "breaker"})
    assert lost(played(tmp_path)) == 0
    assert lost(played(tmp_path, off=healing)) > 5
    assert lost(played(tmp_path, off=healing - {"retry"})) == 0


@pytest.mark.parametrize(
    ("words", "off", "message"),
    [
        ((), "retrys", "x.json: scenario.off: no feature 'retrys'; did you mean retry?"),
        ((), "affinity", "x.json: scenario.off: reference cannot leave affinity out"),
        (("--target", SULKS), "failover", f"x.json: scenario.off: {SULKS} cannot leave failover out"),
    ],
)
def test_what_cannot_be_off_is_one_line(tmp_path: Path, words: tuple[str, ...], off: str, message: str) -> None:
    done = played(tmp_path, *words, off=frozenset({off}))
    assert isinstance(done.exception, ClaimsError) and message in str(done.exception)


def test_what_is_not_claimed_is_off_anyway(tmp_path: Path) -> None:
    assert "half.recovers" in played(tmp_path, "--target", SULKS, off=frozenset({"retry"})).output


def test_a_fault_that_the_mock_servers_refuse_is_one_line(tmp_path: Path) -> None:
    done = played(tmp_path, status=999)
    assert isinstance(done.exception, ClaimsError)
    assert "x.json: scenario.timeline[0]: fault status: status is 999, expected" in str(done.exception)


def test_a_crowd_is_shrunk_and_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The size of a closed loop is its virtual users, not requests."""
    target = resolve(SULKS)
    crowd = Stream("crowd", 0.0, 100.0, 50, chats=Chats(12, 0.02, 3.0))
    steps = (Down("gpu-0", 0.6, 0.3), Reset("gpu-1", 1.0, 0.5))
    scenario = Scenario("crowded", 2, Load((crowd,)), timeline=steps)
    found = _shrunk(target, scenario, 1, "chaos.crowded.recovers", {World.SIM: play})
    (left,) = found.load.streams
    assert left.chats is not None and left.chats.count < 12
    message = capsys.readouterr().out
    assert (
        f"steps, 0 requests, {left.chats.count} virtual users and 2 backends" in message and "chats=Chats(" in message
    )
