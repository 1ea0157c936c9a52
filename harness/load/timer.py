"""Waiting for an instant on CLOCK_MONOTONIC in asyncio: never early, and some ten microseconds late instead of a
millisecond.

`asyncio.sleep` rounds up to whole milliseconds, because epoll waits in those. A timerfd that the loop watches does
not. Where there is none (not Linux), `loop.call_at` and a second look at the time.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import sys
import time
from typing import Protocol


class Waiting(Protocol):
    """A way of waiting for one instant at a time."""

    async def until(self, due_s: float) -> None:
        """Return at or after `due_s` on CLOCK_MONOTONIC; lets other tasks run even if it is past."""

    def close(self) -> None:
        """Give back what it holds of the system; nobody waits any more."""


class SleepWaiting:
    """Waits with `asyncio.sleep`: works everywhere, up to a millisecond late."""

    async def until(self, due_s: float) -> None:
        """Return at or after `due_s`, never before: loops may fire within their own resolution of the time."""
        await asyncio.sleep(due_s - time.monotonic())
        if time.monotonic() < due_s:
            await self.until(due_s)

    def close(self) -> None:
        """Nothing is held."""


class TimerfdWaiting:
    """Waits for a Linux timerfd; one task at a time. Must be made and used in one running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor = _create()
        self._waiter: asyncio.Future[None] | None = None
        self._loop.add_reader(self._descriptor, self._expired)

    async def until(self, due_s: float) -> None:
        """Return at or after `due_s`. RuntimeError if another task waits already."""
        if due_s <= time.monotonic():
            await asyncio.sleep(0)
            return
        if self._waiter is not None:
            raise RuntimeError("somebody waits for this timer already; make one for each task")
        self._waiter = self._loop.create_future()
        try:
            _set(self._descriptor, math.ceil(due_s * 1e9))
            await self._waiter
        finally:
            self._waiter = None

    def close(self) -> None:
        """Close the timerfd."""
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _expired(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:  # set anew after it had expired for a wait that was cancelled
            return
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def best_waiting() -> Waiting:
    """The most exact way of waiting that this system has. To be called in a running loop."""
    return TimerfdWaiting() if sys.platform == "linux" else SleepWaiting()


# The numbers of <sys/timerfd.h> on Linux. Python has these calls itself from 3.13 on.
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_ABSTIME = 1

if sys.version_info >= (3, 13) and sys.platform == "linux":

    def _create() -> int:
        return os.timerfd_create(time.CLOCK_MONOTONIC, flags=os.TFD_NONBLOCK | os.TFD_CLOEXEC)

    def _set(descriptor: int, due_ns: int) -> None:
        os.timerfd_settime_ns(descriptor, flags=os.TFD_TIMER_ABSTIME, initial=due_ns)

else:

    class _Itimerspec(ctypes.Structure):
        _fields_ = tuple((name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns"))

    _libc = ctypes.CDLL(None, use_errno=True)

    def _create() -> int:
        descriptor: int = _libc.timerfd_create(time.CLOCK_MONOTONIC, _NONBLOCK | _CLOEXEC)
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        return descriptor

    def _set(descriptor: int, due_ns: int) -> None:
        wanted = _Itimerspec(0, 0, *divmod(due_ns, 1_000_000_000))
        if _libc.timerfd_settime(descriptor, _ABSTIME, ctypes.byref(wanted), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")
