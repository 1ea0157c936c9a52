"""The commands of docs/load.md and docs/deploy.md: run as they stand, or checked as far as there is no cluster here."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from harness.cli import app
from harness.live.process.ports import is_free
from harness.load.results.figures import MAX_DELAY_SHARE
from harness.load.results.shard import MOST_IN_FLIGHT
from harness.load.results.thresholds import threshold_of
from harness.load.wire import NUMBER_BITS
from harness.load.workloads.profiles import LONG_S, MOST_DIFFERENT, PROFILES, load_of
from harness.load.workloads.traces import MOST_TOKENS
from harness.scenario.closed_loop import BACK_OFF_S
from tests.test_readme import started

ROOT = Path(__file__).parent.parent
LOAD = (ROOT / "docs" / "load.md").read_text(encoding="utf-8")
DEPLOY = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
LOAD_TEXT = " ".join(LOAD.split())
COMMANDS = [line for text in re.findall(r"```console\n(.*?)```", LOAD, re.DOTALL) for line in text.splitlines()]


@pytest.mark.slow
def test_the_commands_of_the_load_page(tmp_path: Path) -> None:
    fleet, balancer, *loads = COMMANDS
    first = next(port for port in range(17_000, 18_000) if is_free(port) and is_free(port + 1))
    ports = {"9001": str(first), "9002": str(first + 1)}

    def here(command: str) -> str:
        return re.sub("|".join(ports), lambda found: ports[found[0]], command)

    with (
        started(here(fleet), folder=tmp_path),
        started(here(balancer), "--port", "0", "--no-admin", folder=tmp_path) as line,
    ):
        ports["http://127.0.0.1:8080"] = json.loads(line.removeprefix("ready "))["url"]
        assert all(command.startswith("steelyard load ") for command in loads)
        expected = (
            " good answers/s of ",
            "closed loop 20 virtual users, think time 1 s",
            "p50 <= 200ms holds at 100/s",
        )
        for command, shown in zip(loads, expected, strict=True):
            # Shorter than on the page, and without its limit: what a busy machine makes of it is no fault of the page.
            words = shlex.split(re.sub("--duration [12]0", "--duration 1", here(command)).replace("500ms", "30s"))
            words[0] = str(Path(sys.executable).with_name(words[0]))
            done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=90)
            assert done.returncode == 0, done.stdout + done.stderr
            assert shown in done.stdout
            assert "written to steelyard-load.json" in done.stdout


def test_the_options_of_the_page_are_ones() -> None:
    group: Any = get_command(app)
    options = {word for one in group.commands["load"].params for word in one.opts}
    words = re.sub(r"```console\n.*?```", "", LOAD.partition("## With Locust")[0], flags=re.DOTALL)
    named = set(re.findall(r"(?<![-\w])--[a-z][a-z-]*", words))
    assert named and named <= options, named - options
    assert {"--chats", "--think-time", "--column", "--time-unit", "--scale"} <= named


def test_the_limits_of_the_page() -> None:
    assert f"more than {MOST_TOKENS:,} tokens" in LOAD_TEXT
    assert f"up to {MOST_DIFFERENT:,} different requests" in LOAD_TEXT
    assert f"has room for {1 << NUMBER_BITS:,} in all" in LOAD_TEXT
    assert "10,000 or nearly" in LOAD_TEXT and MOST_IN_FLIGHT == 10_000
    assert "more than a fifth of the latency" in LOAD_TEXT and MAX_DELAY_SHARE == 0.2
    assert "waits for 50 ms at least" in LOAD_TEXT and BACK_OFF_S == 0.05


def test_the_thresholds_of_the_page_are_ones() -> None:
    (table,) = re.findall(r"\| `--fail-if` \|.*?\n\n", LOAD, re.DOTALL)
    written = [text for text in re.findall(r"`([^`]+)`", table) if "<" in text or ">" in text]
    assert len(written) == 4
    for text in written:
        assert threshold_of(text).text == text


def test_the_profiles_of_the_page_are_all_there_are() -> None:
    (table,) = re.findall(r"\| `--profile` \|.*?\n\n", LOAD, re.DOTALL)
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == ["--profile", *PROFILES]


def test_the_timeouts_of_the_page() -> None:
    (words,) = re.findall(r"A client waits 10 s for its complete answer \((.*?): 60 s", LOAD_TEXT)
    patient = {name: load_of(name, 50.0, 5.0).streams[0].timeout_s for name in PROFILES if name != "trace"}
    assert {name for name, timeout_s in patient.items() if timeout_s != 10.0} | {"trace:FILE"} == set(
        re.findall(r"`([^`]+)`", words)
    )
    assert set(patient.values()) == {10.0, LONG_S} and LONG_S == 60.0


def test_what_the_deploy_page_names_is_there() -> None:
    for path in [*re.findall(r"\]\(\.\./([^)]+)\)", DEPLOY), *re.findall(r"(?:-k|-f) (deploy/\S+)", DEPLOY)]:
        assert (ROOT / path).exists(), path
    manifests = "\n".join(path.read_text() for path in (ROOT / "deploy").rglob("*.yaml"))
    for kind, name in re.findall(r"(statefulset|deployment|service)/([\w-]+)", DEPLOY):
        assert re.search(rf"kind: {kind}\nmetadata:\n  name: {name}\n", manifests, re.IGNORECASE), (kind, name)
    for folder in re.findall(r"-k (\S+)", DEPLOY):
        assert (ROOT / folder / "kustomization.yaml").is_file()
