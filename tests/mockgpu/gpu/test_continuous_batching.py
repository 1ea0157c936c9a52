"""KV cache and pools in a GPU server: admission, growth, preemption, prefix cache, transfers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mockgpu.gpu.catalogue import Pools
from mockgpu.gpu.events import Event, Finished, FirstToken, Job, Preempted, Refused, Resumed, Slept, Started
from mockgpu.gpu.model import GpuServer
from tests.mockgpu.boxes import MB, box, drain, free, heavy, inference, times

CHAIN = (1, 2, 3, 4, 5)


def blocks(number: int, **more: object) -> GpuServer:
    """A server with ``number`` KV blocks of 4 tokens, 1 MB each."""
    settings: dict[str, object] = {"memory_mb": number, "kv_share": 1.0, "block_tokens": 4, **more}
    return box(free(kv_bytes_per_token=MB // 4), **settings)


def of(events: list[Event], *kinds: type[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, kinds)]


# -- admission and growth ----------------------------------------------------------------------------------


def test_a_job_waits_until_there_are_blocks_for_its_prompt() -> None:
    server = blocks(5)
    server.submit(0.0, inference(1, prompt_tokens=12, output_tokens=1))
    server.submit(0.0, inference(2, prompt_tokens=12, output_tokens=1))
    state = server.state()
    assert (state.running, state.queue_depth, state.kv_blocks_used, state.kv_blocks_total) == (1, 1, 3, 5)
    assert (state.memory_used_mb, state.memory_evictable_mb) == (3, 0)
    assert times(drain(server), Started) == pytest.approx({1: 0.0, 2: 2.2})


def test_the_head_that_waits_for_blocks_keeps_the_others_waiting() -> None:
    server = blocks(5)
    server.submit(0.0, inference(1, prompt_tokens=12, output_tokens=1))
    server.submit(0.0, inference(2, prompt_tokens=12, output_tokens=1))
    server.submit(0.0, inference(3, prompt_tokens=4, output_tokens=1))
    assert server.state().running == 1
    server.cancel(1.0, 2)
    assert times(server.advance(1.0), Started) == {1: 0.0, 3: 1.0}


def test_a_block_is_taken_when_the_last_one_is_full_and_a_token_is_to_follow() -> None:
    server = blocks(10)
    server.submit(0.0, inference(1, prompt_tokens=3, output_tokens=6))
    used = {}
    for token in range(1, 7):
        server.advance(0.3 + token - 0.001)
        used[token] = server.state().kv_blocks_used
    # 3 prompt tokens and the first output token fill a block; the second output token needs another.
    assert used == {1: 1, 2: 1, 3: 2, 4: 2, 5: 2, 6: 2}
    server.advance(6.3)
    assert server.state().kv_blocks_used == 0


@pytest.mark.parametrize(("output_tokens", "refused"), [(9, False), (10, True)])
def test_what_can_never_be_held_is_refused(output_tokens: int, refused: bool) -> None:
    server = blocks(5)
    server.submit(0.0, inference(1, prompt_tokens=12, output_tokens=output_tokens))
    assert of(drain(server), Refused) == ([Refused(0.0, 1, "too_long")] if refused else [])


def test_the_context_of_a_model_is_a_limit_without_kv_cache_too() -> None:
    server = box(free(max_model_tokens=20))
    server.submit(0.0, inference(1, prompt_tokens=15, output_tokens=5))
    server.submit(0.0, inference(2, prompt_tokens=15, output_tokens=6))
    assert of(drain(server), Refused) == [Refused(0.0, 2, "too_long")]


# -- preemption --------------------------------------------------------------------------------------------


def test_the_latest_gives_way_and_computes_its_tokens_anew() -> None:
    server = blocks(4)
    server.submit(0.0, inference(1, prompt_tokens=7, output_tokens=6))
    server.submit(0.1, inference(2, prompt_tokens=7, output_tokens=6))
    events = drain(server)
    # The first needs its third block after token 2, at 2.7 s; the other has produced one token by then (1.8 s). It
    # resumes when the first has finished (6.7 s), computes 8 tokens in 0.8 s and produces its other five.
    assert of(events, Preempted, Resumed) == [Preempted(2.7, 2), Resumed(6.7, 2)]
    assert times(events, FirstToken) == pytest.approx({1: 1.7, 2: 1.8})
    assert times(events, Finished) == pytest.approx({1: 6.7, 2: 6.7 + 0.8 + 5})
    assert len(of(events, Started)) == 2
    assert server.state().preemptions == 1


def test_a_preempted_job_goes_before_all_that_wait() -> None:
    server = blocks(4)
    server.submit(0.0, inference(1, prompt_tokens=7, output_tokens=6))
    server.submit(0.1, inference(2, prompt_tokens=7, output_tokens=6))
    server.submit(0.2, inference(3, prompt_tokens=1, output_tokens=1))
    server.submit(0.2, Job(4, "", "update", 0, 0))
    events = drain(server)
    order = [event.job_id for event in events if isinstance(event, Started | Resumed)]
    assert order == [1, 2, 2, 3, 4]


def test_the_times_of_its_tokens_are_those_at_which_they_came() -> None:
    server = blocks(4)
    server.submit(0.0, inference(1, prompt_tokens=7, output_tokens=6))
    server.submit(0.1, inference(2, prompt_tokens=7, output_tokens=6))
    server.advance(3.0)
    assert [server.token_due_s(2, number) for number in (0, 1)] == [pytest.approx(1.8), None]
    server.advance(7.0)
    assert [server.token_due_s(2, number) for number in (0, 1, 2)] == pytest.approx([1.8, 8.5, 9.5])
    server.advance(8.0)
    assert [server.token_due_s(2, number) for number in (0, 1, 2)] == pytest.approx([1.8, 8.5, 9.5])


def test_a_job_gives_way_itself_if_it_is_the_latest() -> None:
    server = blocks(4)
    server.submit(0.0, inference(1, prompt_tokens=5, output_tokens=8))
    server.submit(1.0, inference(2, prompt_tokens=8, output_tokens=5))
    events = drain(server)
    # At 2.8 s the second has filled its two blocks with its prompt, and the other holds the rest.
    assert times(events, Preempted) == pytest.approx({2: 2.8})
    assert times(events, Finished) == pytest.approx({1: 8.5, 2: 8.5 + 0.9 + 4})


@pytest.mark.parametrize("pools", [None, Pools(2, 2)])
def test_a_job_that_gave_way_may_start_again_at_once(pools: Pools | None) -> None:
    model = replace(free(kv_bytes_per_token=MB // 4), prefill_tokens_per_s=2.0)
    server = box(model, memory_mb=6, kv_share=1.0, block_tokens=4, pools=pools)
    server.submit(0.0, inference(1, prompt_tokens=8, output_tokens=6, prompt_blocks=CHAIN[:2]))
    server.submit(0.0, inference(2, prompt_tokens=9, output_tokens=6, prompt_blocks=CHAIN[:2]))
    events = drain(server)
    # Both computed the same two blocks. The second, which needs its fourth, now shares those of the first.
    assert times(events, Preempted) == times(events, Resumed) == {2: 8.5}
    assert times(events, Finished) == {1: 10.0, 2: 8.5 + 2.5 + 2}


@pytest.mark.parametrize("refuse_asleep", [False, True])
def test_a_preempted_job_ends_before_the_server_sleeps(refuse_asleep: bool) -> None:
    server = blocks(4, sleep_s=(1.0, 1.0), wake_s=(1.0, 1.0), refuse_asleep=refuse_asleep)
    server.submit(0.0, inference(1, prompt_tokens=7, output_tokens=6))
    server.submit(0.1, inference(2, prompt_tokens=7, output_tokens=6))
    server.submit(0.2, inference(3, prompt_tokens=7, output_tokens=1))
    server.advance(3.0)
    server.sleep(3.0, 1)
    events = drain(server)
    assert times(events, Finished) == pytest.approx({1: 6.7, 2: 12.5})
    assert times(events, Refused) == ({3: 3.0} if refuse_asleep else {})
    assert [event.at_s for event in events if isinstance(event, Slept)] == [pytest.approx(13.5)]
    assert server.state().queue_depth == (0 if refuse_asleep else 1)


def test_one_that_is_done_at_that_instant_ends_instead() -> None:
    server = blocks(4)
    server.submit(0.0, inference(1, prompt_tokens=7, output_tokens=6))
    server.submit(0.0, inference(2, prompt_tokens=7, output_tokens=2))
    server.submit(0.0, inference(3, prompt_tokens=7, output_tokens=1))
    events = drain(server)
    # The first takes one of the two blocks of the second before any job starts on them.
    assert of(events, Preempted) == []
    assert times(events, Finished) == pytest.approx({2: 2.7, 1: 6.7, 3: 6.7 + 1.7})


def test_a_first_token_of_that_instant_is_still_told() -> None:
    server = blocks(4)
    server.submit(0.0, inference(1, prompt_tokens=8, output_tokens=3))
    server.submit(0.0, inference(2, prompt_tokens=8, output_tokens=3))
    events = drain(server)
    assert times(events, FirstToken) == {1: 1.8, 2: 1.8}
    assert of(events, Preempted) == [Preempted(1.8, 2)]
    assert times(events, Finished) == pytest.approx({1: 3.8, 2: 3.8 + 0.9 + 2})


# -- prefixes ----------------------------------------------------------------------------------------------


def test_a_repeated_beginning_is_not_computed_again() -> None:
    server = blocks(20)
    server.submit(0.0, inference(1, 14, 1, prompt_blocks=CHAIN[:3]))
    drain(server)
    state = server.state()
    assert (state.kv_blocks_cached, state.memory_used_mb, state.memory_evictable_mb) == (3, 3, 3)
    server.submit(10.0, inference(2, 20, 1, prompt_blocks=CHAIN))
    events = drain(server)
    assert Started(10.0, 2, False, 0.0, batch=1, cached_tokens=12) in events
    assert times(events, FirstToken) == {2: pytest.approx(10 + 0.8 + 1)}
    state = server.state()
    assert (state.prefix_queries_tokens, state.prefix_hits_tokens) == (34, 12)
    assert (state.prompt_tokens_done, state.output_tokens_done) == (34, 2)


def test_hashes_beyond_the_full_blocks_of_the_prompt_are_not_believed() -> None:
    server = blocks(20)
    server.submit(0.0, inference(1, 5, 1, prompt_blocks=CHAIN))
    drain(server)
    assert server.state().kv_blocks_cached == 1


def test_a_preempted_job_finds_its_own_prompt_again_but_that_is_no_hit() -> None:
    server = blocks(5)
    server.submit(0.0, inference(1, 7, 10))
    server.submit(0.1, inference(2, 8, 9, prompt_blocks=CHAIN[:2]))
    events = drain(server)
    (resumed,) = (event.at_s for event in events if isinstance(event, Resumed))
    state = server.state()
    assert (state.preemptions, state.prefix_queries_tokens, state.prefix_hits_tokens) == (1, 15, 0)
    # It had produced one token when it was preempted. The other then evicted the second block of its prompt;
    # the first is still cached, so five of nine tokens are recomputed, and eight produced.
    assert resumed == pytest.approx(10.7)
    assert times(events, Finished)[2] == pytest.approx(resumed + 0.5 + 8)


@pytest.mark.parametrize("way", ["update", "invalidate", "evict", "unload", "sleep"])
def test_what_makes_a_prefix_cache_invalid(way: str) -> None:
    server = blocks(20, update_s=1.0, weights_update_s=1.0, sleep_s=(0.1, 0.1), wake_s=(0.1, 0.1))
    server.submit(0.0, inference(1, 14, 1, prompt_blocks=CHAIN[:3]))
    server.submit(0.0, Job(2, "m", "update", 0, 0, update="embedding"))
    server.submit(0.0, Job(3, "other", "update", 0, 0, update="weights"))
    drain(server)
    assert server.state().kv_blocks_cached == 3
    if way == "update":
        server.submit(10.0, Job(4, "m", "update", 0, 0, update="weights"))
        server.advance(10.9)
        assert server.state().kv_blocks_cached == 3
        server.advance(11.0)
    elif way == "invalidate":
        server.invalidate(10.0, "m")
    elif way == "evict":
        server.evict(10.0)
    elif way == "unload":
        server.unload(10.0, "m")
    else:
        server.sleep(10.0, 1)
        drain(server)
    assert server.state().kv_blocks_cached == 0


def test_the_cache_of_a_model_goes_with_it() -> None:
    server = box(free(), heavy("a", kv_bytes_per_token=MB // 16), heavy("b"), memory_mb=1_100, kv_share=0.1)
    server.submit(0.0, inference(1, 32, 1, "a", prompt_blocks=CHAIN[:2]))
    drain(server)
    assert (server.state().kv_blocks_cached, server.state().memory_used_mb) == (2, 602)
    server.submit(50.0, inference(2, 10, 1, "b"))
    drain(server)
    assert (server.state().kv_blocks_cached, server.state().memory_used_mb) == (0, 600)


# -- pools -------------------------------------------------------------------------------------------------


def pooled(prefill_slots: int, decode_slots: int, **more: object) -> GpuServer:
    """A server whose transfers take 2 s and 0.1 s per token."""
    return box(free(slope_s=0.5), pools=Pools(prefill_slots, decode_slots, 2.0, 0.1), **more)


def test_a_prefilled_job_is_moved_before_it_decodes() -> None:
    server = pooled(1, 4)
    server.submit(0.0, inference(1, prompt_tokens=10, output_tokens=3))
    events = drain(server)
    assert (times(events, FirstToken), times(events, Finished)) == ({1: 1 + 3 + 1}, {1: 7.0})


def test_the_next_prefill_begins_while_the_last_job_is_moved() -> None:
    server = pooled(1, 4)
    for number in range(3):
        server.submit(0.0, inference(number, prompt_tokens=10, output_tokens=1))
    assert server.state().queue_depth == 2
    events = drain(server)
    assert times(events, Started) == {0: 0.0, 1: 1.0, 2: 2.0}
    # Each decodes at batch size 1: only decode slots count.
    assert times(events, FirstToken) == {0: 5.0, 1: 6.0, 2: 7.0}


def test_decode_slots_are_limited_and_taken_in_order() -> None:
    server = pooled(3, 1)
    for number in range(3):
        server.submit(0.0, inference(number, prompt_tokens=10, output_tokens=2))
    server.advance(1.0)
    assert server.state().running == 3
    assert times(drain(server), Finished) == {0: 6.0, 1: 11.0, 2: 16.0}


def test_those_that_leave_give_back_the_slots_of_both_pools() -> None:
    server = pooled(1, 1)
    for number in range(4):
        server.submit(0.0, inference(number, prompt_tokens=10, output_tokens=2))
    server.advance(2.5)  # 0 in transfer, 1 waits for a decode slot, 2 in prefill, 3 in the queue
    for number in (1, 0, 2):
        server.cancel(2.5, number)
    assert times(drain(server), Finished) == {3: 2.5 + 1 + 3 + 2}
    server.submit(20.0, inference(5, prompt_tokens=10, output_tokens=2))
    assert times(drain(server), Finished) == {5: 26.0}


def test_inside_are_the_slots_of_both_pools_and_the_queue() -> None:
    server = pooled(1, 2, queue_limit=1)
    for number in range(5):
        server.submit(0.0, inference(number))
    assert of(server.advance(0.0), Refused) == [Refused(0.0, 4, "queue_full")]


def test_a_token_is_not_due_before_its_prompt_has_been_moved() -> None:
    server = pooled(2, 1)
    server.submit(0.0, inference(1, prompt_tokens=10, output_tokens=2))
    server.submit(0.0, inference(2, prompt_tokens=10, output_tokens=2))
    for now_s in (0.5, 1.5, 4.5):
        server.advance(now_s)
        assert server.token_due_s(1, 1) == 6.0
        due_s = server.token_due_s(2, 0)
        assert due_s is not None and now_s < due_s <= 10.0
    drain(server)
