"""The KV cache on its own: allocation, prefix lookup, eviction and invalidation."""

from __future__ import annotations

import pytest

from mockgpu.gpu.kv_cache import HeldBlocks, KvCache
from tests.mockgpu.boxes import free

MODEL = free(kv_bytes_per_token=10)  # blocks of 40 bytes
CHAIN = (11, 12, 13, 14, 15)


def cache(blocks: int, *, prefix: bool = True) -> KvCache:
    return KvCache(blocks * 40 + 39, block_tokens=4, prefix=prefix)


def admit(kv: KvCache, tokens: int, hashes: tuple[int, ...] = (), name: str = "m") -> tuple[HeldBlocks, int]:
    admitted = kv.admit(name, MODEL, tokens, hashes, count=True)
    assert admitted is not None
    return admitted


def run_job(kv: KvCache, tokens: int, hashes: tuple[int, ...], name: str = "m") -> None:
    """Run a job with this prompt to its end."""
    held, _ = admit(kv, tokens, hashes, name)
    kv.computed(held)
    kv.release(held)


def test_a_job_takes_whole_blocks_until_there_are_none() -> None:
    kv = cache(3)
    held, _ = admit(kv, 5)
    assert (kv.used_blocks, kv.used_bytes, held.blocks) == (2, 80, 2)
    assert kv.admit("m", MODEL, 5, (), count=True) is None
    assert (kv.used_blocks, kv.queries_tokens) == (2, 5)
    assert kv.grow(held)
    assert not kv.grow(held)
    kv.release(held)
    assert (kv.used_blocks, kv.used_bytes, kv.cached_blocks) == (0, 0, 0)


def test_a_prompt_finds_what_it_has_in_common_with_one_that_was_computed() -> None:
    kv = cache(10)
    run_job(kv, 13, CHAIN[:3])
    assert (kv.used_blocks, kv.cached_blocks, kv.cached_bytes) == (0, 3, 120)
    held, cached_tokens = admit(kv, 17, (11, 12, 99, 100))
    assert cached_tokens == 8
    assert (held.blocks, kv.used_blocks, kv.cached_blocks) == (5, 5, 1)
    assert (kv.queries_tokens, kv.hits_tokens) == (13 + 17, 8)


def test_nothing_is_found_before_it_is_computed() -> None:
    kv = cache(10)
    first, _ = admit(kv, 13, CHAIN[:3])
    second, cached_tokens = admit(kv, 13, CHAIN[:3])
    assert cached_tokens == 0
    kv.computed(first)
    kv.computed(second)  # the same blocks twice; one set is in the prefix cache
    assert (kv.used_blocks, admit(kv, 13, CHAIN[:3])[1]) == (8, 12)
    kv.release(second)
    assert kv.cached_blocks == 0
    kv.release(first)
    assert (kv.used_blocks, kv.cached_blocks) == (4, 0)  # the third still fits them


def test_the_last_token_is_always_computed() -> None:
    kv = cache(10)
    run_job(kv, 8, CHAIN[:2])
    assert admit(kv, 8, CHAIN[:2])[1] == 4
    assert admit(kv, 9, CHAIN[:2])[1] == 8


def test_cached_blocks_make_room_least_recently_used_first_and_the_end_of_a_prompt_before_its_beginning() -> None:
    kv = cache(6)
    run_job(kv, 9, (1, 2))
    run_job(kv, 13, (5, 6, 7))
    run_job(kv, 9, (1, 2))  # used again
    run_job(kv, 9, ())
    assert (kv.used_blocks, kv.cached_blocks) == (0, 3)
    held, cached_tokens = admit(kv, 13, (5, 6, 7))
    assert cached_tokens == 4
    kv.release(held)
    assert admit(kv, 9, (1, 2))[1] == 8


def test_blocks_that_are_found_need_no_room_a_second_time() -> None:
    kv = cache(4)
    first, _ = admit(kv, 12, CHAIN[:3])
    kv.computed(first)
    second, cached_tokens = admit(kv, 13, CHAIN[:3])
    assert (cached_tokens, kv.used_blocks) == (12, 4)
    assert kv.admit("m", MODEL, 13, CHAIN[:3], count=True) is None
    kv.release(first)
    kv.release(second)
    assert (kv.used_blocks, kv.cached_blocks) == (0, 3)


