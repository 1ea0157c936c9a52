import asyncio
import math
import random
import sys
import time
from functools import partial

import pytest

from mockgpu.server.clock import Clock

KINDS = [False, True] if sys.platform == "linux" else [False]
pytestmark = pytest.mark.parametrize("use_timerfd", KINDS)


def test_never_early(use_timerfd: bool) -> None:
    async def main() -> list[float]:
        clock = Clock(asyncio.get_running_loop(), use_timerfd=use_timerfd)
        source = random.Random(1)
        late: list[float] = []

        async def one() -> None:
            for _ in range(4):
                deadline_s = time.monotonic() + source.random() * 0.05
                await clock.sleep_until(deadline_s)
                late.append(time.monotonic() - deadline_s)

        await asyncio.gather(*(one() for _ in range(250)))
        clock.close()
        return late

    late = asyncio.run(main())
    assert len(late) == 1_000
    assert min(late) >= 0
    # Generous: only a lost alarm causes a delay this long.
    assert max(late) < 2


def test_an_earlier_deadline_overtakes(use_timerfd: bool) -> None:
    async def main() -> list[str]:
        clock = Clock(asyncio.get_running_loop(), use_timerfd=use_timerfd)
        order: list[str] = []
        done = asyncio.Event()
        now_s = time.monotonic()
        clock.call_at(now_s + 0.04, lambda: order.append("late"))
        clock.call_at(now_s + 0.04, done.set)
        clock.call_at(now_s + 0.02, lambda: order.append("early"))
        clock.call_at(now_s + 0.01, lambda: order.append("cancelled")).cancel()
        clock.call_at(now_s - 1, lambda: order.append("overdue"))
        await done.wait()
        clock.close()
        return order

    assert asyncio.run(main()) == ["overdue", "early", "late"]


@pytest.mark.parametrize("far_s", [3.1e9, 1e11, 1e300, math.inf])
def test_no_deadline_is_too_far(use_timerfd: bool, far_s: float) -> None:
    async def main() -> list[str]:
        clock = Clock(asyncio.get_running_loop(), use_timerfd=use_timerfd)
        order: list[str] = []
        clock.call_at(far_s, lambda: order.append("far"))
        await clock.sleep_until(time.monotonic() + 0.01)
        await clock.sleep_until(time.monotonic() + 0.01)
        clock.close()
        return order

    assert asyncio.run(asyncio.wait_for(main(), 20)) == []


def test_same_deadline_runs_in_order_and_may_ask_for_more(use_timerfd: bool) -> None:
    async def main() -> list[int]:
        clock = Clock(asyncio.get_running_loop(), use_timerfd=use_timerfd)
        order: list[int] = []
        done = asyncio.Event()
        at_s = time.monotonic() + 0.01
        for number in range(20):
            clock.call_at(at_s, partial(order.append, number))
        clock.call_at(at_s, lambda: clock.call_at(at_s + 0.01, done.set))
        await done.wait()
        assert time.monotonic() >= at_s + 0.01
        clock.close()
        return order

    assert asyncio.run(main()) == list(range(20))


def test_what_comes_due_while_another_runs_needs_no_turn_of_the_loop(use_timerfd: bool) -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        clock = Clock(loop, use_timerfd=use_timerfd)
        order: list[str] = []
        done = asyncio.Event()
        at_s = time.monotonic() + 0.01

        def first() -> None:
            order.append("first")
            loop.call_soon(order.append, "the loop")
            while time.monotonic() < at_s + 0.002:
                continue

        clock.call_at(at_s, first)
        clock.call_at(at_s + 0.001, lambda: order.append("second"))
        clock.call_at(at_s + 0.004, done.set)
        await done.wait()
        clock.close()
        return order

    assert asyncio.run(main()) == ["first", "second", "the loop"]


def test_callbacks_that_ask_for_ever_more_leave_the_loop_its_turns(use_timerfd: bool) -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        clock = Clock(loop, use_timerfd=use_timerfd)
        calls = 0
        reported: asyncio.Future[int] = loop.create_future()

        def more() -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                loop.call_soon(lambda: reported.set_result(calls))
            if calls < 1_000:
                clock.call_at(0.0, more)

        clock.call_at(0.0, more)
        count = await reported
        clock.close()
        return count

    assert asyncio.run(main()) == 1


def test_with_nothing_to_come_it_sleeps(use_timerfd: bool) -> None:
    class Counted(Clock):
        rings = 0

        def _run_due(self) -> None:
            self.rings += 1
            super()._run_due()

    async def main() -> int:
        clock = Counted(asyncio.get_running_loop(), use_timerfd=use_timerfd)
        await clock.sleep_until(time.monotonic() + 0.001)
        rung = clock.rings
        await asyncio.sleep(0.02)
        rings = clock.rings - rung
        await clock.sleep_until(time.monotonic() + 0.001)
        clock.close()
        return rings

    assert asyncio.run(main()) == 0


def test_a_failing_callback_harms_no_other(use_timerfd: bool) -> None:
    async def main() -> list[object]:
        loop = asyncio.get_running_loop()
        reported: list[object] = []
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        clock = Clock(loop, use_timerfd=use_timerfd)
        at_s = time.monotonic() + 0.01
        clock.call_at(at_s, lambda: 1 / 0)
        await clock.sleep_until(at_s)
        await clock.sleep_until(at_s + 0.005)
        clock.close()
        return reported

    (error,) = asyncio.run(main())
    assert isinstance(error, ZeroDivisionError)


def test_a_cancelled_sleep_leaves_nothing_behind(use_timerfd: bool) -> None:
    async def main() -> None:
        clock = Clock(asyncio.get_running_loop(), use_timerfd=use_timerfd)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await clock.sleep_until(time.monotonic() + 0.02)
        await clock.sleep_until(time.monotonic() + 0.03)
        clock.close()

    asyncio.run(main())


def test_closing_silences_it(use_timerfd: bool) -> None:
    async def main() -> list[int]:
        called: list[int] = []
        clock = Clock(asyncio.get_running_loop(), use_timerfd=use_timerfd)
        clock.call_at(time.monotonic() + 0.01, lambda: called.append(1))
        clock.close()
        clock.close()
        await asyncio.sleep(0.03)
        return called

    assert asyncio.run(main()) == []


def test_a_callback_may_close_it(use_timerfd: bool) -> None:
    async def main() -> list[object]:
        loop = asyncio.get_running_loop()
        reported: list[object] = []
        loop.set_exception_handler(lambda _, context: reported.append(context))
        clock = Clock(loop, use_timerfd=use_timerfd)
        closed = asyncio.Event()

        def close() -> None:
            clock.close()
            closed.set()

        clock.call_at(time.monotonic() + 0.001, close)
        await closed.wait()
        return reported

    assert asyncio.run(main()) == []
