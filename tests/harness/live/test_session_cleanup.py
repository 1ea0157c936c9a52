"""SIGTERM handled like Ctrl-C, and folders of killed sessions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.live.process.session_dir import TerminatedError, session_folder, take_sigterm
from harness.live.session import LiveSession


@pytest.fixture(autouse=True)
def _default() -> Iterator[None]:
    """The default SIGTERM handler, before and after each test."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_is_raised_once_and_given_back() -> None:
    give_back = take_sigterm()
    with pytest.raises(KeyboardInterrupt) as caught:
        signal.raise_signal(signal.SIGTERM)
    assert caught.type is TerminatedError
    signal.raise_signal(signal.SIGTERM)  # during the clean-up, which it must not break off
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_IGN, "children would inherit that"
    give_back()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_handler_of_somebody_elses_stays() -> None:
    seen: list[int] = []

    def note(number: int, frame: object) -> None:
        seen.append(number)

    signal.signal(signal.SIGTERM, note)
    give_back = take_sigterm()
    signal.raise_signal(signal.SIGTERM)
    give_back()
    assert seen == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is note


def test_a_handler_set_in_the_meantime_stays() -> None:
    give_back = take_sigterm()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    give_back()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


def test_in_another_thread_there_is_nothing_to_take() -> None:
    taken: list[Callable[[], None]] = []
    thread = threading.Thread(target=lambda: taken.append(take_sigterm()))
    thread.start()
    thread.join()
    taken[0]()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_session_takes_sigterm_for_as_long_as_it_is_open() -> None:
    with LiveSession():
        assert callable(signal.getsignal(signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


# --- folders ----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files during a test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def dead() -> int:
    """Id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_the_name_carries_the_process(folder: Path) -> None:
    made = session_folder()
    assert made.parent == folder
    assert made.name.startswith(f"steelyard-{os.getpid()}-")


def test_folders_of_dead_processes_are_removed_and_nothing_else(folder: Path, dead: int) -> None:
    (folder / "elsewhere").mkdir()
    stale = folder / f"steelyard-{dead}-abc_1def"
    (stale / "run-1").mkdir(parents=True)
    (stale / "run-1" / "balancer.log").write_text("the last words")
    living = [f"steelyard-{pid}-abcdefgh" for pid in (os.getpid(), os.getppid(), 1, 9**40)]
    for name in (*living, "steelyard-abcdefgh", f"steelyard-{dead}", f"steelyard-0{dead}-abcdefgh"):
        (folder / name).mkdir()
    (folder / f"steelyard-{dead}-a_file").write_text("")
    (folder / f"steelyard-{dead}-a_link").symlink_to(folder / "elsewhere")
    before = set(folder.iterdir())
    made = session_folder()
    assert set(folder.iterdir()) == before - {stale} | {made}


def test_folders_of_other_users_stay(folder: Path, dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / f"steelyard-{dead}-abcdefgh").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    session_folder()
    assert (folder / f"steelyard-{dead}-abcdefgh").exists()
