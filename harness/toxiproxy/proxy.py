"""One proxy: a listening socket, the connections through it, and its toxics.

All changes are synchronous and never wait for a peer. After a change that closes connections, `settled` waits until
their sockets are closed.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from functools import partial
from random import Random

from harness.toxiproxy.address import bound_address, listen_on
from harness.toxiproxy.chain import Chain
from harness.toxiproxy.connection import ProxiedConnection
from harness.toxiproxy.connection_log import CloseCause, ConnectionLog
from harness.toxiproxy.metrics import LinkLabels, Traffic
from harness.toxiproxy.stage import UPSTREAM, Toxic

MAX_ACCEPTS_PER_EVENT = 64
ACCEPT_RETRY_S = 0.1


class Proxy:
    """Forwards connections from `listen` to `upstream` while it is enabled.

    Args:
        name: its name in the API.
        listen: address text as given; the numeric address once started.
        upstream: address text; looked up at each connection, never before.
        log: records its connections.
        traffic: counts its bytes.
        random: draws toxicities, jitter and slices.
    """

    def __init__(
        self, name: str, listen: str, upstream: str, log: ConnectionLog, traffic: Traffic, random: Random
    ) -> None:
        self.name = name
        self.listen = listen
        self.upstream = upstream
        self.toxics: dict[str, Toxic] = {}
        self._log = log
        self._traffic = traffic
        self._random = random
        self._listener: socket.socket | None = None
        # Dictionaries, not sets: a change reaches connections in the order they were opened, so a seed
        # repeats its draws.
        self._connections: dict[ProxiedConnection, asyncio.Task[None]] = {}
        self._closing: set[ProxiedConnection] = set()
        self._all_closed = asyncio.Event()

    @property
    def enabled(self) -> bool:
        """Whether it listens."""
        return self._listener is not None

    def start(self, address: str) -> None:
        """Listen on a resolved address; nothing happens if it listens already.

        Raises:
            ListenError: listening failed; the proxy stays disabled.
        """
        if self._listener is not None:
            return
        self._listener = listen_on(address)
        self.listen = bound_address(self._listener)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def stop(self) -> None:
        """Stop listening (the port is free at once) and drop every connection."""
        if self._listener is None:
            return
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        self._listener = None
        dropped, self._connections = self._connections, {}
        self._closing.update(dropped)
        for connection, dial in dropped.items():
            if connection.started:
                connection.drop(CloseCause.DISABLED)
            else:
                connection.record_cause(CloseCause.DISABLED)
                dial.cancel()

    async def settled(self) -> None:
        """Return when the sockets of the connections that `stop` dropped are closed."""
        if self._closing:
            self._all_closed.clear()
            await self._all_closed.wait()

    # Connections.

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTS_PER_EVENT):
            if self._listener is None:
                return
            try:
                client, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # most likely out of descriptors
                self._pause_accepting(self._listener)
                return
            client.setblocking(False)
            self._open_connection(client)

    def _pause_accepting(self, listener: socket.socket) -> None:
        """Pause accepting: the listener stays readable and would busy-loop."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)

        def resume() -> None:
            if self._listener is listener:
                loop.add_reader(listener, self._accept)

        loop.call_later(ACCEPT_RETRY_S, resume)

    def _open_connection(self, client: socket.socket) -> None:
        entry = self._log.open(self.name, time.monotonic())
        # Copy the addresses: an update changes them before the dropped connections have ended.
        on_finished = partial(self._connection_finished, self.listen, self.upstream)
        connection = ProxiedConnection(entry, self._random, self.toxics_of, on_finished)
        # Each dial is a task of its own: a hanging one delays neither other connections nor a stop.
        dial = asyncio.create_task(connection.open(client, self.upstream))
        # Not a `finally` in the task: a task cancelled before its first step never reaches it.
        dial.add_done_callback(lambda _: connection.dial_finished(client))
        self._connections[connection] = dial

    def _connection_finished(self, listen: str, upstream: str, connection: ProxiedConnection) -> None:
        if connection.started:
            for direction, link in connection.links.items():
                labels = LinkLabels(direction, listen, self.name, upstream)
                sent_bytes = None if link.lost_data else connection.entry.passed_bytes[direction]
                self._traffic.link_ended(labels, link.received_bytes, sent_bytes)
        self._connections.pop(connection, None)
        self._closing.discard(connection)
        if not self._closing:
            self._all_closed.set()

    # Toxics.

    def toxics_of(self, direction: str) -> list[Toxic]:
        """The toxics of one direction, nearest the source first."""
        return [toxic for toxic in self.toxics.values() if toxic.direction == direction]

    def listed_toxics(self) -> list[Toxic]:
        """All toxics as the API lists them: upstream first, then downstream, oldest first."""
        return sorted(self.toxics.values(), key=lambda toxic: toxic.direction != UPSTREAM)

    def add_toxic(self, toxic: Toxic) -> None:
        """Add a toxic; it is in force on open connections on return."""
        self.toxics[toxic.name] = toxic
        self._update_open_connections(toxic, Chain.append)

    def toxic_updated(self, toxic: Toxic) -> None:
        """Apply changed values of a toxic to open connections."""
        self._update_open_connections(toxic, Chain.update)

    def remove_toxic(self, toxic: Toxic) -> None:
        """Remove a toxic; it is gone from open connections on return."""
        del self.toxics[toxic.name]
        self._update_open_connections(toxic, Chain.remove)

    def _update_open_connections(self, toxic: Toxic, change: Callable[[Chain, Toxic, float], None]) -> None:
        now_s = time.monotonic()
        for connection in list(self._connections):
            if connection.started:  # the others install the current toxics when they start
                link = connection.links[toxic.direction]
                change(link.chain, toxic, now_s)
                link.pump(now_s)
