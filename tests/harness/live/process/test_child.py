"""Child processes: reaped with all descendants in every case, and reports of how they ended."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGKILL, SIGTERM, SIGUSR1

import pytest

from harness.live.process.child import Child, children_of, diagnostic_line
from harness.scenario.model import HarnessError
from harness.targets.base import LEAN_ENVIRONMENT
from tests.harness.live.helpers import PATIENCE_S, until
from tests.processes import group, runs, tree

Start = Callable[..., Child]

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True); time.sleep(600)"
FAMILY = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {DEAF!r}])
print("child", child.pid, flush=True)
time.sleep(600)
"""
GRACEFUL = """
import signal, sys, time
def leave(number, frame):
    print("leaving", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
signal.signal(signal.SIGUSR1, lambda number, frame: print("poked", flush=True))
print("up", flush=True)
while True: time.sleep(0.01)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts Python code, or words, as a child; all are stopped at the end."""
    started: list[Child] = []

    def begin(code: str, *words: str, pipes: bool = False) -> Child:
        command = words or (sys.executable, "-c", code)
        child = Child(command, tmp_path / f"{len(started)}.log", pipes=pipes)
        started.append(child)
        return child

    yield begin
    for child in started:
        child.stop(SIGKILL)


def await_line(child: Child, word: str) -> str:
    return until(lambda: next((line for line in child.log.read_text().splitlines() if word in line), ""))


def test_a_polite_child_is_asked_first(start: Start) -> None:
    child = start(GRACEFUL)
    await_line(child, "up")
    assert (child.status, child.ending()) == (None, "still running")
    child.signal(SIGUSR1)
    await_line(child, "poked")
    child.stop()
    assert (child.status, child.ending()) == (0, "exit status 0; last line: leaving")
    assert not runs(child.pid)


def test_a_child_that_ignores_sigterm_is_killed(start: Start) -> None:
    child = start(DEAF)
    await_line(child, "up")
    child.stop(timeout_s=0.2)
    assert child.status == -SIGKILL
    assert child.ending() == "signal SIGKILL; last line: up"


@pytest.mark.parametrize("master_is_dead", [False, True])
def test_stop_ends_grandchildren_too(start: Start, master_is_dead: bool) -> None:
    child = start(FAMILY)
    grandchild = int(await_line(child, "child").split()[1])
    await_line(child, "up")
    if master_is_dead:
        os.kill(child.pid, SIGKILL)
        assert child.wait(PATIENCE_S)
    assert runs(grandchild)
    child.stop(SIGTERM, timeout_s=2.0)
    until(lambda: not group(child.pid))
    assert not runs(grandchild)
    assert not runs(child.pid)


def test_stopping_twice_and_after_the_end(start: Start) -> None:
    child = start("")
    assert child.wait(PATIENCE_S)
    child.signal(SIGTERM)
    child.stop()
    child.stop()
    assert child.ending() == "exit status 0; last line: (no output)"


def test_wait_does_not_wait_longer_than_asked(start: Start) -> None:
    child = start(DEAF)
    began_s = time.monotonic()
    assert not child.wait(0.05)
    assert 0.05 <= time.monotonic() - began_s < PATIENCE_S


def test_the_ending_has_the_status_and_the_last_line(start: Start) -> None:
    child = start("import sys; print('first'); print('  the last  ', file=sys.stderr); sys.exit(4)")
    assert child.wait(PATIENCE_S)
    assert child.ending() == "exit status 4; last line: the last"


def test_the_ending_has_the_telling_line_where_another_follows(start: Start) -> None:
    child = start("print('[ALERT] (1) : unknown keyword', 'Fatal errors found', sep='\\n'); raise SystemExit(1)")
    assert child.wait(PATIENCE_S)
    assert child.ending() == "exit status 1; it said: [ALERT] (1) : unknown keyword"


def test_other_logs_are_asked_for_severe_lines_only(tmp_path: Path) -> None:
    more = [tmp_path / "absent.log", tmp_path / "error.log"]
    child = Child((sys.executable, "-c", "print('up')"), tmp_path / "log", more_logs=more)
    assert child.wait(PATIENCE_S)
    child.stop()
    more[1].write_text("[error] connect() failed\n")
    assert child.ending() == "exit status 0; last line: up"
    more[1].write_text("[error] connect() failed\n[emerg] unknown directive\n[error] connect() failed\n")
    assert child.ending() == "exit status 0; it said: [emerg] unknown directive"


