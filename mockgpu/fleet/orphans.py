"""No process outlives the one that started it, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(sign: signal.Signals, parent_pid: int | None = None) -> None:
    """Have the kernel send ``sign`` to this process when its parent ends; on Linux only, else nothing.

    The parent is, to the kernel, the thread that started this process. With ``parent_pid`` this process ends
    at once if that parent has gone already.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(sign), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent_pid is not None and os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)
