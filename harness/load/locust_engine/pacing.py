"""Pacing of greenlets: wait for an absolute time of CLOCK_MONOTONIC, never early and hardly late.

gevent's timers round up to whole milliseconds, because epoll does; the median request of an open loop would be half a
millisecond late. On Linux a timerfd watched by the event loop is exact. Elsewhere `gevent.sleep` is used.
"""

from __future__ import annotations

import sys
from time import monotonic
from types import TracebackType

import gevent
from gevent.hub import Waiter

from harness.load.timerfd import Timerfd

_MAX_SLEEP_S = 0.05
_READABLE = 1


class Pacer:
    """Lets one greenlet wait for one time after another. Use it in a `with` block."""

    def __init__(self, use_timerfd: bool = sys.platform == "linux") -> None:
        self._timer = Timerfd() if use_timerfd else None
        if self._timer is not None:
            self._waiter: Waiter[None] | None = None
            # Watched all the time: starting for each wait would cost two more system calls.
            self._watcher = gevent.get_hub().loop.io(self._timer.descriptor, _READABLE)
            self._watcher.start(self._expired)

    def __enter__(self) -> Pacer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._watcher.stop()
            self._watcher.close()
            self._timer.close()
            self._timer = None

    def sleep_until(self, due_s: float) -> None:
        """Return at or after `due_s`, never before; at once if it has passed, else other greenlets run."""
        timer = self._timer
        if timer is None:
            if monotonic() < due_s:
                sleep_until(due_s)
            return
        while monotonic() < due_s:
            self._waiter = Waiter()
            timer.set(due_s)
            try:
                self._waiter.get()
            finally:
                self._waiter = None

    def _expired(self) -> None:
        if self._timer is not None and self._timer.expired() and self._waiter is not None:
            self._waiter.switch(None)


def sleep_until(due_s: float) -> None:
    """Return at or after `due_s` on CLOCK_MONOTONIC, never before, up to a millisecond after; for any greenlet."""
    while True:
        gevent.sleep(min(max(due_s - monotonic(), 0.0), _MAX_SLEEP_S))
        if monotonic() >= due_s:
            return