def test_of_a_long_log_the_end_is_read(start: Start) -> None:
    child = start("print('[emerg] long ago')\nfor _ in range(2000): print('y' * 63)")
    assert child.wait(PATIENCE_S)
    assert child.diagnostic_line() == "y" * 63


TRACEBACK = """Traceback (most recent call last):
  File "/srv/errors.py", line 7, in <module>
    raise ConfigError("no such listener")
ConfigError: no such listener
"""


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("", "(no output)"),
        ("one\ntwo\n\n", "two"),
        ("[NOTICE] 1\n[ALERT] what\n[ALERT] Fatal errors found\n", "[ALERT] what"),
        ("Error: first\nerror: second\nbye", "Error: first"),
        ("error: everyday\n[emerg] the end\nbye", "[emerg] the end"),
        ("panic: nil map\n\ngoroutine 1 [running]:\n\tmain.go:7\nexit status 2", "panic: nil map"),
        ("error: everyday\n" + "fine\n" * 30, "fine"),
        (TRACEBACK, "ConfigError: no such listener"),
    ],
)
def test_the_diagnostic_line(output: str, message: str) -> None:
    assert diagnostic_line(output) == message


def test_a_missing_binary(start: Start) -> None:
    child = start("", "/nowhere/balancer", "--port", "1")
    assert child.wait(PATIENCE_S)
    assert child.ending() == ("exit status 127; last line: /nowhere/balancer: cannot be run: No such file or directory")


def test_without_its_log_it_still_ends(start: Start) -> None:
    child = start("")
    assert child.wait(PATIENCE_S)
    child.log.unlink()
    assert child.ending() == "exit status 0; last line: (no output)"


def test_pipes_only_where_asked(start: Start) -> None:
    child = start("import sys; print(sys.stdin.readline().upper(), end=''); print('log', file=sys.stderr)", pipes=True)
    child.stdin.write(b"hello\n")
    child.stdin.flush()
    assert child.stdout.readline() == b"HELLO\n"
    assert await_line(child, "log") == "log"
    mute = start(DEAF)
    with pytest.raises(HarnessError, match="without pipes"):
        _ = mute.stdin
    with pytest.raises(HarnessError, match="without pipes"):
        _ = mute.stdout


def test_what_a_dead_child_never_read_is_no_error(start: Start) -> None:
    child = start("", pipes=True)
    assert child.wait(PATIENCE_S)
    child.stdin.write(b"x" * 10)
    with pytest.raises(BrokenPipeError):
        child.stdin.flush()
    child.stop()
    assert child.stdin.closed and child.stdout.closed


def test_the_environment_is_the_one_given(tmp_path: Path) -> None:
    code = "import os; print(os.environ.get('SAID'), 'HOME' in os.environ)"
    child = Child((sys.executable, "-c", code), tmp_path / "log", {"SAID": "this"})
    assert child.wait(PATIENCE_S)
    child.stop()
    assert child.last_line() == "this False"


def test_a_lean_environment_has_no_certificates(tmp_path: Path) -> None:
    code = "import ssl; print(ssl.create_default_context().cert_store_stats()['x509'])"
    child = Child((sys.executable, "-c", code), tmp_path / "log", {**os.environ, **LEAN_ENVIRONMENT})
    assert child.wait(PATIENCE_S)
    child.stop()
    assert child.last_line() == "0"


def test_a_child_is_in_a_group_of_its_own(start: Start) -> None:
    child = start(DEAF)
    await_line(child, "up")
    assert os.getpgid(child.pid) == child.pid != os.getpgid(0)


def test_children_are_the_running_ones(start: Start) -> None:
    child = start(FAMILY)
    grandchild = int(await_line(child, "child").split()[1])
    assert children_of(child.pid) == {grandchild}
    assert grandchild in tree(os.getpid())
    os.kill(grandchild, SIGKILL)
    until(lambda: not children_of(child.pid))
    assert children_of(grandchild) == set()
