"""Start a child so that it ends with its parent: set this up, then exec the command.

`COMMAND PARENT_PID WORDS...` runs `main`: on Linux the kernel sends SIGKILL when the parent dies (see
`harness.parent_death`), so that no child outlives a killed pytest. This is a wrapper, not a `preexec_fn`, because
running Python code after fork is unsafe while threads run. Standard library only (`-S`), which makes it start quickly.

It also raises the limit of open files, since a server that runs out of them would be blamed for it.

The kernel signals the child only. The child's own children (nginx workers survive the kill of their master) are ended
by a watchdog: a small process of the same group, which `Child.stop` ends with the group.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import time
from pathlib import Path

import harness
from harness.parent_death import die_with_parent

COMMAND = (
    *(sys.executable, "-I", "-S", "-c"),
    f"import sys; sys.path.append({str(Path(harness.__file__).parents[1])!r}); "
    "from harness.live.process import guard; guard.main(int(sys.argv[1]), sys.argv[2:])",
)
"""The command line of the guard, to be followed by the parent's process id and the words of the command."""
ENOUGH_FILES = 65_536
"""Open files for any server here; not more, since some servers size their tables by the limit (HAProxy)."""

CLEAN_UP_S = 1.0
"""Time the process group has to clean up after the parent's death."""


def main(parent: int, words: list[str]) -> None:
    """Does not return; exit status 127 if the command cannot be run."""
    watched = -1
    if sys.platform == "linux":
        try:
            watched = os.pidfd_open(parent)
        except OSError:
            watched = -1  # a kernel before 5.3, or no such parent (checked below)
    if not die_with_parent(signal.SIGKILL, parent):
        sys.exit(1)
    raise_open_files()
    if watched >= 0 and os.getpgrp() == os.getpid():
        leave_watchdog(watched)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        print(f"{words[0]}: cannot be run: {error.strerror}", file=sys.stderr)
        sys.exit(127)


def raise_open_files() -> None:
    """Raise this process's limit of open files to `ENOUGH_FILES`, or as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(ENOUGH_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def leave_watchdog(watched: int) -> None:
    """Start a process that kills its group `CLEAN_UP_S` after the process of `watched` (a pidfd) has ended."""
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return
    if os.fork():
        os._exit(0)  # orphans the watchdog, so that it is not a child of the command
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.closerange(0, watched)  # an inherited pipe would never reach its end
    os.closerange(watched + 1, 1024)
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.poll()
    time.sleep(CLEAN_UP_S)
    os.killpg(0, signal.SIGKILL)
