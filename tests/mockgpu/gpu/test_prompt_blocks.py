import pytest

from mockgpu.gpu.prompt_blocks import BLOCK_WORDS, blocks_of

WORDS = [f"w{number}" for number in range(100)]


def text(*words: str) -> str:
    return " ".join(words)


@pytest.mark.parametrize(("words", "blocks"), [(0, 0), (15, 0), (16, 1), (31, 1), (32, 2), (100, 6)])
def test_only_full_blocks_count(words: int, blocks: int) -> None:
    assert len(blocks_of(text(*WORDS[:words]), words)) == blocks


def test_a_common_beginning_is_a_common_beginning_of_hashes() -> None:
    one = blocks_of(text(*WORDS[:64]), 64)
    other = blocks_of(text(*WORDS[:40], "else", *WORDS[41:64]), 64)
    assert one[:2] == other[:2]
    assert not set(one[2:]) & set(other[2:])
    # The same words at another place are another block.
    assert not set(one) & set(blocks_of(text("else", *WORDS[1:64]), 64))


def test_a_suffix_changes_nothing_before_it() -> None:
    assert blocks_of(text(*WORDS[:32], "#sy-0000000000001"), 33) == blocks_of(text(*WORDS[:32], "#sy-2"), 33)


def test_white_space_does_not_matter_and_half_surrogates_do_no_harm() -> None:
    assert blocks_of("\n\t".join(WORDS[:16]), 16) == blocks_of(text(*WORDS[:16]), 16)
    assert len(blocks_of(text(*["\ud800"] * 16), 16)) == 1


def test_no_more_blocks_than_tokens_and_than_text() -> None:
    assert len(blocks_of(text(*WORDS), 33)) == 2
    assert len(blocks_of(text(*WORDS), 10_000)) == 6
    assert len(blocks_of(text(*WORDS), 100, block_tokens=50)) == 2
    assert BLOCK_WORDS == 16


def test_an_adapter_has_blocks_of_its_own() -> None:
    prompt = text(*WORDS[:64])
    base, one, other = (set(blocks_of(prompt, 64, adapter=adapter)) for adapter in ("", "a", "b"))
    assert len(one) == 4 and not (base & one or base & other or one & other)
    assert one == set(blocks_of(prompt, 64, adapter="a"))
