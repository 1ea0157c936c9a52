"""Jobs of several sequences that share their prompt, and the state after the engine died."""

from __future__ import annotations

import pytest

from mockgpu.gpu.events import Event, Evicted, Finished, FirstToken, Loaded, Preempted, Refused, Started
from mockgpu.gpu.model import GpuServer
from tests.mockgpu.boxes import MB, box, drain, free, heavy, inference, times


def blocks(number: int) -> GpuServer:
    """A server with ``number`` KV blocks of 4 tokens, 1 MB each."""
    return box(free(kv_bytes_per_token=MB // 4), memory_mb=number, kv_share=1.0, block_tokens=4)


def refused(events: list[Event]) -> dict[int, str]:
    return {event.job_id: event.reason for event in events if isinstance(event, Refused)}


def test_sequences_compute_their_prompt_once_and_share_each_step() -> None:
    """A step takes 1 s, plus 0.5 s for each further sequence."""
    for sequences, step_s in ((1, 1.0), (3, 2.0)):
        server = box(free(slope_s=0.5))
        server.submit(0.0, inference(1, prompt_tokens=10, output_tokens=4, sequences=sequences))
        assert server.state().pending_tokens == 10 + 4 * sequences
        assert server.token_due_s(1, 3) is not None
        events = drain(server)
        assert times(events, FirstToken) == pytest.approx({1: 1.0 + step_s})
        assert times(events, Finished) == pytest.approx({1: 1.0 + 4 * step_s})
        assert [event.batch for event in events if isinstance(event, Started)] == [sequences]
        state = server.state()
        assert (state.pending_tokens, state.prompt_tokens_done, state.output_tokens_done) == (0, 10, 4 * sequences)


def test_sequences_slow_others_down_while_they_are_there() -> None:
    server = box(free(slope_s=0.5))
    server.submit(0.0, inference(1, prompt_tokens=0, output_tokens=6))
    server.submit(0.0, inference(2, prompt_tokens=0, output_tokens=2, sequences=3))
    assert [event.batch for event in server.advance(0.0) if isinstance(event, Started)] == [1, 4]
    # Two steps of four sequences, then four of one.
    assert times(drain(server), Finished) == pytest.approx({2: 5.0, 1: 9.0})


def test_sequences_take_one_slot() -> None:
    server = box(free(), max_running=2)
    for number in (1, 2, 3):
        server.submit(0.0, inference(number, sequences=5))
    assert (server.state().running, server.state().queue_depth) == (2, 1)


def test_sequences_hold_the_full_blocks_of_their_prompt_once() -> None:
    server = blocks(20)
    server.submit(0.0, inference(1, prompt_tokens=9, output_tokens=5, sequences=3))
    used = []
    for token in range(6):
        server.advance(0.9 + token - 0.001)
        used.append(server.state().kv_blocks_used)
    # Two full blocks and three partial ones; three more for the token after the twelfth.
    assert used == [5, 5, 5, 5, 5, 8]


@pytest.mark.parametrize(("output_tokens", "reason"), [(4, {}), (5, {1: "too_long"})])
def test_sequences_that_never_fit_are_refused(output_tokens: int, reason: dict[int, str]) -> None:
    server = blocks(5)
    server.submit(0.0, inference(1, prompt_tokens=9, output_tokens=output_tokens, sequences=3))
    assert refused(drain(server)) == reason


def test_sequences_are_preempted_together_and_compute_all_again() -> None:
    server = blocks(8)
    server.submit(0.0, inference(1, prompt_tokens=4, output_tokens=12))
    server.submit(0.0, inference(2, prompt_tokens=4, output_tokens=6, sequences=3))
    events = drain(server)
    assert set(times(events, Preempted)) == {2}
    ends = times(events, Finished)
    preempted_s = times(events, Preempted)[2]
    assert preempted_s < ends[1] < ends[2]
    # It had produced one token per full second since its prefill.
    done = int(preempted_s - 0.4 + 1e-9)
    again_s = (4 + 3 * done) / 10 + (6 - done)
    assert ends[2] == pytest.approx(ends[1] + again_s)


# --- the engine dies --------------------------------------------------------------------------------------


def test_all_inside_is_refused_when_the_engine_dies() -> None:
    """One job runs, one waits for a slot, one for a load, one is an update; later jobs are served."""
    server = box(heavy("any"), heavy("big", weights_mb=900), max_running=2, loads_at_once=1)
    server.submit(0.0, inference(1, model="a"))
    server.advance(10.5)
    for number, model in ((2, "a"), (3, "a"), (4, "big")):
        server.submit(10.5, inference(number, model=model))
    assert (server.state().running, server.state().queue_depth) == (2, 2)
    server.die(10.6)
    events = server.advance(10.6)
    assert refused(events) == dict.fromkeys((1, 2, 3, 4), "engine_dead")
    assert not {Started, Loaded} & {type(event) for event in events if event.at_s == 10.6}, "nobody goes on instead"
    assert [event.model for event in events if isinstance(event, Evicted)] == ["a"]
    state = server.state()
    assert (state.running, state.queue_depth, state.pending_tokens, state.models) == (0, 0, 0, ())
    assert server.next_event_s() is None
    server.submit(20.0, inference(5, model="a"))
    assert times(drain(server), Finished) == pytest.approx({5: 20.0 + 10.0 + 1.0 + 2.0})


def test_the_kv_cache_dies_with_the_engine() -> None:
    server = blocks(20)
    server.submit(0.0, inference(1, prompt_tokens=8, prompt_blocks=(1, 2)))
    drain(server)
    assert server.state().kv_blocks_cached == 2
    server.submit(10.0, inference(2, prompt_tokens=9, prompt_blocks=(1, 2)))
    server.die(10.1)
    assert (server.state().kv_blocks_used, server.state().kv_blocks_cached) == (0, 0)


def test_a_first_token_is_due_when_it_comes_and_not_a_last_digit_before() -> None:
    server = box(free())
    server.submit(11.3, inference(1, prompt_tokens=20, output_tokens=9, slowness=2.0))
    server.advance(17.299999999999997)
    due_s = server.token_due_s(1, 0)
    assert due_s is not None and due_s > 17.299999999999997
    assert times(server.advance(17.3), FirstToken) == {1: 17.3}
