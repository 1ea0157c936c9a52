"""Decode steps in a batch: exact times of tokens as jobs join and leave."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mockgpu.gpu.events import Finished, FirstToken, Job, Started
from mockgpu.gpu.model import GpuServer
from tests.mockgpu.boxes import box, drain, free, inference, times

SLOPED = free(slope_s=0.5)


def test_the_step_grows_with_every_job_of_the_model() -> None:
    server = box(SLOPED)
    for number in range(3):
        server.submit(0.0, inference(number, prompt_tokens=0, output_tokens=4))
    events = drain(server)
    assert [event.batch for event in events if isinstance(event, Started)] == [1, 2, 3]
    assert times(events, FirstToken) == dict.fromkeys(range(3), 2.0)
    assert times(events, Finished) == dict.fromkeys(range(3), 8.0)


def test_a_job_that_comes_later_slows_what_is_left_of_the_others() -> None:
    server = box(SLOPED)
    server.submit(0.0, inference(1, prompt_tokens=0, output_tokens=10))
    server.submit(4.0, inference(2, prompt_tokens=0, output_tokens=2))
    events = drain(server)
    # Four tokens at batch size 1 in 4 s, two at batch size 2 in 3 s, four at batch size 1 again.
    assert times(events, Finished) == {2: 7.0, 1: 11.0}


def test_a_job_in_prefill_counts_for_the_batch() -> None:
    server = box(SLOPED)
    server.submit(0.0, inference(1, prompt_tokens=0, output_tokens=4))
    server.submit(1.0, inference(2, prompt_tokens=30, output_tokens=1))
    finished = times(drain(server), Finished)
    # One token at batch size 1; until 4 s two more beside the prefill, and the last one also at 1.5 s per step.
    assert finished == {1: 5.5, 2: 4.0 + 1.5}


def test_a_job_that_leaves_early_speeds_the_others_up() -> None:
    server = box(SLOPED)
    server.submit(0.0, inference(1, prompt_tokens=0, output_tokens=4))
    server.submit(0.0, inference(2, prompt_tokens=0, output_tokens=9))
    server.cancel(3.0, 2)
    assert times(drain(server), Finished) == {1: 5.0}


def test_models_do_not_slow_each_other_down() -> None:
    server = box(SLOPED)
    server.submit(0.0, inference(1, 0, 4, model="a"))
    server.submit(0.0, inference(2, 0, 4, model="b"))
    assert times(drain(server), Finished) == {1: 4.0, 2: 4.0}


def test_a_slow_job_makes_its_tokens_in_so_many_steps() -> None:
    server = box(SLOPED)
    server.submit(0.0, inference(1, 10, 4, slowness=2.0))
    server.submit(0.0, inference(2, 10, 20))
    events = drain(server)
    # Prefill of 2 s and 8 steps of 1.5 s; the other produces (14 - 1) / 1.5 tokens meanwhile.
    assert times(events, FirstToken) == {1: 2 + 2 * 1.5, 2: 2.5}
    assert times(events, Finished) == pytest.approx({1: 14.0, 2: 14.0 + 20 - 13 / 1.5})


def test_each_token_has_its_time_before_and_after_it_came() -> None:
    server = box(SLOPED)
    server.submit(0.0, inference(1, prompt_tokens=10, output_tokens=6))
    server.advance(0.0)
    assert [server.token_due_s(1, number) for number in range(6)] == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    server.submit(3.0, inference(2, prompt_tokens=0, output_tokens=2))
    server.advance(3.0)
    assert [server.token_due_s(1, number) for number in range(6)] == [2.0, 3.0, 4.5, 6.0, 7.5, 9.0]
    server.advance(6.0)  # the second is done, and the rest speeds up
    assert [server.token_due_s(1, number) for number in range(6)] == [2.0, 3.0, 4.5, 6.0, 7.0, 8.0]
    assert server.token_due_s(1, 6) is None
    assert server.token_due_s(2, 0) is None
    server.advance(8.0)
    assert server.token_due_s(1, 5) is None


def test_tokens_of_plain_jobs_have_their_times_too() -> None:
    server = box(free(), max_running=1)
    server.submit(0.0, inference(1, prompt_tokens=10, output_tokens=3))
    server.submit(0.0, inference(2, prompt_tokens=10, output_tokens=3))
    server.advance(2.5)
    assert [server.token_due_s(1, number) for number in range(4)] == [2.0, 3.0, 4.0, None]
    assert server.token_due_s(2, 0) is None  # it waits


def test_the_past_is_kept_however_often_the_batch_changes() -> None:
    server = box(SLOPED)
    server.submit(0.0, inference(0, prompt_tokens=0, output_tokens=1_000))
    due_s = server.token_due_s(0, 2)
    at_s = 10.0
    for number in range(1, 300):
        server.submit(at_s, inference(number, prompt_tokens=0, output_tokens=1))
        server.cancel(at_s + 0.25, number)
        at_s += 0.5
    assert server.token_due_s(0, 2) == due_s == 3.0


def test_steps_of_no_length_end_at_once() -> None:
    server = box(replace(free(), decode_step_s=0.0, decode_slope_s=0.5))
    server.submit(0.0, inference(1, prompt_tokens=0, output_tokens=3))
    server.submit(1.0, inference(2, prompt_tokens=10, output_tokens=3))
    server.submit(1.0, inference(3, prompt_tokens=10, output_tokens=4))
    assert times(drain(server), Finished) == {1: 0.0, 2: 3.5, 3: 3.5}


jobs = st.lists(
    st.tuples(
        st.floats(0, 3),
        st.integers(0, 40),
        st.integers(0, 9),
        st.sampled_from([1.0, 1.0, 0.5, 3.0]),
        st.sampled_from(["a", "b"]),
    ),
    max_size=30,
)


def served(server: GpuServer, drawn: list[tuple[float, int, int, float, str]]) -> dict[int, list[float]]:
    """Times of start, first token and end of each job."""
    at_s = 0.0
    events = []
    for number, (gap_s, prompt_tokens, output_tokens, slowness, model) in enumerate(drawn):
        at_s += gap_s
        server.submit(at_s, Job(number, model, "inference", prompt_tokens, output_tokens, slowness))
        events += server.advance(at_s)
    events += drain(server)
    kinds: tuple[type[Started | FirstToken | Finished], ...] = (Started, FirstToken, Finished)
    observed = [times(events, kind) for kind in kinds]
    return {number: [observed[number] for observed in observed if number in observed] for number in range(len(drawn))}


@settings(max_examples=150, deadline=None)
@given(jobs, st.integers(1, 4))
def test_without_a_slope_it_is_the_flat_timing(drawn: list[tuple[float, int, int, float, str]], slots: int) -> None:
    """The batch clock (used here because of KV blocks) against the closed formula."""
    plain = served(box(free(), max_running=slots), drawn)
    stepped = served(box(free(kv_bytes_per_token=1), max_running=slots, kv_share=0.5), drawn)
    for number, observed in plain.items():
        assert stepped[number] == pytest.approx(observed, rel=1e-12, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(jobs, st.sampled_from([0.0, 0.1, 2.0]))
def test_the_batch_clock_agrees_with_small_steps_of_time(
    drawn: list[tuple[float, int, int, float, str]], slope_s: float
) -> None:
    """Against brute-force integration without a heap: all rates are recomputed at every change."""
    observed = served(box(free(slope_s)), drawn)
    starts, at_s = [], 0.0
    for gap_s, *_ in drawn:
        at_s += gap_s
        starts.append(at_s)
    remaining: dict[int, list[float]] = {}  # by running job: seconds of prefill and decode steps left
    waiting = list(range(len(drawn)))
    now_s = 0.0
    ended: dict[int, float] = {}
    while waiting or remaining:
        sizes = {name: sum(drawn[number][4] == name for number in remaining) for name in "ab"}
        steps_s = {name: 1.0 + max(0, size - 1) * slope_s for name, size in sizes.items()}
        ends_s = {n: now_s + (left[0] or left[1] * steps_s[drawn[n][4]]) for n, left in remaining.items()}
        until_s = min([*ends_s.values(), *(starts[n] for n in waiting[:1])])
        for n, left in remaining.items():
            if ends_s[n] <= until_s:
                left[0 if left[0] > 0 else 1] = 0.0
            elif left[0] > 0:
                left[0] -= until_s - now_s
            else:
                left[1] -= (until_s - now_s) / steps_s[drawn[n][4]]
        now_s = until_s
        for n in [n for n, left in remaining.items() if left == [0.0, 0.0]]:
            del remaining[n]
            ended[n] = now_s
        while waiting and starts[waiting[0]] <= now_s:
            _, prompt_tokens, output_tokens, slowness, _ = drawn[waiting[0]]
            remaining[waiting.pop(0)] = [prompt_tokens / 10 * slowness, output_tokens * slowness]
    assert {number: observed[-1] for number, observed in observed.items()} == pytest.approx(ended, rel=1e-9, abs=1e-9)
