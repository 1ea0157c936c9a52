"""Every file that a user writes: a mistake of any kind is one line with file, key path and expectation, exit code 2.

`--config` of the fault proxy is not among them: it is read as Toxiproxy reads it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import cli
from harness.load.job import LoadJob
from harness.scenario.faults import Kill
from harness.scenario.model import HarnessError, Keys, Load, Scenario, Stream
from harness.scenario.text_form import to_json
from mockgpu import cli as mockgpu_cli
from mockgpu.gpu.catalogue import setup_of

LOAD = Load((Stream("traffic", 0.0, 100.0, 20, keys=Keys(5)),))
SCENARIO = json.loads(to_json(Scenario("mine", 4, LOAD, timeline=(Kill("gpu-1", 0.1),))))
JOB: dict[str, Any] = {
    "load": {"streams": [{"name": "traffic", "start_s": 0.0, "rate_per_s": 100.0, "requests": 20}]},
    "seed": 1, "nonce": 1, "url": "http://127.0.0.1:1", "start_s": 0.0, "backends": ["gpu-0"], "out": "x",
}  # fmt: skip
CLAIMS = """
[balancer]
url = "http://127.0.0.1:8080"
[backends]
listen = ["127.0.0.1:9001"]
"""
RUN = '[run]\nconfig = "x.j2"\n'
TRACE = "time,input,output\n0,5,5\n"

Texts = dict[str, tuple[str, str]]


def document(base: dict[str, Any], change: Callable[[Any], object]) -> str:
    """`base` as JSON, after `change`."""
    copy = json.loads(json.dumps(base))
    change(copy)
    return json.dumps(copy)


def scenario(change: Callable[[Any], object]) -> str:
    return document(SCENARIO, change)


def job(change: Callable[[Any], object]) -> str:
    return document(JOB, change)


def setup(change: Callable[[Any], object]) -> str:
    return document(json.loads(setup_of("h100-80gb", "llama-8b").to_json()), change)


MISTAKES: dict[str, Texts] = {
    "claims.toml": {
        "type": (CLAIMS + "[claims.retry]\nattempts = 'two'", "claims.retry.attempts: saw 'two', expected a whole"),
        "range": (CLAIMS + "[claims.retry]\nattempts = 0", "claims.retry: attempts must be above 0, not 0"),
        "unknown": (CLAIMS + "[claims.retry]\nattemps = 2", "claims.retry.attemps is unknown; did you mean attempts"),
        "missing": (RUN + "[claims.retry]", "run.start is missing; expected a list of at least 1"),
    },
    "settings.toml": {
        "type": ("[breaker]\nopen_s = 'long'", "breaker.open_s: saw 'long', expected a number"),
        "range": ("[health_checks]\nhealthy = 0", "healthy: saw 0, expected a whole number of at least 1"),
        "unknown": ("[health_checks]\nhealty = 1", "health_checks.healty is unknown; did you mean healthy"),
        "missing": ("[slow_start]\naggression = 2", "slow_start.window_s is missing; expected a number"),
    },
    "scenario.json": {
        "type": (
            scenario(lambda it: it["load"]["streams"][0].update(rate_per_s="fast")),
            "scenario.load.streams[0].rate_per_s: saw 'fast', expected a number",
        ),
        "range": (
            scenario(lambda it: it["load"]["streams"][0]["keys"].update(count=0)),
            "scenario.load.streams[0].keys.count: saw 0, expected a whole number from 1 to 200000",
        ),
        "unknown": (
            scenario(lambda it: it["timeline"][0].update(at=1)),
            "scenario.timeline[0]: Kill has no 'at'; did you mean at_s",
        ),
        "missing": (scenario(lambda it: it.pop("backends")), "scenario.backends is missing; expected a whole number"),
    },
    "job.json": {
        "type": (job(lambda it: it.update(seed="one")), "seed: saw 'one', expected a whole number"),
        "range": (job(lambda it: it.update(workers=0)), "workers: saw 0, expected a whole number of at least 1"),
        "unknown": (
            job(lambda it: it["load"]["streams"][0].update(rate=1)),
            "load.streams[0].rate is unknown; did you mean",
        ),
        "missing": (job(lambda it: it.pop("nonce")), "nonce is missing; expected a whole number of at least 0"),
    },
    "trace.csv": {
        "type": (TRACE + "1,many,5\n", "line 3, column 'input': saw 'many', expected a whole number of tokens"),
        "range": (TRACE + "1,5,-5\n", "line 3, column 'output': saw '-5', expected a whole number of tokens from 0 to"),
        "unknown": (TRACE.replace("time", "tine"), "line 1: no column for time among tine, input, output; expected"),
        "missing": (TRACE + "1,5\n", "line 3: saw 2 values, expected 3: time, input, output"),
    },
    "setup.json": {
        "type": (setup(lambda it: it["gpu"].update(memory_mb="all")), "gpu.memory_mb: saw 'all', expected a valid"),
        "range": (setup(lambda it: it["gpu"].update(max_running=0)), "max_running is 0, expected 1 or more"),
        "unknown": (setup(lambda it: it["gpu"].update(memry_mb=1)), "gpu.memry_mb: unknown key, expected memory_mb"),
        "missing": (setup(lambda it: it.pop("default_model")), "default_model: missing, expected a value"),
    },
}  # fmt: skip
COMMANDS = {
    "claims.toml": ("steelyard", "chaos", "--target", "{file}"),
    "settings.toml": ("steelyard", "chaos", "--target", "reference:{file}"),
    "scenario.json": ("steelyard", "chaos", "--scenario", "{file}"),
    "trace.csv": ("steelyard", "load", "--target", "http://127.0.0.1:1", "--trace", "{file}"),
    "setup.json": ("mockgpu", "serve", "--setup", "{file}"),
}
"""The command that reads each file; a job is read by Locust's own command line."""


def answer(name: str, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Error output of the command that reads the file, which must end with exit code 2."""
    if name not in COMMANDS:
        with pytest.raises(HarnessError) as caught:
            LoadJob.read(file)
        return f"{caught.value}\n"
    words = [word.format(file=file) for word in COMMANDS[name]]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        (mockgpu_cli if words[0] == "mockgpu" else cli).main()
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        pytest.param(name, *texts, id=f"{name}-{kind}")
        for name, kinds in MISTAKES.items()
        for kind, texts in kinds.items()
    ],
)
def test_a_mistake_is_one_line_with_file_path_and_expectation(
    name: str,
    text: str,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    printed = answer(name, file, monkeypatch, capsys)
    assert line in printed and str(file) in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize("name", MISTAKES)
def test_a_file_that_is_not_there_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = answer(name, tmp_path / name, monkeypatch, capsys)
    assert "No such file" in printed and str(tmp_path / name) in printed
    assert printed.count("\n") == 1
