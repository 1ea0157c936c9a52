"""Clean-up of a session: SIGTERM is handled like Ctrl-C, and folders of dead sessions are removed.

Child processes have a guard (harness.live.process.guard); leftover folders are removed by the next session.
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
    """SIGTERM was received. A KeyboardInterrupt, because all callers handle that one, pytest included."""


def take_sigterm() -> Callable[[], None]:
    """Make SIGTERM raise TerminatedError in the main thread; returns a function that restores the handler.

    Later SIGTERMs are ignored: they must not interrupt the clean-up. Does nothing outside the main thread, where Python
    allows no handlers, or if the signal already has a handler.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return lambda: None

    def terminate(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, ignore)
        raise TerminatedError("SIGTERM")

    def ignore(number: int, frame: FrameType | None) -> None:
        """Not SIG_IGN, which children would inherit."""

    def restore() -> None:
        if signal.getsignal(signal.SIGTERM) in (terminate, ignore):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, terminate)
    return restore


def session_folder() -> Path:
    """A new temporary folder with our process id in its name; removes the folders of processes that have ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        found = FOLDER.fullmatch(folder.name)
        if found and _is_ours(folder) and not _is_alive(int(found[1])):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))


def _is_ours(folder: Path) -> bool:
    """Whether it is a real folder of this user."""
    try:
        return not folder.is_symlink() and folder.is_dir() and folder.lstat().st_uid == os.getuid()
    except OSError:  # removed in the meantime
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's process, or not a process id: unknown
        return True
    return True
