"""Consistent hash ring with virtual nodes.

The mapping depends on the set of members alone, never on their order or on what happened before, so that balancers
with the same members agree and a member that returns gets exactly its own keys back. Points that collide are ordered
by member, so that no member loses a point to another (seen broken: stathat/consistent#5).
Source: Karger et al. 1997; xxh64 as the hash.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable

import xxhash


class HashRing:
    """A ring of `virtual_nodes` points for each member."""

    def __init__(self, virtual_nodes: int = 150) -> None:
        if virtual_nodes < 1:
            raise ValueError(f"virtual_nodes {virtual_nodes}: expected 1 or more")
        self._virtual_nodes = virtual_nodes
        self._members: frozenset[str] = frozenset()
        self._points: list[int] = []
        self._owners: list[str] = []

    @property
    def members(self) -> frozenset[str]:
        """The members now."""
        return self._members

    def set_members(self, members: Iterable[str]) -> None:
        """Make `members` the members of the ring."""
        wanted = frozenset(members)
        if wanted == self._members:
            return
        self._members = wanted
        pairs = sorted(
            (xxhash.xxh64_intdigest(f"{member}#{number}".encode()), member)
            for member in wanted
            for number in range(self._virtual_nodes)
        )
        self._points = [point for point, _ in pairs]
        self._owners = [member for _, member in pairs]

    def owner(self, key: str, eligible: Callable[[str], bool] | None = None) -> str | None:
        """The first eligible member at or after the key's place on the ring; None if there is none."""
        for member in self.nearest(key, len(self._members)):
            if eligible is None or eligible(member):
                return member
        return None

    def nearest(self, key: str, count: int) -> Iterable[str]:
        """Up to `count` distinct members in ring order from the key's place on."""
        if not self._points or count < 1:
            return
        seen: set[str] = set()
        start = bisect_left(self._points, xxhash.xxh64_intdigest(key.encode()))
        total = len(self._owners)
        for step in range(total):
            member = self._owners[(start + step) % total]
            if member in seen:
                continue
            seen.add(member)
            yield member
            if len(seen) >= count:
                return
