"""Sleep and wake-up."""

from __future__ import annotations

from typing import Literal

import pytest

from mockgpu.gpu.events import Event, Finished, Job, Loaded, Loading, Refused, Slept, Started, Woken
from mockgpu.gpu.model import GpuServer
from tests.mockgpu.boxes import box, drain, free, heavy, inference, times


def sleepy(**more: object) -> GpuServer:
    """Falls asleep in 4 or 1 s and wakes in 2 or 3 s, by level."""
    return box(free(), heavy("a"), heavy("b", 400), sleep_s=(4.0, 1.0), wake_s=(2.0, 3.0), **more)


def naps(events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, Slept | Woken)]


@pytest.mark.parametrize(("level", "slept_s", "woken_s"), [(1, 4.0, 12.0), (2, 1.0, 13.0)])
def test_each_level_takes_its_time(level: Literal[1, 2], slept_s: float, woken_s: float) -> None:
    server = sleepy()
    server.sleep(0.0, level)
    assert server.state().asleep_level == 0
    assert server.advance(9.0) == [Slept(slept_s, level)]
    assert server.state().asleep_level == level
    server.wake(10.0)
    server.advance(11.0)
    assert server.state().asleep_level == level
    assert server.advance(20.0) == [Woken(woken_s)]
    assert server.state().asleep_level == 0


def test_running_jobs_end_first_and_waiting_ones_go_on_after_the_wake_up() -> None:
    server = sleepy(max_running=1)
    server.submit(0.0, inference(1))
    server.submit(0.0, inference(2))
    server.sleep(1.0, 1)
    server.submit(2.0, Job(3, "", "update", 0, 0))
    server.wake(20.0)
    events = drain(server)
    assert naps(events) == [Slept(7.0, 1), Woken(22.0)]
    assert times(events, Started) == {1: 0.0, 2: 22.0, 3: 25.0}


def test_a_load_under_way_ends_first_and_none_begins() -> None:
    server = sleepy()
    server.submit(0.0, inference(1, model="a"))
    server.sleep(1.0, 1)
    server.submit(2.0, inference(2, model="b"))
    server.wake(20.0)
    events = drain(server)
    assert naps(events) == [Slept(14.0, 1), Woken(22.0)]
    assert [event for event in events if isinstance(event, Loading | Loaded)] == [
        Loading(0.0, "a"),
        Loaded(10.0, "a"),
        Loading(22.0, "b"),
        Loaded(32.0, "b"),
    ]
    assert times(events, Finished) == {1: 25.0, 2: 35.0}


def test_a_sleeping_server_takes_no_memory_and_models_are_back_with_it() -> None:
    server = sleepy()
    server.submit(0.0, inference(1, model="a"))
    drain(server)
    server.sleep(20.0, 2)
    drain(server)
    assert (server.state().memory_used_mb, server.state().memory_evictable_mb) == (0, 0)
    server.wake(30.0)
    drain(server)
    assert (server.state().memory_used_mb, server.state().models) == (600, ("a",))


def test_who_comes_meanwhile_may_be_refused_instead() -> None:
    server = sleepy(refuse_asleep=True, max_running=1)
    server.submit(0.0, inference(1))
    server.submit(0.0, inference(2))
    server.submit(0.0, inference(3, model="a"))
    server.submit(0.0, inference(4, model="b"))
    server.sleep(1.0, 1)
    server.submit(2.0, inference(5))
    server.submit(2.0, Job(6, "", "update", 0, 0))
    refused = times(server.advance(20.0), Refused)
    assert refused == {2: 1.0, 3: 1.0, 4: 1.0, 5: 2.0, 6: 2.0}
    server.submit(20.0, inference(7))
    server.wake(21.0)
    server.submit(22.0, inference(8))
    events = drain(server)
    assert [event for event in events if isinstance(event, Refused)] == [
        Refused(20.0, 7, "asleep"),
        Refused(22.0, 8, "asleep"),
    ]
    server.submit(30.0, inference(9))
    assert times(drain(server), Finished) == {9: 33.0}
    assert server.state().queue_depth == 0


def test_told_to_wake_before_it_sleeps_it_goes_on_at_once() -> None:
    server = sleepy()
    server.submit(0.0, inference(1))
    server.sleep(1.0, 1)
    server.submit(1.5, inference(2))
    server.wake(2.0)
    events = drain(server)
    assert naps(events) == [Woken(2.0)]
    assert times(events, Started) == {1: 0.0, 2: 2.0}


def test_what_is_under_way_ends_before_it_does_otherwise() -> None:
    server = sleepy()
    server.sleep(0.0, 1)
    server.wake(1.0)
    server.wake(2.0)
    assert server.advance(5.0) == [Slept(4.0, 1)]
    server.sleep(5.5, 2)
    server.submit(5.5, inference(1))
    assert drain(server) == [Woken(6.0), Slept(7.0, 2)]
    server.sleep(10.0, 1)
    assert drain(server) == [Slept(14.0, 1)]
    server.sleep(15.0, 1)
    assert drain(server) == []
    server.wake(20.0)
    assert times(drain(server), Started) == {1: 22.0}