def test_cached_blocks_that_are_found_do_not_count_as_room_for_the_rest() -> None:
    kv = cache(4)
    run_job(kv, 12, CHAIN[:3])
    assert kv.admit("m", MODEL, 17, CHAIN, count=True) is None
    assert (kv.used_blocks, kv.cached_blocks) == (0, 3)


def test_models_do_not_share() -> None:
    kv = cache(10)
    run_job(kv, 13, CHAIN[:3], name="a")
    assert admit(kv, 13, CHAIN[:3], name="b")[1] == 0


def test_without_a_prefix_cache_nothing_is_found_or_kept() -> None:
    kv = cache(10, prefix=False)
    run_job(kv, 13, CHAIN[:3])
    assert admit(kv, 13, CHAIN[:3])[1] == 0
    assert (kv.cached_blocks, kv.queries_tokens) == (0, 0)


def test_what_became_invalid_is_not_found_and_not_kept() -> None:
    kv = cache(20)
    run_job(kv, 13, CHAIN[:3])
    user, _ = admit(kv, 9, CHAIN[:2])
    late, _ = admit(kv, 9, (7, 8))
    kv.invalidate("m")
    kv.computed(late)  # with the old weights
    assert (kv.cached_blocks, kv.cached_bytes, kv.used_blocks) == (0, 0, 6)
    assert admit(kv, 9, CHAIN[:2])[1] == 0
    kv.release(user)
    kv.release(late)
    assert (kv.cached_blocks, kv.used_blocks) == (0, 3)
    run_job(kv, 13, CHAIN[:3])
    assert admit(kv, 13, CHAIN[:3])[1] == 12


def test_clearing_leaves_what_is_in_use() -> None:
    kv = cache(10)
    run_job(kv, 13, CHAIN[:3])
    held, _ = admit(kv, 5, CHAIN[:1])
    kv.clear()
    assert (kv.cached_blocks, kv.used_blocks) == (0, 2)
    kv.release(held)
    assert admit(kv, 13, CHAIN[:3])[1] == 4


@pytest.mark.parametrize(("tokens", "fits"), [(12, True), (13, False), (0, True)])
def test_what_can_ever_be_held(tokens: int, fits: bool) -> None:
    kv = cache(3)
    assert kv.can_ever_hold(MODEL, kv.blocks_for(tokens)) is fits


@pytest.mark.parametrize(
    ("prompt_tokens", "tokens", "copies"),
    [(8, 8, 0), (9, 9, 2), (8, 9, 2), (9, 13, 4), (3, 3, 2)],
)
def test_further_sequences_share_the_full_blocks_of_the_prompt_alone(
    prompt_tokens: int, tokens: int, copies: int
) -> None:
    assert cache(10).copies_for(prompt_tokens, tokens, 3) == copies
    assert cache(10).copies_for(prompt_tokens, tokens, 1) == 0


def test_sequences_grow_together_or_not_at_all_and_let_go_of_all() -> None:
    kv = cache(8)
    admitted = kv.admit("m", MODEL, 9, (1, 2), count=True, sequences=3, copies=2)
    assert admitted is not None
    held, _ = admitted
    assert (held.blocks, kv.used_blocks) == (3, 5)
    kv.computed(held)
    assert kv.grow(held)
    assert (held.blocks, kv.used_blocks, kv.used_bytes) == (4, 8, 8 * kv.block_bytes(MODEL))
    assert not kv.grow(held)
    assert kv.used_blocks == 8
    kv.release(held)
    assert (kv.used_blocks, kv.used_bytes, kv.cached_blocks) == (0, 0, 2)
    assert kv.admit("m", MODEL, 29, (), count=True, sequences=2, copies=1) is None


def test_the_total_is_in_blocks_of_the_first_model_that_takes_any() -> None:
    assert cache(3).total_blocks([free(), MODEL]) == 3
    assert cache(3).total_blocks([free()]) == 0
    assert KvCache(0, 16, True).total_blocks([MODEL]) == 0
