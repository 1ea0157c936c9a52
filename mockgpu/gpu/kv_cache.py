"""KV cache in blocks, with a prefix cache: jobs share the blocks of common prefixes, and freed blocks stay cached.

As in vLLM: only full blocks of a prompt are shared, looked up by a hash chained over all blocks before them. The
blocks of a job that ends stay cached until their space is needed; eviction is least recently used first, and the last
block of a job before its first. Output tokens are not shared.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from mockgpu.gpu.setup import Model

_Key = tuple[str, int]


class _Block:
    """A full block of a prompt. ``key`` is None once the block is no longer in the prefix cache."""

    __slots__ = ("key", "size_bytes", "users")

    def __init__(self, key: _Key, size_bytes: int) -> None:
        self.key: _Key | None = key
        self.size_bytes = size_bytes
        self.users = 1


class HeldBlocks:
    """Blocks that one job holds: shared ones, and the number ``own`` of unshared ones.

    ``copies`` is the number of further blocks that all ``sequences`` but the first need.
    """

    __slots__ = ("block_bytes", "copies", "generation", "hashes", "model", "own", "sequences", "shared")

    def __init__(
        self, model: str, block_bytes: int, hashes: tuple[int, ...], generation: int, sequences: int, copies: int
    ) -> None:
        self.model = model
        self.block_bytes = block_bytes
        self.hashes = hashes
        self.generation = generation
        self.own = 0
        self.shared: list[_Block] = []
        self.sequences = sequences
        self.copies = copies

    @property
    def blocks(self) -> int:
        """Number of blocks of each sequence, shared ones included."""
        return self.own + len(self.shared)


class KvCache:
    """``capacity_bytes`` in blocks of ``block_tokens``, for jobs of all models. Without ``prefix`` none is shared."""

    def __init__(self, capacity_bytes: int, block_tokens: int, prefix: bool) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.cached_bytes = 0
        self.used_blocks = 0
        self.queries_tokens = 0
        self.hits_tokens = 0
        self._block_tokens = block_tokens
        self._prefix = prefix
        self._by_hash: dict[str, dict[int, _Block]] = {}  # by model and block hash
        self._cached: OrderedDict[_Key, _Block] = OrderedDict()  # unused blocks, least recently used first
        self._generations: dict[str, int] = {}  # number of invalidations by model

    @property
    def cached_blocks(self) -> int:
        """Number of blocks that no job holds and that a prompt can still reuse."""
        return len(self._cached)

    def total_blocks(self, models: Iterable[Model]) -> int:
        """Capacity in blocks of the first of these models that uses KV cache."""
        sizes = (self.block_bytes(model) for model in models if model.kv_bytes_per_token > 0)
        return self.capacity_bytes // next(sizes, self.capacity_bytes + 1)

    def blocks_for(self, tokens: int) -> int:
        """Number of blocks for ``tokens``, rounded up."""
        return -(-tokens // self._block_tokens)

    def block_bytes(self, model: Model) -> int:
        """Bytes of one block of a model."""
        return model.kv_bytes_per_token * self._block_tokens

    def copies_for(self, prompt_tokens: int, tokens: int, sequences: int) -> int:
        """Blocks of all sequences but the first; each has ``tokens`` with the prompt, whose full blocks are shared."""
        return (sequences - 1) * (self.blocks_for(tokens) - prompt_tokens // self._block_tokens)

    def can_ever_hold(self, model: Model, blocks: int) -> bool:
        """Whether the empty cache has room for ``blocks`` blocks."""
        return blocks * self.block_bytes(model) <= self.capacity_bytes

    def admit(
        self,
        name: str,
        model: Model,
        tokens: int,
        hashes: tuple[int, ...],
        *,
        count: bool,
        sequences: int = 1,
        copies: int = 0,
    ) -> tuple[HeldBlocks, int] | None:
        """Allocate blocks for a job's first ``tokens``; returns them with the cached tokens among these, None if full.

        ``name`` is the model, ``hashes`` those of the prompt's full blocks. ``count``: include the lookup in the
        statistics. At least the last token is always computed. ``copies``: see ``HeldBlocks``.
        """
        size_bytes = self.block_bytes(model)
        held = HeldBlocks(
            name, size_bytes, hashes if self._prefix else (), self._generations.get(name, 0), sequences, copies
        )
        by_hash = self._by_hash.get(name, {})
        shared: list[_Block] = []
        revived_bytes = 0
        for block_hash in held.hashes[: max(0, tokens - 1) // self._block_tokens]:
            block = by_hash.get(block_hash)
            if block is None:
                break
            shared.append(block)
            revived_bytes += 0 if block.users else size_bytes
        held.own = self.blocks_for(tokens) - len(shared)
        new_bytes = (held.own + copies) * size_bytes
        if self.used_bytes + revived_bytes + new_bytes > self.capacity_bytes:
            return None
        for block in shared:
            self._add_user(block)
        held.shared = shared
        self._allocate(new_bytes, held.own + copies)
        cached_tokens = len(shared) * self._block_tokens
        if count and self._prefix:
            self.queries_tokens += tokens
            self.hits_tokens += cached_tokens
        return held, cached_tokens

    def grow(self, held: HeldBlocks) -> bool:
        """Allocate one more block for each sequence; False if there is no room."""
        size_bytes = held.block_bytes * held.sequences
        if self.used_bytes + size_bytes > self.capacity_bytes:
            return False
        held.own += 1
        held.copies += held.sequences - 1
        self._allocate(size_bytes, held.sequences)
        return True

    def computed(self, held: HeldBlocks) -> None:
        """Add the full blocks of a computed prompt to the prefix cache."""
        if held.generation != self._generations.get(held.model, 0):
            return  # computed with old weights
        by_hash = self._by_hash.setdefault(held.model, {})
        for block_hash in held.hashes[len(held.shared) :]:
            if block_hash not in by_hash:  # else another job has computed the same block meanwhile
                block = by_hash[block_hash] = _Block((held.model, block_hash), held.block_bytes)
                held.shared.append(block)
                held.own -= 1

    def release(self, held: HeldBlocks) -> None:
        """Free all blocks of a job; those in the prefix cache stay cached."""
        own = held.own + held.copies
        self.used_bytes -= own * held.block_bytes
        self.used_blocks -= own
        for block in reversed(held.shared):
            block.users -= 1
            if block.users == 0:
                self.used_bytes -= block.size_bytes
                self.used_blocks -= 1
                if block.key is not None:
                    self._cached[block.key] = block
                    self.cached_bytes += block.size_bytes
        held.own = held.copies = 0
        held.shared = []

    def invalidate(self, model: str) -> None:
        """Remove from the prefix cache all blocks of the model that were computed so far."""
        self._generations[model] = self._generations.get(model, 0) + 1
        for block in self._by_hash.pop(model, {}).values():
            key, block.key = block.key, None
            if key is not None and self._cached.pop(key, None) is not None:
                self.cached_bytes -= block.size_bytes

    def clear(self) -> None:
        """Drop all blocks that no job holds."""
        while self._cached:
            self._drop_oldest()

    def _add_user(self, block: _Block) -> None:
        if block.users == 0 and block.key is not None:
            del self._cached[block.key]
            self.cached_bytes -= block.size_bytes
            self.used_bytes += block.size_bytes
            self.used_blocks += 1
        block.users += 1

    def _allocate(self, size_bytes: int, blocks: int) -> None:
        """Count blocks as used, evicting cached blocks to make room."""
        self.used_bytes += size_bytes
        self.used_blocks += blocks
        while self.used_bytes + self.cached_bytes > self.capacity_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        (name, block_hash), block = self._cached.popitem(last=False)
        self.cached_bytes -= block.size_bytes
        block.key = None
        by_hash = self._by_hash[name]
        del by_hash[block_hash]
        if not by_hash:
            del self._by_hash[name]
