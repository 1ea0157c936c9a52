"""LoRA adapters and their slots."""

from __future__ import annotations

import pytest

from mockgpu.gpu.events import AdapterLoaded, AdapterUnloaded, Event, Evicted, Finished, FirstToken, Refused
from mockgpu.gpu.model import GpuServer
from tests.mockgpu.boxes import box, drain, free, heavy, inference, times


def adapters(slots: int = 2, **more: object) -> GpuServer:
    """A server with ``slots`` adapter slots of 50 MB; adapters take 5 s to load, models 10 s."""
    return box(free(), heavy("a"), heavy("b"), max_adapters=slots, adapter_mb=50, adapter_load_s=5.0, **more)


def moves(events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, AdapterLoaded | AdapterUnloaded)]


def test_an_adapter_of_a_base_that_is_there_is_loaded_at_once() -> None:
    server = adapters()
    server.load_adapter(0.0, "x", "m")
    assert server.state().adapters == (("x", "m"),)
    assert drain(server) == [AdapterLoaded(5.0, "x", "m")]
    assert server.state().memory_used_mb == 50
    server.submit(6.0, inference(1, adapter="x"))
    assert times(drain(server), Finished) == {1: 9.0}


def test_an_unknown_adapter_is_refused_and_so_is_one_of_another_base() -> None:
    server = adapters()
    server.load_adapter(0.0, "x", "m")
    server.submit(0.0, inference(1, adapter="y"))
    server.submit(0.0, inference(2, model="other", adapter="x"))
    assert [event for event in drain(server) if isinstance(event, Refused)] == [
        Refused(0.0, 1, "not_found"),
        Refused(0.0, 2, "not_found"),
    ]


def test_the_least_recently_used_adapter_gives_way_and_comes_back_when_needed() -> None:
    server = adapters()
    for name in "xyz":
        server.load_adapter(0.0, name, "m")
    server.submit(20.0, inference(1, adapter="z"))
    server.submit(21.0, inference(2, adapter="y"))
    server.submit(30.0, inference(3, adapter="x"))
    events = drain(server)
    assert moves(events) == [
        AdapterLoaded(5.0, "x", "m"),
        AdapterLoaded(10.0, "y", "m"),
        AdapterUnloaded(10.0, "x", "m"),
        AdapterLoaded(15.0, "z", "m"),
        AdapterUnloaded(30.0, "z", "m"),
        AdapterLoaded(35.0, "x", "m"),
    ]
    assert times(events, Finished) == {1: 23.0, 2: 24.0, 3: 38.0}
    assert server.state().adapters == (("x", "m"), ("y", "m"), ("z", "m"))


def test_adapters_in_use_stay_and_others_pass_those_who_wait_for_a_slot() -> None:
    server = adapters(slots=1)
    for name in "xy":
        server.load_adapter(0.0, name, "m")
    drain(server)
    server.submit(20.0, inference(1, adapter="y", output_tokens=20))
    server.submit(21.0, inference(2, adapter="x"))
    server.submit(22.0, inference(3))
    assert server.state().waiting_for_load == 1
    events = drain(server)
    assert times(events, Finished) == {3: 25.0, 1: 41.0, 2: 41.0 + 5.0 + 3.0}
    assert moves(events) == [AdapterUnloaded(41.0, "y", "m"), AdapterLoaded(46.0, "x", "m")]


def test_one_who_waits_for_an_adapter_may_leave() -> None:
    server = adapters(slots=1)
    for name in "xy":
        server.load_adapter(0.0, name, "a")
    server.submit(0.0, inference(1, model="a", adapter="x", output_tokens=20))
    server.submit(0.0, inference(2, model="a", adapter="y"))
    assert AdapterLoaded(15.0, "x", "a") in server.advance(16.0)
    server.cancel(17.0, 2)
    assert server.state().waiting_for_load == 0
    assert drain(server) == [FirstToken(17.0, 1), Finished(36.0, 1)]
    assert server.state().memory_evictable_mb == 600


def test_a_job_waits_for_its_base_and_then_for_its_adapter() -> None:
    server = adapters()
    server.load_adapter(0.0, "x", "a")
    assert drain(server) == []  # its base is not resident
    server.submit(1.0, inference(1, model="a", adapter="x"))
    assert times(drain(server), Finished) == {1: 1 + 10 + 5 + 3}


def test_adapters_leave_with_their_base() -> None:
    server = adapters()
    server.load_adapter(0.0, "x", "a")
    server.load_adapter(0.0, "y", "m")
    server.submit(0.0, inference(1, model="a", adapter="x"))
    server.submit(30.0, inference(2, model="b"))
    events = drain(server)
    assert Evicted(30.0, "a") in events
    assert moves(events)[-1] == AdapterUnloaded(30.0, "x", "a")
    assert server.state().adapters == (("x", "a"), ("y", "m"))
    server.submit(50.0, inference(3, model="a", adapter="x"))
    assert times(drain(server), Finished) == {3: 68.0}


def test_an_adapter_that_arrives_after_its_base_has_left_does_not_stay() -> None:
    server = adapters(update_s=1.0)
    server.load(0.0, "a")
    drain(server)
    server.load_adapter(20.0, "x", "a")
    server.unload(21.0, "a")
    assert moves(drain(server)) == [AdapterLoaded(25.0, "x", "a"), AdapterUnloaded(25.0, "x", "a")]
    assert server.state().memory_used_mb == 0


def test_a_forgotten_adapter_is_refused_and_leaves_when_its_jobs_have_ended() -> None:
    server = adapters()
    server.load_adapter(0.0, "x", "m")
    drain(server)
    server.submit(20.0, inference(1, adapter="x"))
    server.unload_adapter(21.0, "x")
    server.unload_adapter(21.0, "never known")
    server.submit(21.0, inference(2, adapter="x"))
    with pytest.raises(ValueError, match="adapter 'x' belongs to 'm', expected that base, got 'other'"):
        server.load_adapter(22.0, "x", "other")
    events = drain(server)
    assert (times(events, Finished), times(events, Refused)) == ({1: 23.0}, {2: 21.0})
    assert moves(events) == [AdapterUnloaded(23.0, "x", "m")]
    assert server.state().adapters == ()
    server.load_adapter(30.0, "x", "other")
    assert drain(server) == [AdapterLoaded(35.0, "x", "other")]


def test_a_server_without_slots_takes_no_adapter() -> None:
    with pytest.raises(ValueError, match="max_adapters is 0, expected"):
        box(free()).load_adapter(0.0, "x", "m")
