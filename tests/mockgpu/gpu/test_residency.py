"""Explicit loads, unloads, pins and evictions of models; loads by jobs are in test_model.py."""

from __future__ import annotations

from mockgpu.gpu.events import Event, Evicted, Finished, Loaded, LoadFailed, Loading, Refused
from mockgpu.gpu.model import GpuServer
from tests.mockgpu.boxes import box, drain, free, heavy, inference, times

A, B, C = heavy("a"), heavy("b"), heavy("c", 400)


def moves(events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, Loading | Loaded | Evicted | LoadFailed)]


def with_a_resident(**more: object) -> GpuServer:
    server = box(free(), A, B, C, **more)
    server.load(0.0, "a")
    drain(server)
    return server


def test_a_load_needs_no_job_and_a_second_one_changes_nothing() -> None:
    server = box(free(), A, B, C)
    assert server.model_states() == {"free": "ready", "a": "unavailable", "b": "unavailable", "c": "unavailable"}
    server.load(0.0, "a")
    server.load(1.0, "a")
    server.load(1.0, "free")
    assert server.model_states()["a"] == "loading"
    assert drain(server) == [Loading(0.0, "a"), Loaded(10.0, "a")]
    server.load(20.0, "a")
    assert drain(server) == []
    assert server.model_states()["a"] == "ready"


def test_a_load_by_order_goes_on_when_the_job_that_wanted_it_too_has_left() -> None:
    server = box(free(), A, B, C)
    server.load(0.0, "a")
    server.load(0.5, "a")
    server.load(1.0, "c")  # waits: one at a time
    server.submit(2.0, inference(1, model="c"))
    server.cancel(3.0, 1)
    assert Loaded(20.0, "c") in drain(server)
    server.load(30.0, "b")  # evicts a
    server.submit(31.0, inference(2, model="a"))
    server.cancel(32.0, 2)
    assert Loading(40.0, "a") not in drain(server)


def test_what_was_loaded_by_order_is_evicted_like_the_rest() -> None:
    server = with_a_resident()
    server.submit(20.0, inference(1, model="b"))
    assert moves(drain(server)) == [Evicted(20.0, "a"), Loading(20.0, "b"), Loaded(30.0, "b")]


def test_an_unloaded_model_is_refused_until_it_is_loaded_again() -> None:
    server = with_a_resident()
    server.unload(20.0, "a")
    server.unload(20.0, "free")
    server.submit(21.0, inference(1, model="a"))
    server.submit(21.0, inference(2, model="free"))
    server.submit(21.0, inference(3, model="other"))
    events = drain(server)
    assert moves(events) == [Evicted(20.0, "a")]
    assert [event for event in events if isinstance(event, Refused)] == [
        Refused(21.0, 1, "not_found"),
        Refused(21.0, 2, "not_found"),
    ]
    assert (server.model_states()["a"], server.model_states()["free"]) == ("unavailable", "unavailable")
    server.load(30.0, "a")
    server.load(30.0, "free")
    server.submit(31.0, inference(4, model="a"))
    server.submit(31.0, inference(5, model="free"))
    assert times(drain(server), Finished) == {4: 43.0, 5: 34.0}


def test_unloading_waits_for_the_jobs_inside() -> None:
    server = with_a_resident(max_running=1)
    server.submit(20.0, inference(1, model="a"))
    server.submit(20.0, inference(2, model="a"))
    server.unload(21.0, "a")
    server.submit(21.0, inference(3, model="a"))
    events = drain(server)
    assert times(events, Finished) == {1: 23.0, 2: 26.0}
    assert times(events, Refused) == {3: 21.0}
    assert moves(events) == [Evicted(26.0, "a")]


def test_unloading_may_be_taken_back() -> None:
    server = with_a_resident()
    server.submit(20.0, inference(1, model="a"))
    server.unload(21.0, "a")
    server.load(22.0, "a")
    assert moves(drain(server)) == []
    assert server.model_states()["a"] == "ready"


