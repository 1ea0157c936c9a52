"""Stand between Steelyard and a child: tie the child's life to its parent's, then become the child.

`python -I -S guard.py PARENT_PID COMMAND...`: on Linux the kernel is asked to send SIGKILL when the parent dies
(PR_SET_PDEATHSIG, which survives exec), so that no child outlives a pytest that was killed itself. A wrapper, and not
`preexec_fn`, because forking with Python code in the child is unsafe while threads run. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, words: list[str]) -> None:
    """Never returns; exit status 127 if the command cannot be run."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the kernel was asked
        sys.exit(1)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        print(f"{words[0]}: cannot be run: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
