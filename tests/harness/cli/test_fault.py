"""`steelyard fault` with and without a running `steelyard up`."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.live.process.http import call
from tests.harness.cli.test_up import Up, gone, left, run_command, up
from tests.processes import tree


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Two backends behind the reference, with a name."""
    with up(tmp_path_factory.mktemp("stage"), "--rate", "0", "--name", "two") as running:
        yield running


def test_add_list_and_clear(running: Up) -> None:
    done = running.fault("add", "gpu-1", "down", "--name", "two", "--for", "50s")
    assert done.returncode == 0 and done.stdout.endswith("heals in 50 s\n")
    assert running.fault("add", "--name", "two", "gpu-0", "failing-status", "--status=503").returncode == 0
    table = running.fault("list", "--name", "two").stdout.splitlines()
    assert table[0].split() == ["backend", "in", "force", "since", "heals"]
    assert [line.split()[:2] for line in table[2:]] == [["gpu-1", "down"], ["gpu-0", "failing-status"]]
    rows = json.loads(running.fault("list", "--json", "--name", "two").stdout)
    assert [(row["backend"], row["kind"], row["told"]) for row in rows] == [
        ("gpu-1", "down", "down"),
        ("gpu-0", "failing-status", "failing-status status 503"),
    ]
    assert 0 < rows[0]["heals_in_s"] <= 50 and rows[1]["heals_in_s"] is None
    assert running.fault("clear", "gpu-1", "--name", "two").stdout == "down on gpu-1 cleared\n"
    assert running.fault("clear", "--name", "two").stdout == "failing-status on gpu-0 cleared\n"
    assert running.fault("clear", "--name", "two").stdout == "nothing to clear\n"
    assert running.fault("list", "--name", "two").stdout == "no fault is in force\n"
    assert running.fault("list", "--json", "--name", "two").stdout == "[]\n"


@pytest.mark.slow
def test_what_never_takes_effect_is_exit_code_1(running: Up) -> None:
    """A bandwidth limit far above the bytes sent has no effect."""
    done = running.fault("add", "--name", "two", "gpu-1", "bandwidth", "--kb-per-s", "1000000")
    assert done.returncode == 1, done
    assert done.stdout == "bandwidth on gpu-1 never took effect: no probe saw it, so it was taken back\n"
    assert running.fault("list", "--json", "--name", "two").stdout == "[]\n"


def test_what_would_hide_behind_another_fault_is_exit_code_2(running: Up) -> None:
    assert running.fault("add", "--name", "two", "gpu-1", "down").returncode == 0
    done = running.fault("add", "--name", "two", "gpu-1", "latency", "--latency", "1s")
    assert done.returncode == 2
    assert "latency does not go with it: no probe could detect it behind that" in done.stderr
    assert running.fault("clear", "--name", "two").stdout == "down on gpu-1 cleared\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add", "gpu-9", "kill"], "no backend 'gpu-9'; did you mean gpu-1 or gpu-0?"),
        (["clear", "gpu"], "no backend 'gpu'; did you mean"),
        (["clear", "gpu-0", "kil"], "no fault 'kil'; did you mean kill"),
    ],
)
def test_what_the_stage_does_not_know_is_exit_code_2(running: Up, words: list[str], message: str) -> None:
    done = running.fault(*words, "--name", "two")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"steelyard: error: {message}")


def test_the_same_name_twice_is_refused(running: Up) -> None:
    second = Up(running.folder, "--name", "two")
    assert (
        second.end()
        == "steelyard: error: a steelyard up named 'two' is already running: stop it or choose another --name\n"
    )
    assert second.process.returncode == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add", "gpu-2", "latancy"], "no fault 'latancy'; did you mean latency?"),
        (["add", "gpu-2", "latency", "--latancy-ms", "8"], "latency has no option '--latancy-ms'; did you mean"),
        (["add", "kill", "gpu-2", "--for", "9s"], "backend first, then kind: steelyard fault add gpu-2 kill --for 9s"),
        (["add", "gpu-2", "latency"], "latency needs --latency 800ms: steelyard fault add gpu-2 latency"),
        (["add", "gpu-2", "kill", "--for", "10"], "--for '10': expected a duration with its unit"),
        (["add", "gpu-2", "kill"], "no steelyard up is running: start one with steelyard up"),
        (["list", "--name", "b"], "no steelyard up --name b is running: start one with steelyard up --name b"),
    ],
)
def test_without_a_stage_mistakes_are_one_line_and_exit_code_2(tmp_path: Path, words: list[str], message: str) -> None:
    done = run_command(tmp_path, "fault", *words)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"steelyard: error: {message}")


def test_kinds_are_listed_with_their_options(tmp_path: Path) -> None:
    lines = run_command(tmp_path, "fault", "kinds").stdout.splitlines()
    assert "latency --latency 800ms [--for 10s] [--jitter 800ms]" in lines
    assert "leave" in lines
    assert not any("`" in line or "_s" in line for line in lines)
    message = dict(zip(lines[::2], lines[1::2], strict=True))
    drip = message["drip --gap 800ms [--for 10s] [--first N] [--every N] [--share NUMBER] [--after N]"]
    assert drip.strip().startswith("Tokens of answers are sent at least --gap apart")
    zombie = message["zombie [--for 10s] [--first N] [--every N] [--share NUMBER] [--after N]"]
    assert zombie.strip().startswith("Like hang, ")
    assert all(line.strip() for line in lines) and len(lines) % 2 == 0


def test_help_says_where_the_kinds_are(tmp_path: Path) -> None:
    assert "steelyard fault kinds" in run_command(tmp_path, "fault", "add", "--help").stdout


def test_sigterm_ends_the_stage_like_ctrl_c(running: Up) -> None:
    family = tree(running.process.pid)
    assert call("GET", f"{running.url('admin')}/backends").status == 200
    assert running.end(signal.SIGTERM) == ""
    assert running.process.returncode == 0
    assert gone(family) and left(running.folder) == []
    done = running.fault("list", "--name", "two")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("steelyard: error: no steelyard up --name two is running")
