"""Stand between Steelyard and a child: tie the child's life to its parent's, then become the child.

`python -I -S guard.py PARENT_PID COMMAND...`: on Linux the kernel is asked to send SIGKILL when the parent dies
(PR_SET_PDEATHSIG, which survives exec), so that no child outlives a pytest that was killed itself. A wrapper, and not
`preexec_fn`, because forking with Python code in the child is unsafe while threads run. Standard library only.

The kernel's signal reaches the child alone. What the child has started (the workers of an nginx live on when their
master is killed) is ended by a watchdog: a small process of the same group, which `Child.stop` ends with the group.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
TIDY_S = 1.0
"""After the parent's death the child's family has this long to tidy up."""


def main(parent: int, words: list[str]) -> None:
    """Never returns; exit status 127 if the command cannot be run."""
    watched = -1
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        try:
            watched = os.pidfd_open(parent)
        except OSError:
            watched = -1  # a kernel before 5.3, or no such parent, which shows below
    if os.getppid() != parent:  # the parent died before the kernel was asked
        sys.exit(1)
    if watched >= 0 and os.getpgrp() == os.getpid():
        leave_watchdog(watched)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        print(f"{words[0]}: cannot be run: {error.strerror}", file=sys.stderr)
        sys.exit(127)


def leave_watchdog(watched: int) -> None:
    """Start a process that kills its group some time after the process behind `watched` (a pidfd) has ended."""
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return
    if os.fork():
        os._exit(0)  # so that the watchdog is nobody's child: the command has no child that it did not start
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.closerange(0, watched)  # a pipe that it held open would never end
    os.closerange(watched + 1, 1024)
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.poll()
    time.sleep(TIDY_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
