"""Block hashes of a prompt for the prefix cache: chained hashes of 16 words each.

A block's hash also depends on all words before it. So two prompts share one leading hash per full block of their
common prefix, as with the block hashes of vLLM.
"""

from __future__ import annotations

from xxhash import xxh3_64_intdigest

BLOCK_WORDS = 16


def blocks_of(prompt: str, tokens: int, block_tokens: int = BLOCK_WORDS, adapter: str = "") -> tuple[int, ...]:
    """Hashes of the full blocks of ``prompt`` within its first ``tokens``; a word is a token.

    A request may declare more prompt tokens than its text has; the missing ones can't be cached. Hashes differ by
    ``adapter``: the same words with an adapter don't share blocks with the base model, as in vLLM.
    """
    words = prompt.split()
    hashes: list[int] = []
    previous = xxh3_64_intdigest(adapter.encode(errors="replace")) if adapter else 0
    for end in range(block_tokens, min(len(words), tokens) + 1, block_tokens):
        text = " ".join(words[end - block_tokens : end])
        previous = xxh3_64_intdigest(text.encode(errors="replace"), previous)
        hashes.append(previous)
    return tuple(hashes)
