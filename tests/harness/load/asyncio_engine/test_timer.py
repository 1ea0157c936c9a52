"""Waiting: never early, one task at a time, usable again after a cancelled wait."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

import pytest

from harness.load.asyncio_engine.timer import SleepWaiting, TimerfdWaiting, Waiting, best_waiting

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="timerfd is Linux's")
WAYS = [SleepWaiting, pytest.param(TimerfdWaiting, marks=LINUX), best_waiting]


@pytest.mark.parametrize("make", WAYS)
def test_never_early(make: Callable[[], Waiting]) -> None:
    async def early() -> list[float]:
        waiting, found = make(), []
        for step in range(60):
            due_s = time.monotonic() + step * 37e-6
            await waiting.until(due_s)
            found.append(due_s - time.monotonic())
        waiting.close()
        return found

    assert max(asyncio.run(early())) <= 0.0


@pytest.mark.parametrize("make", WAYS)
def test_others_run_even_if_the_time_is_past(make: Callable[[], Waiting]) -> None:
    async def turns() -> int:
        waiting, count = make(), 0

        async def other() -> None:
            nonlocal count
            while True:
                count += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        for _ in range(10):
            await waiting.until(time.monotonic() - 1.0)
        task.cancel()
        waiting.close()
        return count

    assert asyncio.run(turns()) >= 5


@LINUX
def test_a_cancelled_wait_harms_no_later_one() -> None:
    async def late_s() -> float:
        waiting = TimerfdWaiting()
        task = asyncio.create_task(waiting.until(time.monotonic() + 0.01))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        time.sleep(0.02)  # noqa: ASYNC251  the timer expires while no task waits, before the loop polls it
        due_s = time.monotonic() + 0.05
        await waiting.until(due_s)
        waiting.close()
        return time.monotonic() - due_s

    assert asyncio.run(late_s()) >= 0.0


@LINUX
def test_two_tasks_at_a_time_are_refused() -> None:
    async def both() -> None:
        waiting = TimerfdWaiting()
        first = asyncio.create_task(waiting.until(time.monotonic() + 10.0))
        await asyncio.sleep(0)
        try:
            await waiting.until(time.monotonic() + 10.0)
        finally:
            first.cancel()
            waiting.close()

    with pytest.raises(RuntimeError, match="create one timer for each task"):
        asyncio.run(both())
