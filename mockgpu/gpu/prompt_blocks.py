"""The blocks of a prompt that a prefix cache goes by: hashes of 16 words each, chained.

A block's hash depends on all words before it too. So two prompts have as many leading hashes in common as they have
full blocks in common from their beginning on, as with the block hashes of vLLM.
"""

from __future__ import annotations

from xxhash import xxh3_64_intdigest

BLOCK_WORDS = 16


def blocks_of(prompt: str, tokens: int, block_tokens: int = BLOCK_WORDS, adapter: str = "") -> tuple[int, ...]:
    """Hashes of the full blocks of ``prompt``, a word being a token; at most as many as ``tokens`` fill.

    A request may say that its prompt is longer than its text: what is not there can't be found again. Computed with an
    ``adapter`` the same words make other blocks than with its base model, as in vLLM.
    """
    words = prompt.split()
    hashes: list[int] = []
    before = xxh3_64_intdigest(adapter.encode(errors="replace")) if adapter else 0
    for end in range(block_tokens, min(len(words), tokens) + 1, block_tokens):
        text = " ".join(words[end - block_tokens : end])
        before = xxh3_64_intdigest(text.encode(errors="replace"), before)
        hashes.append(before)
    return tuple(hashes)
