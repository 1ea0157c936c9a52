"""That a session leaves nothing behind: SIGTERM is taken like Ctrl-C, and folders of dead sessions are removed.

Children have a guard of their own (harness.live.process.guard); a folder has none, so the next session looks after it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

PREFIX = "steelyard-"
FOLDER = re.compile(rf"{PREFIX}([1-9][0-9]*)-\w+")


class TerminatedError(KeyboardInterrupt):
    """SIGTERM came. A kind of Ctrl-C, because everything on the way out knows that one, pytest included."""


def take_sigterm() -> Callable[[], None]:
    """Let SIGTERM raise TerminatedError in the main thread; returns what gives the signal back.

    Once only: a second one must not break off the clean-up. Does nothing outside the main thread, where Python allows
    no handlers, and where somebody handles the signal already.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return lambda: None

    def terminate(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, ignore)
        raise TerminatedError("SIGTERM")

    def ignore(number: int, frame: FrameType | None) -> None:
        """Not SIG_IGN, which children would inherit."""

    def give_back() -> None:
        if signal.getsignal(signal.SIGTERM) in (terminate, ignore):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, terminate)
    return give_back


def session_folder() -> Path:
    """A new temporary folder whose name carries our process id; those of processes that are gone are removed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        found = FOLDER.fullmatch(folder.name)
        if found and _is_ours(folder) and not _lives(int(found[1])):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))


def _is_ours(folder: Path) -> bool:
    """Whether it is a real folder of this user."""
    try:
        return not folder.is_symlink() and folder.is_dir() and folder.lstat().st_uid == os.getuid()
    except OSError:  # somebody else has just removed it
        return False


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's, or no number of a process: nothing to judge by
        return True
    return True
