"""Limits of open files, set for real in child processes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from harness.live.process.guard import COMMAND, ENOUGH_FILES, raise_open_files
from harness.live.process.open_files import LEAST_FILES, require_open_files
from harness.scenario.model import TargetError


def limited(soft: int, hard: int, code: str, *before: str) -> subprocess.CompletedProcess[str]:
    """Run Python code under these limits, behind the words `before`."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    words = [*before, sys.executable, "-c", code]
    return subprocess.run(words, preexec_fn=limit, capture_output=True, text=True, timeout=60, check=False)


LIMITS = "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))"


@pytest.mark.parametrize(("soft", "hard"), [(256, 4096), (4096, 4096)])
def test_a_child_may_open_as_many_files_as_the_hard_limit_allows(soft: int, hard: int) -> None:
    done = limited(soft, hard, LIMITS, *COMMAND, str(os.getpid()))
    assert done.stdout.split() == [str(hard), str(hard)]


def test_but_not_millions(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda name: (1024, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", lambda name, limits: found.append(limits))
    raise_open_files()
    assert found == [(ENOUGH_FILES, resource.RLIM_INFINITY)]


def test_too_low_a_hard_limit_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda name: (256, 256))
    with pytest.raises(
        TargetError, match=rf"^a process may have 256 open files .* live runs need {LEAST_FILES}: raise"
    ):
        require_open_files()
    monkeypatch.setattr(resource, "getrlimit", lambda name: (256, LEAST_FILES))
    require_open_files()


JUDGE = (
    "import pytest, sys; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', 'suites/spread.py', '--world', 'live']))"
)


def test_a_session_stops_before_its_first_live_run() -> None:
    done = limited(256, 256, JUDGE)
    assert done.returncode == 2, done.stdout
    assert "no tests ran" in done.stdout
    assert "steelyard: error: a process may have 256 open files at most here" in done.stdout
