"""A Linux timerfd on CLOCK_MONOTONIC; asyncio and gevent wait by watching its descriptor."""

from __future__ import annotations

import ctypes
import math
import os
import time

# Constants of <sys/timerfd.h>; `os.timerfd_create` needs Python 3.13.
_ABSTIME = 1
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Timerfd:
    """A timer, set for each wait. Its `descriptor` is readable once it has expired. OSError outside Linux."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "timerfd_create"):
            raise OSError("no timerfd: only Linux has it")
        self.descriptor: int = libc.timerfd_create(time.CLOCK_MONOTONIC, _NONBLOCK | _CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._settime = libc.timerfd_settime
        self._settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._wanted = _Itimerspec(_Timespec(0, 0), _Timespec(0, 0))

    def set(self, due_s: float) -> None:
        """Let it expire at `due_s` on CLOCK_MONOTONIC, never before; replaces an earlier setting."""
        # Rounded up, so the clock has reached the deadline; 0 would disarm the timer.
        value = self._wanted.value
        value.seconds, value.nanoseconds = divmod(max(1, math.ceil(due_s * 1e9)), 1_000_000_000)
        if self._settime(self.descriptor, _ABSTIME, ctypes.addressof(self._wanted), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def expired(self) -> bool:
        """Whether it has expired since it was set; a second call returns False."""
        try:
            os.read(self.descriptor, 8)
        except BlockingIOError:  # it was set again after it had expired
            return False
        return True

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)
