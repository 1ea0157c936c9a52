"""When a greenlet may go on: at an absolute time of CLOCK_MONOTONIC, never before it, and hardly after.

gevent's own timers end on whole milliseconds, because epoll waits for those; the median request of an open loop would
be half a millisecond late. On Linux a timerfd that the event loop watches is exact. Elsewhere it is `gevent.sleep`.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
from time import monotonic
from types import TracebackType

import gevent
from gevent.hub import Waiter

_NAP_S = 0.05
_READABLE = 1

# The numbers of <sys/timerfd.h> on Linux; `os.timerfd_create` begins with Python 3.13.
_TFD_TIMER_ABSTIME = 1
_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Pacer:
    """Lets one greenlet wait for one time after the other. To be used in a `with` block."""

    def __init__(self, use_timerfd: bool = sys.platform == "linux") -> None:
        self._descriptor = -1
        if use_timerfd:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._descriptor = self._libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_FLAGS)
            if self._descriptor < 0:
                raise OSError(ctypes.get_errno(), "timerfd_create failed")
            self._settime = self._libc.timerfd_settime
            self._settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
            self._wanted = _Itimerspec(_Timespec(0, 0), _Timespec(0, 0))
            self._waiter: Waiter[None] | None = None
            # Watched all the time: beginning anew for every wait would cost two more system calls.
            self._watcher = gevent.get_hub().loop.io(self._descriptor, _READABLE)
            self._watcher.start(self._expired)

    def __enter__(self) -> Pacer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor >= 0:
            self._watcher.stop()
            self._watcher.close()
            os.close(self._descriptor)
            self._descriptor = -1

    def sleep_until(self, due_s: float) -> None:
        """Return at or after `due_s`, never before; at once if it has passed, else other greenlets run meanwhile."""
        if self._descriptor < 0:
            if monotonic() < due_s:
                sleep_until(due_s)
            return
        while monotonic() < due_s:
            self._waiter = Waiter()
            self._set(due_s)
            try:
                self._waiter.get()
            finally:
                self._waiter = None

    def _set(self, due_s: float) -> None:
        # Rounded up, so that the clock has reached the deadline; 0 would switch the timer off.
        value = self._wanted.value
        value.seconds, value.nanoseconds = divmod(max(1, math.ceil(due_s * 1e9)), 1_000_000_000)
        if self._settime(self._descriptor, _TFD_TIMER_ABSTIME, ctypes.addressof(self._wanted), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def _expired(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:  # it was set anew after it had expired
            return
        if self._waiter is not None:
            self._waiter.switch(None)


def sleep_until(due_s: float) -> None:
    """Return at or after `due_s` on CLOCK_MONOTONIC, never before, up to a millisecond after; for any greenlet."""
    while True:
        gevent.sleep(min(max(due_s - monotonic(), 0.0), _NAP_S))
        if monotonic() >= due_s:
            return
