"""Discovery of running `steelyard up` processes, and only of running ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness.scenario.model import ClaimsError, TargetError
from harness.up.run_lock import RunAddress, find, lock_name, runtime_folder
from tests.harness.live.helpers import ROOT

HERE = RunAddress(1, "http://127.0.0.1:1", "secret")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder for one test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_stage_is_found_for_as_long_as_it_holds_its_name() -> None:
    with lock_name("default") as lock:
        with pytest.raises(TargetError, match="still starting"):
            find("default")
        lock.publish(HERE)
        assert find("default") == HERE
        with pytest.raises(TargetError, match="no steelyard up --name other is running"):
            find("other")
    with pytest.raises(TargetError, match="no steelyard up is running: start one with steelyard up"):
        find("default")
    assert list(runtime_folder().iterdir()) == []


def test_a_name_is_held_once() -> None:
    with lock_name("a"), lock_name("b"):
        with pytest.raises(TargetError, match="a steelyard up named 'a' is already running"), lock_name("a"):
            raise AssertionError("held twice")
        assert len(list(runtime_folder().iterdir())) == 2  # the refused one removed no file


def test_only_its_user_can_read_it() -> None:
    with lock_name("default") as lock:
        lock.publish(HERE)
        (file,) = runtime_folder().iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
        assert runtime_folder().stat().st_mode & 0o777 == 0o700


def test_what_a_killed_one_left_counts_for_nothing(folder: Path) -> None:
    script = (
        "import os, signal\n"
        "from harness.up.run_lock import RunAddress, lock_name\n"
        "with lock_name('default') as lock:\n"
        "    lock.publish(RunAddress(os.getpid(), 'http://127.0.0.1:1', 'secret'))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (runtime_folder() / "up-default.json").read_text()
    with pytest.raises(TargetError, match="no steelyard up is running"):
        find("default")
    with lock_name("default") as lock:
        lock.publish(HERE)
        assert find("default") == HERE


@pytest.mark.parametrize("name", ["", "../up", ".", "a b", "x" * 62])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(ClaimsError, match="--name"):
        find(name)


def test_a_folder_that_others_can_reach_is_not_used(folder: Path) -> None:
    runtime_folder().chmod(0o755)
    with pytest.raises(TargetError, match="expected a folder of this user with mode 700"):
        runtime_folder()


def test_a_link_to_elsewhere_is_not_used(folder: Path) -> None:
    (folder / "elsewhere").mkdir(mode=0o700)
    (folder / f"steelyard-{os.getuid()}").symlink_to(folder / "elsewhere")
    with pytest.raises(TargetError, match="expected a folder of this user"):
        runtime_folder()
