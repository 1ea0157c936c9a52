import math
import random
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mockgpu.gpu.catalogue import Gpu, Model, Setup
from mockgpu.gpu.events import Event, Evicted, Finished, FirstToken, Job, Loaded, Loading, Refused, Started
from mockgpu.gpu.model import GpuServer


def setup(
    *,
    memory_mb: int = 1_000,
    max_running: int = 2,
    queue_limit: int | None = None,
    loads_at_once: int = 1,
    models: tuple[Model, ...] = (),
) -> Setup:
    """A GPU whose models, unless listed, are always resident and take 1 s per 10 prompt or per output token."""
    return Setup(
        Gpu("box", memory_mb, max_running, queue_limit, loads_at_once, update_s=5.0),
        Model("free", 0, 0.0, 10.0, 1.0),
        models,
    )


def heavy(name: str, weights_mb: int = 600, load_s: float = 10.0) -> Model:
    return Model(name, weights_mb, load_s, 10.0, 1.0)


def inference(number: int, model: str = "key", prompt_tokens: int = 10, output_tokens: int = 2) -> Job:
    return Job(number, model, "inference", prompt_tokens, output_tokens)


def drain(server: GpuServer) -> list[Event]:
    events: list[Event] = []
    while (at_s := server.next_event_s()) is not None:
        events += server.advance(at_s)
    return events


def test_one_job_is_served_at_the_times_the_formula_gives() -> None:
    server = GpuServer(setup())
    server.submit(1.0, inference(1))
    assert server.next_event_s() == 1.0
    assert server.advance(100.0) == [Started(1.0, 1, False, 0.0, batch=1), FirstToken(3.0, 1), Finished(4.0, 1)]
    assert server.next_event_s() is None


def test_a_late_caller_gets_exact_times() -> None:
    server = GpuServer(setup(max_running=1))
    server.submit(0.0, inference(1))
    server.submit(1.0, inference(2))
    assert server.advance(50.0)[-3:] == [Started(3.0, 2, False, 2.0, batch=1), FirstToken(5.0, 2), Finished(6.0, 2)]


def test_jobs_without_output_and_updates_have_no_first_token() -> None:
    server = GpuServer(setup())
    server.submit(0.0, inference(1, output_tokens=0))
    server.submit(0.0, Job(2, "", "update", 0, 0))
    assert drain(server) == [
        Started(0.0, 1, False, 0.0, batch=1),
        Started(0.0, 2, False, 0.0, batch=0),
        Finished(1.0, 1),
        Finished(5.0, 2),
    ]


def test_the_queue_is_first_come_first_served_and_bounded() -> None:
    server = GpuServer(setup(max_running=1, queue_limit=2))
    for number in range(4):
        server.submit(0.0, inference(number))
    assert server.state().queue_depth == 2
    events = drain(server)
    assert Refused(0.0, 3, "queue_full") in events
    assert [event.job_id for event in events if isinstance(event, Started)] == [0, 1, 2]


def test_a_free_slot_takes_a_cold_job_even_where_nobody_may_queue() -> None:
    server = GpuServer(setup(max_running=1, queue_limit=0, models=(heavy("a"),)))
    server.submit(0.0, inference(1, "a"))
    server.submit(0.0, inference(2, "a"))
    events = drain(server)
    assert Refused(0.0, 2, "queue_full") in events
    assert Started(10.0, 1, True, 10.0, batch=1) in events


def test_a_missing_model_is_loaded_once_for_all_who_wait() -> None:
    server = GpuServer(setup(models=(heavy("a"),)))
    server.submit(0.0, inference(1, "a"))
    server.submit(4.0, inference(2, "a"))
    server.submit(12.0, inference(3, "a"))
    events = drain(server)
    assert [event for event in events if isinstance(event, Loading | Loaded | Started)] == [
        Loading(0.0, "a"),
        Loaded(10.0, "a"),
        Started(10.0, 1, True, 10.0, batch=1),
        Started(10.0, 2, True, 6.0, batch=2),
        Started(13.0, 3, False, 1.0, batch=2),
    ]


def test_the_least_recently_used_idle_model_is_evicted() -> None:
    server = GpuServer(setup(models=(heavy("a", 400), heavy("b", 400), heavy("c", 400))))
    for at_s, name in ((0.0, "a"), (20.0, "b"), (40.0, "a"), (60.0, "c")):
        server.submit(at_s, inference(int(at_s), name))
    events = drain(server)
    assert [event for event in events if isinstance(event, Evicted)] == [Evicted(60.0, "b")]
    assert server.state().models == ("a", "c")


def test_a_model_in_use_is_not_evicted_and_the_load_waits() -> None:
    server = GpuServer(setup(models=(heavy("a"), heavy("b"))))
    server.submit(0.0, inference(1, "a"))
    server.submit(11.0, inference(2, "b"))
    events = drain(server)
    assert [event for event in events if isinstance(event, Evicted | Loading)] == [
        Loading(0.0, "a"),
        Evicted(13.0, "a"),
        Loading(13.0, "b"),
    ]


