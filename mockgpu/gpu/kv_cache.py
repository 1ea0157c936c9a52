"""KV cache in blocks: held by jobs, shared by those whose prompts begin alike, kept afterwards while there is room.

As in vLLM: only full blocks of a prompt are shared, found by a hash chained over all before them. When a job lets
go its blocks stay, least recently used first to make room, of one job its last block first. Tokens that a job
made are not shared.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from mockgpu.gpu.setup import Model

_Key = tuple[str, int]


class _Block:
    """A full block of a prompt. ``key`` is None once it may no longer be found."""

    __slots__ = ("key", "size_bytes", "users")

    def __init__(self, key: _Key, size_bytes: int) -> None:
        self.key: _Key | None = key
        self.size_bytes = size_bytes
        self.users = 1


class HeldBlocks:
    """The blocks that one job holds: those that others may share, and a number of its own.

    ``copies`` are those that its further ``sequences`` have beside the blocks of the first one.
    """

    __slots__ = ("age", "block_bytes", "copies", "hashes", "model", "own", "sequences", "shared")

    def __init__(
        self, model: str, block_bytes: int, hashes: tuple[int, ...], age: int, sequences: int, copies: int
    ) -> None:
        self.model = model
        self.block_bytes = block_bytes
        self.hashes = hashes
        self.age = age
        self.own = 0
        self.shared: list[_Block] = []
        self.sequences = sequences
        self.copies = copies

    @property
    def blocks(self) -> int:
        """How many blocks each sequence has, shared ones included."""
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
        self._found: dict[str, dict[int, _Block]] = {}  # by model and hash
        self._cached: OrderedDict[_Key, _Block] = OrderedDict()  # those without a user, least recently used first
        self._ages: dict[str, int] = {}  # how often the blocks of a model became invalid

    @property
    def cached_blocks(self) -> int:
        """Blocks that no job holds and that a prompt may still find."""
        return len(self._cached)

    def total_blocks(self, models: Iterable[Model]) -> int:
        """How many blocks of the first of these models that has any would fit."""
        sizes = (self.block_bytes(model) for model in models if model.kv_bytes_per_token > 0)
        return self.capacity_bytes // next(sizes, self.capacity_bytes + 1)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks so many tokens take."""
        return -(-tokens // self._block_tokens)

    def block_bytes(self, model: Model) -> int:
        """Bytes of one block of a model."""
        return model.kv_bytes_per_token * self._block_tokens

    def copies_for(self, prompt_tokens: int, tokens: int, sequences: int) -> int:
        """Blocks of all sequences but the first, each of ``tokens`` with the prompt, whose full blocks they share."""
        return (sequences - 1) * (self.blocks_for(tokens) - prompt_tokens // self._block_tokens)

    def can_ever_hold(self, model: Model, blocks: int) -> bool:
        """Whether a job alone finds room for so many blocks."""
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
        """Blocks for a job that is to compute ``tokens`` first, and how many of these the cache spares; None: no room.

        ``hashes`` are of the full blocks of its prompt. ``name`` is whose blocks these are, ``count`` whether
        the look-up goes into the statistics. At least the last token is always computed. ``copies``: see
        ``HeldBlocks``.
        """
        size_bytes = self.block_bytes(model)
        hold = HeldBlocks(name, size_bytes, hashes if self._prefix else (), self._ages.get(name, 0), sequences, copies)
        found = self._found.get(name, {})
        shared: list[_Block] = []
        revived_bytes = 0
        for number in hold.hashes[: max(0, tokens - 1) // self._block_tokens]:
            block = found.get(number)
            if block is None:
                break
            shared.append(block)
            revived_bytes += 0 if block.users else size_bytes
        hold.own = self.blocks_for(tokens) - len(shared)
        new_bytes = (hold.own + copies) * size_bytes
        if self.used_bytes + revived_bytes + new_bytes > self.capacity_bytes:
            return None
        for block in shared:
            self._share(block)
        hold.shared = shared
        self._claim(new_bytes, hold.own + copies)
        cached_tokens = len(shared) * self._block_tokens
        if count and self._prefix:
            self.queries_tokens += tokens
            self.hits_tokens += cached_tokens
        return hold, cached_tokens

    def grow(self, hold: HeldBlocks) -> bool:
        """One more block for each sequence; False if there is no room."""
        size_bytes = hold.block_bytes * hold.sequences
        if self.used_bytes + size_bytes > self.capacity_bytes:
            return False
        hold.own += 1
        hold.copies += hold.sequences - 1
        self._claim(size_bytes, hold.sequences)
        return True

    def computed(self, hold: HeldBlocks) -> None:
        """The prompt has been computed: its full blocks may be found from now on."""
        if hold.age != self._ages.get(hold.model, 0):
            return  # computed with weights that are no longer in use
        found = self._found.setdefault(hold.model, {})
        for number in hold.hashes[len(hold.shared) :]:
            if number not in found:  # else another job computed the same meanwhile
                block = found[number] = _Block((hold.model, number), hold.block_bytes)
                hold.shared.append(block)
                hold.own -= 1

    def release(self, hold: HeldBlocks) -> None:
        """The job lets go of all its blocks; those that can be found stay cached."""
        own = hold.own + hold.copies
        self.used_bytes -= own * hold.block_bytes
        self.used_blocks -= own
        for block in reversed(hold.shared):
            block.users -= 1
            if block.users == 0:
                self.used_bytes -= block.size_bytes
                self.used_blocks -= 1
                if block.key is not None:
                    self._cached[block.key] = block
                    self.cached_bytes += block.size_bytes
        hold.own = hold.copies = 0
        hold.shared = []

    def invalidate(self, model: str) -> None:
        """No block of the model computed so far is to be found any more."""
        self._ages[model] = self._ages.get(model, 0) + 1
        for block in self._found.pop(model, {}).values():
            key, block.key = block.key, None
            if key is not None and self._cached.pop(key, None) is not None:
                self.cached_bytes -= block.size_bytes

    def clear(self) -> None:
        """Drop all blocks that no job holds."""
        while self._cached:
            self._drop_oldest()

    def _share(self, block: _Block) -> None:
        if block.users == 0 and block.key is not None:
            del self._cached[block.key]
            self.cached_bytes -= block.size_bytes
            self.used_bytes += block.size_bytes
            self.used_blocks += 1
        block.users += 1

    def _claim(self, size_bytes: int, blocks: int) -> None:
        """Take room that is there once enough cached blocks have gone."""
        self.used_bytes += size_bytes
        self.used_blocks += blocks
        while self.used_bytes + self.cached_bytes > self.capacity_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        (name, number), block = self._cached.popitem(last=False)
        self.cached_bytes -= block.size_bytes
        block.key = None
        found = self._found[name]
        del found[number]
        if not found:
            del self._found[name]
