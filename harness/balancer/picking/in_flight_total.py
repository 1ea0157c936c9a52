"""A group of backends with what they have in flight together: kept up to date, never summed anew."""

from __future__ import annotations


class InFlightTotal:
    """Backends of a group and the requests in flight at them. Every operation is O(1)."""

    __slots__ = ("backends", "total")

    def __init__(self) -> None:
        self.backends: set[str] = set()
        self.total = 0
        """Requests in flight at all of the group."""

    def __len__(self) -> int:
        return len(self.backends)

    def put(self, backend: str, in_flight: int) -> bool:
        """`backend`, with `in_flight` requests, is one of the group; whether that is new."""
        if backend in self.backends:
            return False
        self.backends.add(backend)
        self.total += in_flight
        return True

    def drop(self, backend: str, in_flight: int) -> bool:
        """`backend`, with `in_flight` requests, is none of the group; whether that is new."""
        if backend not in self.backends:
            return False
        self.backends.remove(backend)
        self.total -= in_flight
        return True

    def count(self, backend: str, change: int) -> None:
        """There are so many more (or, below 0, fewer) requests in flight at `backend`, if that is one of the group."""
        if backend in self.backends:
            self.total += change