def test_nothing_is_evicted_where_that_would_not_make_room() -> None:
    server = GpuServer(setup(models=(heavy("a", 500), heavy("b", 400), heavy("c", 900))))
    server.submit(0.0, inference(1, "a"))
    server.submit(0.0, inference(2, "b", output_tokens=100))
    server.submit(20.5, inference(3, "c"))
    server.advance(30.0)
    assert server.state().models == ("a", "b")


def test_jobs_of_a_resident_model_pass_those_that_wait_for_a_load() -> None:
    server = GpuServer(setup(max_running=1, models=(heavy("a"),)))
    server.submit(0.0, inference(1, "a"))
    server.submit(1.0, inference(2))
    started = [event.job_id for event in drain(server) if isinstance(event, Started)]
    assert started == [2, 1]


def test_after_its_load_a_job_is_back_in_order_of_arrival() -> None:
    server = GpuServer(setup(max_running=1, models=(heavy("a"),)))
    server.submit(0.0, inference(1, "a"))
    server.submit(0.0, inference(2, output_tokens=50))
    server.submit(0.0, inference(3))
    started = [event.job_id for event in drain(server) if isinstance(event, Started)]
    assert started == [2, 1, 3]


@pytest.mark.parametrize(("loads_at_once", "second_loaded_s"), [(1, 20.0), (2, 10.0)])
def test_loads_at_once_are_limited(loads_at_once: int, second_loaded_s: float) -> None:
    server = GpuServer(setup(loads_at_once=loads_at_once, models=(heavy("a", 400), heavy("b", 400))))
    server.submit(0.0, inference(1, "a"))
    server.submit(0.0, inference(2, "b"))
    assert Loaded(second_loaded_s, "b") in drain(server)


def test_a_model_larger_than_the_memory_is_refused() -> None:
    server = GpuServer(setup(models=(heavy("whale", 1_001),)))
    server.submit(0.0, inference(1, "whale"))
    assert drain(server) == [Refused(0.0, 1, "out_of_memory")]
    assert server.state().queue_depth == 0


def test_cancelling_frees_slot_queue_place_and_model() -> None:
    server = GpuServer(setup(max_running=1, queue_limit=1, models=(heavy("a"), heavy("b"))))
    server.submit(0.0, inference(1, "a"))
    server.advance(10.0)
    server.submit(11.0, inference(2, "b"))
    server.cancel(11.5, 1)
    assert server.advance(11.5) == [Evicted(11.5, "a"), Loading(11.5, "b")]
    server.cancel(12.0, 2)
    server.cancel(12.0, 2)
    state = server.state()
    assert (state.running, state.queue_depth, state.pending_tokens) == (0, 0, 0)
    assert drain(server) == [Loaded(21.5, "b")]
    assert server.state().memory_evictable_mb == 600


def test_a_load_nobody_waits_for_any_more_is_not_begun() -> None:
    server = GpuServer(setup(models=(heavy("a", 400), heavy("b", 400), heavy("c", 400))))
    for number, name in enumerate("abc"):
        server.submit(0.0, inference(number, name))
    server.cancel(1.0, 1)
    assert [event.model for event in drain(server) if isinstance(event, Loading)] == ["a", "c"]


def test_always_resident_models_never_show() -> None:
    server = GpuServer(setup(memory_mb=0, max_running=1_000))
    for number in range(500):
        server.submit(0.0, inference(number, f"key-{number}"))
    state = server.state()
    assert (state.models, state.memory_used_mb, state.running) == ((), 0, 500)
    assert not [event for event in drain(server) if isinstance(event, Loading | Loaded | Evicted)]


def test_misuse_is_refused() -> None:
    server = GpuServer(setup())
    server.submit(1.0, inference(1))
    with pytest.raises(ValueError, match="in the server already"):
        server.submit(1.0, inference(1))
    with pytest.raises(ValueError, match="backwards"):
        server.advance(0.5)


# -- properties --------------------------------------------------------------------------------------------

MODELS = (heavy("a", 300, 1.0), heavy("b", 500, 0.0), heavy("c", 700, 3.0), heavy("whale", 5_000), heavy("d", 0))

jobs = st.tuples(
    st.sampled_from(["a", "b", "c", "d", "whale", "key"]),
    st.sampled_from(["inference", "inference", "inference", "update"]),
    st.integers(0, 30),
    st.integers(0, 4),
    st.sampled_from([0.0, 0.0, 0.25, 1.0, 4.0]),
    st.one_of(st.none(), st.sampled_from([0.0, 0.5, 2.0, 10.0])),
)
setups = st.builds(
    setup,
    max_running=st.integers(1, 3),
    queue_limit=st.sampled_from([None, 0, 1, 3]),
    loads_at_once=st.integers(1, 2),
    models=st.just(MODELS),
)
calls = st.lists(jobs, max_size=25)
Call = tuple[float, int, Job | None]


