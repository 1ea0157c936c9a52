"""One timer per process: callbacks at absolute deadlines on CLOCK_MONOTONIC, never early.

``asyncio.sleep`` is up to a millisecond late, because epoll waits for whole milliseconds, and other event loops are
early by as much. A timerfd watched by the loop is neither: on Linux ``Clock`` keeps a heap of deadlines and one timerfd
set to the earliest. On other systems it falls back to ``loop.call_at`` and checks the time again before it acts.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import Protocol


class Timer:
    """A scheduled callback; ``cancel`` may be called at any time."""

    __slots__ = ("callback", "deadline_s")

    def __init__(self, deadline_s: float, callback: Callable[[], object]) -> None:
        self.deadline_s = deadline_s
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Prevent the callback; does nothing if it has run."""
        self.callback = None


def wake(future: asyncio.Future[None]) -> None:
    """Complete ``future``; does nothing if it is done."""
    if not future.done():
        future.set_result(None)


class Alarm(Protocol):
    """Calls its owner once, at or shortly before or after a deadline."""

    def set(self, deadline_s: float) -> None:
        """Replace the deadline; infinity: never."""

    def close(self) -> None:
        """Release the alarm; it never fires again."""


class Clock:
    """Calls back at absolute times of ``time.monotonic``, never before them.

    Must be created and used in one event loop. Callbacks due at the same time run in the order in which they were
    scheduled. An exception in a callback goes to the loop's exception handler and does not affect the others.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, use_timerfd: bool | None = None) -> None:
        """``use_timerfd``: None uses a timerfd on Linux only."""
        self._loop = loop
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = 0
        self._set_to_s = math.inf
        self._alarm: Alarm
        if use_timerfd if use_timerfd is not None else sys.platform == "linux":
            self._alarm = _TimerfdAlarm(loop, self._run_due)
        else:
            self._alarm = _LoopAlarm(loop, self._run_due)

    def call_at(self, deadline_s: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` at ``deadline_s`` or as soon after it as possible, never from within ``call_at``."""
        timer = Timer(deadline_s, callback)
        self._order = order = self._order + 1
        heappush(self._heap, (deadline_s, order, timer))
        if deadline_s < self._set_to_s:
            self._set_to_s = deadline_s
            self._alarm.set(deadline_s)
        return timer

    async def sleep_until(self, deadline_s: float) -> None:
        """Return at ``deadline_s`` or as soon after it as possible; at once if it has passed."""
        if deadline_s <= time.monotonic():
            return
        future: asyncio.Future[None] = self._loop.create_future()
        timer = self.call_at(deadline_s, partial(wake, future))
        try:
            await future
        except asyncio.CancelledError:
            timer.cancel()
            raise

    def close(self) -> None:
        """Drop all callbacks and release the timer."""
        self._heap.clear()
        self._alarm.close()

    def _run_due(self) -> None:
        """Run all due callbacks, including those that become due meanwhile, and set the alarm for the next.

        A further wake-up would cost as much as a streamed event.
        """
        heap = self._heap
        now_s = time.monotonic()
        # At most as many as scheduled now, or callbacks that schedule further ones could block the loop.
        remaining = len(heap)
        while heap and remaining:
            deadline_s, _, timer = heap[0]
            callback = timer.callback
            if callback is not None and deadline_s > now_s:
                now_s = time.monotonic()
                if deadline_s > now_s:
                    break
            remaining -= 1
            heappop(heap)
            if callback is None:
                continue
            try:
                callback()
            except Exception as error:
                self._loop.call_exception_handler({"message": "clock callback failed", "exception": error})
        self._set_to_s = heap[0][0] if heap else math.inf
        self._alarm.set(self._set_to_s)


class _LoopAlarm:
    """An alarm based on ``loop.call_at``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, run_due: Callable[[], None]) -> None:
        self._loop = loop
        self._run_due = run_due
        self._handle: asyncio.TimerHandle | None = None

    def set(self, deadline_s: float) -> None:
        self.close()
        if deadline_s < math.inf:
            # The loop may use another clock, and may fire early by up to its resolution.
            self._handle = self._loop.call_at(self._loop.time() + deadline_s - time.monotonic(), self._run_due)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


# About a hundred years, near the limit of a timerfd; later deadlines need no timer.
_MAX_DEADLINE_S = 3e9


class _TimerfdAlarm:
    """An alarm based on a Linux timerfd."""

    def __init__(self, loop: asyncio.AbstractEventLoop, run_due: Callable[[], None]) -> None:
        self._loop = loop
        self._descriptor = _timerfd_create()
        self._set_to = _timerfd_setter(self._descriptor)
        # Never read: setting it after each expiry makes it unreadable again.
        loop.add_reader(self._descriptor, run_due)

    def set(self, deadline_s: float) -> None:
        if self._descriptor >= 0:
            # Rounded up, so that the clock has reached the deadline; 0 switches the timer off.
            self._set_to(max(1, math.ceil(deadline_s * 1e9)) if deadline_s < _MAX_DEADLINE_S else 0)

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


# Constants of <sys/timerfd.h> and <fcntl.h> on Linux.
_TFD_NONBLOCK = os.O_NONBLOCK if sys.platform != "win32" else 0
_TFD_CLOEXEC = os.O_CLOEXEC if sys.platform != "win32" else 0
_TFD_TIMER_ABSTIME = 1

if sys.version_info >= (3, 13) and sys.platform == "linux":

    def _timerfd_create() -> int:
        return os.timerfd_create(time.CLOCK_MONOTONIC, flags=os.TFD_NONBLOCK | os.TFD_CLOEXEC)

    def _timerfd_setter(descriptor: int) -> Callable[[int], None]:
        def set_to(deadline_ns: int) -> None:
            os.timerfd_settime_ns(descriptor, flags=os.TFD_TIMER_ABSTIME, initial=deadline_ns)

        return set_to

else:

    class _Timespec(ctypes.Structure):
        _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

    class _Itimerspec(ctypes.Structure):
        _fields_ = (("interval", _Timespec), ("value", _Timespec))

    _libc = ctypes.CDLL(None, use_errno=True)

    def _timerfd_create() -> int:
        descriptor: int = _libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        return descriptor

    _settime = _libc.timerfd_settime
    _settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def _timerfd_setter(descriptor: int) -> Callable[[int], None]:
        # Created once: creating it per deadline would cost more than the system call.
        spec = _Itimerspec(_Timespec(0, 0), _Timespec(0, 0))
        value, address = spec.value, ctypes.addressof(spec)

        def set_to(deadline_ns: int) -> None:
            value.seconds, value.nanoseconds = divmod(deadline_ns, 1_000_000_000)
            if _settime(descriptor, _TFD_TIMER_ABSTIME, address, None) < 0:
                raise OSError(ctypes.get_errno(), "timerfd_settime failed")

        return set_to