def test_unloading_what_is_on_its_way() -> None:
    server = box(free(), A, B, C)
    server.load(0.0, "a")
    server.load(0.0, "b")
    server.submit(0.0, inference(1, model="c"))
    for name in "abc":
        server.unload(1.0, name)
    events = drain(server)
    # The load in progress ends, the queued one without a job is dropped, and the job is served.
    assert moves(events) == [
        Loading(0.0, "a"),
        Loaded(10.0, "a"),
        Evicted(10.0, "a"),
        Loading(10.0, "c"),
        Loaded(20.0, "c"),
        Evicted(23.0, "c"),
    ]
    assert times(events, Finished) == {1: 23.0}


def test_a_pinned_model_stays() -> None:
    server = with_a_resident()
    server.pin(15.0, "a", True)
    state = server.state()
    assert (state.memory_used_mb, state.memory_evictable_mb) == (600, 0)
    server.submit(20.0, inference(1, model="c"))
    server.submit(40.0, inference(2, model="b"))
    events = drain(server)
    assert times(events, Refused) == {2: 40.0}  # no room for it
    server.evict(50.0)
    assert (server.state().models, drain(server)) == (("a",), [Evicted(50.0, "c")])
    server.pin(60.0, "a", False)
    assert server.state().memory_evictable_mb == 600
    server.submit(61.0, inference(3, model="b"))
    assert times(drain(server), Finished) == {3: 74.0}


def test_a_load_that_pinned_models_rule_out_fails() -> None:
    server = with_a_resident()
    server.pin(15.0, "a", True)
    server.load(20.0, "b")
    assert drain(server) == [LoadFailed(20.0, "b")]


def test_those_who_wait_in_vain_are_told_when_a_model_is_pinned() -> None:
    server = with_a_resident()
    server.submit(20.0, inference(1, model="a", output_tokens=50))
    server.submit(21.0, inference(2, model="b"))
    server.submit(22.0, inference(3, model="c"))  # fits, but the one before it blocks the queue
    server.pin(23.0, "a", True)
    assert server.state().waiting_for_load == 1
    events = drain(server)
    assert LoadFailed(23.0, "b") in events
    assert Refused(23.0, 2, "out_of_memory") in events
    assert Loaded(33.0, "c") in events


def test_a_pin_counts_from_when_the_model_comes() -> None:
    server = box(free(), A, B, C)
    server.pin(0.0, "a", True)
    server.submit(0.0, inference(1, model="c"))
    server.submit(0.0, inference(2, model="a"))
    server.submit(0.0, inference(3, model="b"))
    events = drain(server)
    assert Refused(10.0, 3, "out_of_memory") in events
    assert times(events, Finished) == {1: 13.0, 2: 23.0}


def test_evicting_all_spares_what_is_in_use() -> None:
    server = with_a_resident()
    server.load(20.0, "c")
    drain(server)
    server.submit(40.0, inference(1, model="a"))
    server.evict(41.0)
    assert moves(server.advance(41.0)) == [Evicted(41.0, "c")]
    assert server.state().memory_used_mb == 600


def test_what_takes_no_memory_can_be_evicted_by_order_only() -> None:
    server = box(free(), heavy("light", 0), A, heavy("whole", 1_000))
    for name in ("light", "a", "whole"):
        server.load(0.0, name)
    assert [event for event in drain(server) if isinstance(event, Evicted)] == [Evicted(20.0, "a")]
    server.evict(40.0)
    assert drain(server) == [Evicted(40.0, "light"), Evicted(40.0, "whole")]


def test_reserved_memory_is_not_for_weights() -> None:
    server = box(free(), heavy("a", 700), heavy("b", 701), kv_share=0.2, reserved_mb=100)
    server.submit(0.0, inference(1, model="a"))
    server.submit(0.0, inference(2, model="b"))
    assert [type(event) for event in server.advance(0.0)] == [Loading, Refused]