def timeline(drawn: list[tuple[str, str, int, int, float, float | None]]) -> list[Call]:
    """The calls in order of time: a job to submit, or None to cancel the job of that id."""
    at_s = 0.0
    order: list[Call] = []
    for number, (model, kind, prompt_tokens, output_tokens, gap_s, patience_s) in enumerate(drawn):
        at_s += gap_s
        assert kind in ("inference", "update")
        job = Job(number, model, "inference" if kind == "inference" else "update", prompt_tokens, output_tokens)
        order.append((at_s, number, job))
        if patience_s is not None:
            order.append((at_s + patience_s, number, None))
    return sorted(order, key=lambda call: call[0])


def play(server: GpuServer, drawn: list[Call], cuts: list[float]) -> list[Event]:
    events: list[Event] = []
    steps: list[tuple[float, int, int, Job | None]] = [(at_s, 0, n, job) for at_s, n, job in drawn]
    steps += [(at_s, 1, -1, None) for at_s in cuts]
    for at_s, is_cut, number, job in sorted(steps, key=lambda step: step[:2]):
        if is_cut:
            events += server.advance(at_s)
        elif job is None:
            server.cancel(at_s, number)
        else:
            server.submit(at_s, job)
    return events + drain(server)


@settings(max_examples=150, deadline=None)
@given(setups, calls, st.lists(st.floats(0, 60), max_size=30))
def test_same_calls_give_the_same_events_however_time_is_cut(
    drawn_setup: Setup,
    drawn: list[tuple[str, str, int, int, float, float | None]],
    cuts: list[float],
) -> None:
    order = timeline(drawn)
    whole = play(GpuServer(drawn_setup), order, [])
    assert whole == play(GpuServer(drawn_setup), order, [])
    assert whole == play(GpuServer(drawn_setup), order, cuts)
    assert [event.at_s for event in whole] == sorted(event.at_s for event in whole)


@settings(max_examples=150, deadline=None)
@given(setups, calls)
def test_every_job_ends_once_and_limits_hold(
    drawn_setup: Setup, drawn: list[tuple[str, str, int, int, float, float | None]]
) -> None:
    gpu = drawn_setup.gpu
    server = GpuServer(drawn_setup)
    events: list[Event] = []
    ended: dict[int, str] = {}
    cancelled: set[int] = set()

    def look(until_s: float) -> None:
        while (wake_s := server.next_event_s()) is not None and wake_s <= until_s:
            for event in server.advance(wake_s):
                assert event.at_s == wake_s
                events.append(event)
                if isinstance(event, Finished | Refused):
                    assert ended.setdefault(event.job_id, type(event).__name__) == type(event).__name__
                    assert event.job_id not in cancelled
            state = server.state()
            assert 0 <= state.memory_evictable_mb <= state.memory_used_mb <= gpu.memory_mb
            assert 0 <= state.running <= gpu.max_running
            assert state.queue_depth >= 0 <= state.pending_tokens
            if gpu.queue_limit is not None:
                assert state.running + state.queue_depth <= gpu.max_running + gpu.queue_limit

    submitted = 0
    for at_s, number, job in timeline(drawn):
        look(at_s)
        if job is None:
            server.cancel(at_s, number)
            look(at_s)
            if number not in ended:
                cancelled.add(number)
        else:
            submitted += 1
            server.submit(at_s, job)
    look(math.inf)
    finished = [event.job_id for event in events if isinstance(event, Finished | Refused)]
    assert len(finished) == len(set(finished))
    assert set(finished) | cancelled == set(range(submitted))
    assert not set(finished) & cancelled
    state = server.state()
    assert (state.running, state.queue_depth, state.pending_tokens) == (0, 0, 0)
    assert state.memory_evictable_mb == state.memory_used_mb


def test_mean_wait_of_a_single_server_is_that_of_queueing_theory() -> None:
    """M/D/1: the mean wait is rho * service / (2 (1 - rho)), Pollaczek and Khinchine.

    Means of long batches are nearly independent; their spread gives the interval, at 99.99 % confidence.
    """
    service_s, load, batches, per_batch = 3.0, 0.7, 100, 2_000
    source = random.Random(20_240_917)
    server = GpuServer(setup(max_running=1))
    at_s = 0.0
    waits: list[float] = []
    for number in range(batches * per_batch):
        at_s += source.expovariate(load / service_s)
        server.submit(at_s, inference(number))
        waits += [event.queue_wait_s for event in server.advance(at_s) if isinstance(event, Started)]
    waits += [event.queue_wait_s for event in drain(server) if isinstance(event, Started)]
    means = [sum(waits[start : start + per_batch]) / per_batch for start in range(0, len(waits), per_batch)]
    mean = sum(means) / batches
    deviation = math.sqrt(sum((each - mean) ** 2 for each in means) / (batches - 1) / batches)
    expected_s = load * service_s / (2 * (1 - load))
    assert abs(mean - expected_s) < NormalDist().inv_cdf(1 - 5e-5) * deviation
    assert deviation < 0.03 * expected_s  # else the test has no power
