"""Waiting for a time on CLOCK_MONOTONIC in asyncio: never early, about ten microseconds late instead of a millisecond.

`asyncio.sleep` rounds up to whole milliseconds, because epoll does. A timerfd watched by the loop does not. Outside
Linux: `asyncio.sleep` and a check of the clock.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Protocol

from harness.load.timerfd import Timerfd


class Waiting(Protocol):
    """Waits for one time after another."""

    async def until(self, due_s: float) -> None:
        """Return at or after `due_s` on CLOCK_MONOTONIC; lets other tasks run even if `due_s` is past."""

    def close(self) -> None:
        """Release its resources; no task may wait."""


class SleepWaiting:
    """Waits with `asyncio.sleep`: portable, up to a millisecond late."""

    async def until(self, due_s: float) -> None:
        """Return at or after `due_s`, never before: event loops may fire early by their clock resolution."""
        await asyncio.sleep(due_s - time.monotonic())
        if time.monotonic() < due_s:
            await self.until(due_s)

    def close(self) -> None:
        """Nothing to close."""


class TimerfdWaiting:
    """Waits for a Linux timerfd; one task at a time. Create and use it in one running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer = Timerfd()
        self._waiter: asyncio.Future[None] | None = None
        self._loop.add_reader(self._timer.descriptor, self._expired)

    async def until(self, due_s: float) -> None:
        """Return at or after `due_s`. RuntimeError if another task waits already."""
        if due_s <= time.monotonic():
            await asyncio.sleep(0)
            return
        if self._waiter is not None:
            raise RuntimeError("another task waits for this timer; create one timer for each task")
        self._waiter = self._loop.create_future()
        try:
            self._timer.set(due_s)
            await self._waiter
        finally:
            self._waiter = None

    def close(self) -> None:
        """Close the timerfd."""
        self._loop.remove_reader(self._timer.descriptor)
        self._timer.close()

    def _expired(self) -> None:
        if self._timer.expired() and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def best_waiting() -> Waiting:
    """The most exact waiting of this system. Call it in a running loop."""
    return TimerfdWaiting() if sys.platform == "linux" else SleepWaiting()
