"""The end of this process with its parent (Linux: PR_SET_PDEATHSIG). Standard library only."""

from __future__ import annotations

import ctypes
import os
import sys
from signal import Signals

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: Signals, parent_pid: int = 0) -> bool:
    """Let the kernel send `number` to this process when its parent ends; on Linux only.

    To the kernel, the parent is the thread that started this process. The setting survives exec, not fork.

    Returns whether `parent_pid` (0: any process) is the parent: False if it ended before the call.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    return not parent_pid or os.getppid() == parent_pid
