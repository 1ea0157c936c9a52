"""Every command in docs/chaos.md is run here, with its example as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.test_readme import ROOT, run

PAGE = (ROOT / "docs" / "chaos.md").read_text(encoding="utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for kind, text in BLOCKS if kind == "console" for line in text.splitlines()]

BREAKS = "steelyard chaos --target python:sulks:Sulks --plan flapping --seed 3"
AGAIN = "steelyard chaos --target python:sulks:Sulks --seed 3 --scenario steelyard-chaos-flapping-3.json"
HOLDS = {
    "pytest suites/chaos --world sim -v": "23 passed",
    "steelyard chaos --plan node-crash": "pass: chaos.node-crash.recovers",
    "steelyard chaos --plan blackhole --world live --seconds 2": "blackhole gpu-1 over",
    "steelyard chaos --seed 7 --runs 20": "0 of 20 runs did not hold",
    "steelyard chaos --seed 7 --without kill,reset": "pass: chaos.random.answers-belong",
}


def test_every_command_is_known_here() -> None:
    assert set(COMMANDS) == {*HOLDS, BREAKS, AGAIN}


@pytest.mark.slow
@pytest.mark.parametrize("command", HOLDS)
def test_command_holds(command: str) -> None:
    done = run(command)
    # What noise of the machine leaves open live is neither kept nor broken.
    assert done.returncode == 0 or "inconclusive" in done.stdout, done.stdout + done.stderr
    assert " ".join(HOLDS[command].split()) in " ".join(done.stdout.split())


def test_the_example_breaks_is_shrunk_and_breaks_again(tmp_path: Path) -> None:
    (tmp_path / "sulks.py").write_text(next(text for kind, text in BLOCKS if kind == "python"))
    done = run(BREAKS, folder=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "SCENARIO = Scenario(" in done.stdout
    assert re.search(r"Shrunk to 1 of 3 steps", done.stdout), done.stdout
    assert (tmp_path / shlex.split(AGAIN)[-1]).exists(), done.stdout
    again = run(AGAIN, folder=tmp_path)
    assert again.returncode == 1 and "fail: chaos.flapping.recovers" in again.stdout, again.stdout + again.stderr


def test_a_bad_file_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "steelyard-chaos-flapping-3.json").write_text("{}")
    done = run(AGAIN.replace("python:sulks:Sulks", "reference"), folder=tmp_path)
    assert done.returncode == 2 and not done.stdout
    assert len(done.stderr.strip().splitlines()) == 1 and "chaos-flapping-3.json" in done.stderr
