"""Consistent hash ring with virtual nodes.

The mapping depends only on the members and their weights, not on their order or on history, so balancers with the same
members agree and a returning member gets exactly its own keys back. Colliding points are ordered by member, so no
member loses a point to another (seen broken: stathat/consistent#5). A weight determines the number of a member's
points; the points of a smaller weight are a subset of those of a larger one, so a change of weight moves only that
member's own keys (seen broken: envoyproxy/envoy#22558, grpc/grpc-go#6927). Source: Karger et al. 1997; xxh64 as the
hash.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import xxhash
from numpy.typing import NDArray


class HashRing:
    """A ring of `virtual_nodes` points for each member of weight 1."""

    def __init__(self, virtual_nodes: int = 150) -> None:
        if virtual_nodes < 1:
            raise ValueError(f"virtual_nodes {virtual_nodes}: expected 1 or more")
        self._virtual_nodes = virtual_nodes
        self._weights: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._members: frozenset[str] = frozenset()
        self._names: tuple[str, ...] = ()
        self._own_points: dict[str, NDArray[np.uint64]] = {}
        """Each member's points in the order of their numbers; at least as many as its weight requires."""
        self._point_array = np.empty(0, dtype=np.uint64)
        self._index_array = np.empty(0, dtype=np.intp)
        self._points = array("Q")
        self._owners: list[str] = []
        """The owner of each point, then again that of the first point, which owns the keys after the last point."""
        self._owner_count = 0

    @property
    def members(self) -> frozenset[str]:
        """The current members, including those of weight 0."""
        return self._members

    def set_members(self, members: Iterable[str]) -> None:
        """Replace the members of the ring; each has weight 1."""
        self.set_weights(dict.fromkeys(members, 1.0))

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Replace the members by the keys of `weights`, each with round(virtual_nodes * weight) points.

        A member without a point owns nothing. ValueError for a weight that is negative or not finite.
        """
        for member, weight in weights.items():
            if not (math.isfinite(weight) and weight >= 0):
                raise ValueError(f"weight {weight} of {member}: expected 0 or more")
        if weights == self._weights:
            return
        counts = {member: round(self._virtual_nodes * weight) for member, weight in weights.items()}
        self._own_points = {member: self._points_of(member, count) for member, count in counts.items()}
        self._sort_points(counts)
        self._weights = dict(weights)
        self._counts = counts
        self._members = frozenset(weights)

    def owner(self, key: str, eligible: Callable[[str], bool] | None = None) -> str | None:
        """The first eligible member at or after the key's position on the ring; None if there is none."""
        if not self._points:
            return None
        first = self._owners[bisect_left(self._points, xxhash.xxh64_intdigest(key.encode()))]
        if eligible is None or eligible(first):
            return first
        for member in self.nearest(key, self._owner_count):
            if member != first and eligible(member):
                return member
        return None

    def nearest(self, key: str, count: int) -> Iterator[str]:
        """Up to `count` distinct members in ring order from the key's position on."""
        if not self._points or count < 1:
            return
        limit = min(count, self._owner_count)
        start = bisect_left(self._points, xxhash.xxh64_intdigest(key.encode()))
        first = self._owners[start]
        yield first  # most callers need only one
        yielded = {first}
        for position in chain(range(start + 1, len(self._points)), range(start)):
            if len(yielded) == limit:
                return
            member = self._owners[position]
            if member not in yielded:
                yielded.add(member)
                yield member

    def owners(self, keys: Sequence[str]) -> tuple[NDArray[np.intp], tuple[str, ...]]:
        """Owners of many keys: an index for each key, shape (len(keys),), into the returned names.

        Every index is -1 if no member has a point.
        """
        if not self._points:
            return np.full(len(keys), -1, dtype=np.intp), self._names
        positions = np.searchsorted(self._point_array, _digests([key.encode() for key in keys]))
        positions[positions == len(self._points)] = 0
        return self._index_array[positions], self._names

    def _points_of(self, member: str, count: int) -> NDArray[np.uint64]:
        known = self._own_points.get(member, self._point_array[:0])
        if len(known) >= count:
            return known
        missing = _digests([f"{member}#{number}".encode() for number in range(len(known), count)])
        return np.concatenate([known, missing])

    def _sort_points(self, counts: Mapping[str, int]) -> None:
        """Sort all points. Points of members whose number of points is unchanged are sorted already.

        That makes the sort cheap, as a stable merge sort exploits existing order.
        """
        names = tuple(sorted(counts))
        positions = {name: position for position, name in enumerate(names)}
        kept_positions = [positions[name] if counts.get(name) == self._counts[name] else -1 for name in self._names]
        index_now = np.array([*kept_positions, -1], dtype=np.intp)[self._index_array]
        changed = [name for name in names if counts[name] != self._counts.get(name)]
        added = [self._own_points[name][: counts[name]] for name in changed]
        added_index = np.array([positions[name] for name in changed], dtype=np.intp)
        points = np.concatenate([self._point_array[index_now >= 0], *added])
        indices = np.concatenate([index_now[index_now >= 0], added_index.repeat([len(piece) for piece in added])])
        order = np.argsort(points, kind="stable")
        if (np.diff(points[order]) == 0).any():
            order = np.lexsort((indices, points))  # order colliding points by their members' names
        self._names = names
        self._point_array = points[order]
        self._index_array = indices[order]
        self._points = array("Q", self._point_array.tobytes())
        self._owners = np.array([*names, ""], dtype=object)[self._index_array].tolist()
        self._owners += self._owners[:1]
        self._owner_count = sum(1 for count in counts.values() if count)


def _digests(texts: list[bytes]) -> NDArray[np.uint64]:
    digest = xxhash.xxh64_intdigest
    return np.fromiter((digest(text) for text in texts), dtype=np.uint64, count=len(texts))
