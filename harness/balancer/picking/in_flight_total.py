"""A group of backends with the incrementally maintained total of their requests in flight."""

from __future__ import annotations


class InFlightTotal:
    """The backends of a group and their requests in flight. Every operation is O(1)."""

    __slots__ = ("backends", "total")

    def __init__(self) -> None:
        self.backends: set[str] = set()
        self.total = 0
        """Requests in flight at all backends of the group."""

    def __len__(self) -> int:
        return len(self.backends)

    def put(self, backend: str, in_flight: int) -> bool:
        """Add `backend`, which has `in_flight` requests, to the group. False if it was a member already."""
        if backend in self.backends:
            return False
        self.backends.add(backend)
        self.total += in_flight
        return True

    def drop(self, backend: str, in_flight: int) -> bool:
        """Remove `backend`, which has `in_flight` requests, from the group. False if it was no member."""
        if backend not in self.backends:
            return False
        self.backends.remove(backend)
        self.total -= in_flight
        return True

    def count(self, backend: str, change: int) -> None:
        """Add `change` (may be negative) to the requests in flight at `backend`, if it is in the group."""
        if backend in self.backends:
            self.total += change
