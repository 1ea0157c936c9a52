"""The guard: the command replaces it, and dies with the process that started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.live.process.guard import COMMAND
from tests.harness.live.helpers import PATIENCE_S, ROOT, until
from tests.processes import group, runs

PARENT = """
import sys, time
from pathlib import Path
from harness.live.process.child import Child
child = Child((sys.executable, "-c", sys.argv[1]), Path(sys.argv[2]))
print(child.pid, flush=True)
time.sleep(600)
"""

SLEEPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def guard(parent: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, str(parent), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_the_command_becomes_the_process_and_keeps_its_status() -> None:
    code = "import os, sys; print(os.getpid(), sys.argv[1:]); sys.exit(7)"
    words = [*COMMAND, str(os.getpid()), sys.executable, "-c", code, "--with", "a b"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert (out.strip(), process.returncode) == (f"{process.pid} ['--with', 'a b']", 7)


def test_a_parent_that_is_dead_already_starts_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    done = guard(1 if os.getpid() != 1 else 2, "touch", str(mark))
    assert done.returncode == 1
    assert not mark.exists()


def test_a_missing_command_is_one_line_and_127() -> None:
    done = guard(os.getpid(), "/nowhere/balancer")
    assert (done.returncode, done.stderr) == (127, "/nowhere/balancer: cannot be run: No such file or directory\n")


FAMILY = f"""
import subprocess, sys, time
deaf = subprocess.Popen([sys.executable, "-c", {SLEEPER!r}])
print("child", deaf.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
@pytest.mark.parametrize("code", [SLEEPER, FAMILY])
def test_a_child_and_its_own_die_when_its_parent_is_killed(tmp_path: Path, code: str) -> None:
    log = tmp_path / "child.log"
    words = [sys.executable, "-c", PARENT, code, str(log)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        until(lambda: "up" in log.read_text())
        family = group(child)
        assert child in family
        assert len(family) == (2 if code == SLEEPER else 3)  # the watchdog is one of them
        parent.kill()
    until(lambda: not any(map(runs, family)))
