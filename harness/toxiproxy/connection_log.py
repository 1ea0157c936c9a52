"""Log of all proxied connections: an extension of Toxiproxy's API.

Toxiproxy does not report connections. A test needs to know when a balancer connected to a backend, how many bytes
passed, and which side closed, even if the backend never saw the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

MAX_ENTRIES = 100_000


class CloseCause(StrEnum):
    """Why a connection ended: the first cause that closed one of its two sockets."""

    CLIENT = "client"  # closed or reset by the client
    UPSTREAM = "upstream"  # closed or reset by the backend
    DISABLED = "disabled"  # its proxy was disabled, deleted, replaced or moved to another address
    TOXIC = "toxic"  # closed by timeout or limit_data, or by removal of a timeout toxic
    RESET = "reset"  # closed by a reset_peer toxic
    DIAL_FAILED = "dial_failed"  # the upstream could not be reached


@dataclass(slots=True)
class ConnectionEntry:
    """One proxied connection. Times are seconds on CLOCK_MONOTONIC; `closed_s` is None while it is open.

    `passed_bytes` counts bytes passed on, by direction (`upstream`, `downstream`); dropped data does not count.
    """

    proxy: str
    opened_s: float
    closed_s: float | None = None
    passed_bytes: dict[str, int] = field(default_factory=lambda: {"upstream": 0, "downstream": 0})
    ended: CloseCause | None = None


class ConnectionLog:
    """The connections of all proxies, oldest first, bounded in number.

    Args:
        max_entries: maximum number of entries; `forgotten` counts the older ones that were removed.
    """

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._entries: deque[ConnectionEntry] = deque(maxlen=max_entries)
        self.forgotten = 0

    def open(self, proxy: str, opened_s: float) -> ConnectionEntry:
        """Start an entry for a connection accepted at `opened_s`; the caller updates it."""
        if len(self._entries) == self._entries.maxlen:
            self.forgotten += 1
        entry = ConnectionEntry(proxy, opened_s)
        self._entries.append(entry)
        return entry

    def entries(self, proxy: str | None = None) -> Iterator[ConnectionEntry]:
        """The entries kept, oldest first, of one proxy or of all."""
        return (entry for entry in self._entries if proxy is None or entry.proxy == proxy)

    def clear(self) -> None:
        """Remove the connections that have ended; open ones stay."""
        still_open = [entry for entry in self._entries if entry.closed_s is None]
        self._entries.clear()
        self._entries.extend(still_open)
        self.forgotten = 0
