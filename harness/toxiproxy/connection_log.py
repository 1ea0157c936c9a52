"""What the fault proxy saw of every connection: an extension of Toxiproxy's API.

Toxiproxy itself tells nothing about connections. A tester needs to know when a balancer connected to a
backend, how much passed, and who ended it, also where the backend never saw the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

CONNECTIONS_KEPT = 100_000


class CloseCause(StrEnum):
    """Why a connection ended: the first cause that closed one of its two sockets."""

    CLIENT = "client"  # the client closed it or broke it off
    UPSTREAM = "upstream"  # the backend closed it or broke it off
    DISABLED = "disabled"  # its proxy was disabled, deleted, replaced or given another address
    TOXIC = "toxic"  # timeout or limit_data cut it, or a timeout toxic was removed
    RESET = "reset"  # a reset_peer toxic cut it
    DIAL_FAILED = "dial_failed"  # no connection to the upstream could be made


@dataclass(slots=True)
class ConnectionEntry:
    """One proxied connection. Times are seconds on CLOCK_MONOTONIC; `closed_s` is None while it lives.

    `passed_bytes` counts what the proxy passed on, by direction (`upstream`, `downstream`); data that a toxic
    dropped does not count.
    """

    proxy: str
    opened_s: float
    closed_s: float | None = None
    passed_bytes: dict[str, int] = field(default_factory=lambda: {"upstream": 0, "downstream": 0})
    ended: CloseCause | None = None


class ConnectionLog:
    """The connections of all proxies, oldest first, bounded in number.

    Args:
        kept: how many entries are kept; older ones are forgotten, and `forgotten` counts them.
    """

    def __init__(self, kept: int = CONNECTIONS_KEPT) -> None:
        self._entries: deque[ConnectionEntry] = deque(maxlen=kept)
        self.forgotten = 0

    def open(self, proxy: str, opened_s: float) -> ConnectionEntry:
        """Start an entry for a connection accepted at `opened_s`; the caller fills it in as it goes."""
        if len(self._entries) == self._entries.maxlen:
            self.forgotten += 1
        entry = ConnectionEntry(proxy, opened_s)
        self._entries.append(entry)
        return entry

    def entries(self, proxy: str | None = None) -> Iterator[ConnectionEntry]:
        """The entries kept, oldest first, of one proxy or of all."""
        return (entry for entry in self._entries if proxy is None or entry.proxy == proxy)

    def clear(self) -> None:
        """Forget the connections that have ended; those still open stay, since they have yet to end."""
        still_open = [entry for entry in self._entries if entry.closed_s is None]
        self._entries.clear()
        self._entries.extend(still_open)
        self.forgotten = 0
