"""One proxied connection: two sockets, and one link for each direction between them.

When a link ends, its destination is closed in both directions after all passed data has been written. The destination
is the source of the other link, which therefore ends too. Half-close is not preserved, and a peer's reset arrives at
the other side as an ordinary end (Toxiproxy 2.12 behaviour).
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Iterable
from random import Random

from harness.toxiproxy.address import split_address
from harness.toxiproxy.chain import Chain
from harness.toxiproxy.connection_log import CloseCause, ConnectionEntry
from harness.toxiproxy.stage import DOWNSTREAM, UPSTREAM, Chunk, Toxic

RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 seconds


class Endpoint(asyncio.Protocol):
    """One socket of a connection: the source of `link_from` and the destination of `link_to`."""

    def __init__(self, connection: ProxiedConnection, cause: CloseCause) -> None:
        self._connection = connection
        self.cause = cause
        self.link_from: ProxyLink
        self.link_to: ProxyLink
        self.transport: asyncio.Transport | None = None
        self.lost = False
        self._closing_when_written = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.pause_reading()  # until the other side is connected: there is no destination for the data yet
        self._connection.endpoint_connected()

    def data_received(self, data: bytes) -> None:
        self.link_from.receive(data)

    def eof_received(self) -> bool:
        self.link_from.source_ended(self.cause)
        return True  # the chain closes it

    def pause_writing(self) -> None:
        self.link_to.set_blocked(True)

    def resume_writing(self) -> None:
        if self._closing_when_written:
            self._schedule_close()
        else:
            self.link_to.set_blocked(False)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        if not self.link_to.ended:  # not closed by us: its peer reset it
            self._connection.record_cause(self.cause)
            self.link_to.destination_lost()
        self.link_from.source_ended(self.cause)
        self._connection.endpoint_lost()

    def close_when_written(self) -> None:
        """Close both directions once all written data has reached the kernel."""
        if self.transport is None or self.lost:
            return
        self._closing_when_written = True
        self.transport.set_write_buffer_limits(high=0)  # resume_writing now comes at an empty buffer
        if self.transport.get_write_buffer_size() == 0:
            self._schedule_close()

    def _schedule_close(self) -> None:
        # Deferred: this may run inside resume_writing, where closing a transport reports its loss twice.
        if self.transport is not None:
            asyncio.get_running_loop().call_soon(self.transport.close)


class ProxyLink:
    """One direction of a connection, and the sink of its chain (see `Outlet`)."""

    def __init__(self, connection: ProxiedConnection, direction: str, source: Endpoint, destination: Endpoint) -> None:
        self._connection = connection
        self._source = source
        self._destination = destination
        source.link_from = destination.link_to = self
        self.chain = Chain((), self, connection.random, 0.0)
        self._entry = connection.entry
        self._direction = direction
        self.received_bytes = 0
        self.lost_data = False
        self.ended = False
        self._source_has_ended = False
        self._blocked = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, toxics: Iterable[Toxic], now_s: float) -> None:
        """Both sockets are connected: install the toxics and start reading."""
        self.chain = Chain(toxics, self, self._connection.random, now_s)
        self.pump(now_s)

    # From the source.

    def receive(self, data: bytes) -> None:
        """Data was read from the source."""
        self.received_bytes += len(data)
        if not self.chain.stages:
            self._write(data)  # the fast path: nothing to decide
            return
        now_s = time.monotonic()
        self.chain.feed(data, now_s)
        self.pump(now_s)

    def source_ended(self, cause: CloseCause) -> None:
        """The source has ended or disconnected."""
        if not self._source_has_ended:
            self._source_has_ended = True
            self.chain.end(cause)
            self.pump(time.monotonic())

    # The chain's sink.

    def has_room(self) -> bool:
        """See `Outlet.has_room`."""
        return not self._blocked and not self.ended

    def put(self, chunk: Chunk) -> None:
        """See `Outlet.put`."""
        self._write(chunk.data)

    def end(self, cause: CloseCause) -> None:
        """See `Outlet.end`: close the destination."""
        if not self.ended:
            self.ended = True
            self._connection.record_cause(cause)
            self._destination.close_when_written()

    def _write(self, data: bytes) -> None:
        transport = self._destination.transport
        if self.ended or transport is None or transport.is_closing():  # closing: a write just failed
            return
        self._entry.passed_bytes[self._direction] += len(data)
        transport.write(data)
        if transport.is_closing():
            self.lost_data = True

    def destination_lost(self) -> None:
        """The destination disconnected: no more data can be passed on, and the source is not read."""
        self.ended = True
        self.lost_data = self.lost_data or self._blocked
        self.pump(time.monotonic())

    def set_blocked(self, blocked: bool) -> None:
        """Writing to the destination is paused or resumed."""
        self._blocked = blocked
        self.pump(time.monotonic())

    # Both.

    def pump(self, now_s: float) -> None:
        """Move data, schedule the next run, and read from the source only while there is room."""
        if self._connection.finished:
            return
        wake_s = self.chain.run(now_s)
        if wake_s is not None:
            self._schedule_run(wake_s)
        source = self._source.transport
        if source is not None and not self._source_has_ended:
            if self.chain.entrance.has_room():
                source.resume_reading()
            else:
                source.pause_reading()

    def stop_timer(self) -> None:
        """Stop this link."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule_run(self, wake_s: float) -> None:
        # A timer that fires early is set again: cheaper than one timer per chunk.
        if self._timer is None or wake_s < self._timer.when():
            self.stop_timer()
            self._timer = asyncio.get_running_loop().call_at(wake_s, self._run_scheduled)

    def _run_scheduled(self) -> None:
        self._timer = None
        self.pump(time.monotonic())


class ProxiedConnection:
    """One accepted client and its upstream.

    Args:
        entry: its entry in the connection log, which it updates.
        random: draws toxicities, jitter and slices.
        toxics: called when both sides are connected; returns the current toxics of one direction.
        on_finished: called once, when both sockets are closed.
    """

    def __init__(
        self,
        entry: ConnectionEntry,
        random: Random,
        toxics: Callable[[str], list[Toxic]],
        on_finished: Callable[[ProxiedConnection], None],
    ) -> None:
        self.entry = entry
        self.random = random
        self._toxics = toxics
        self._on_finished = on_finished
        self._client = Endpoint(self, CloseCause.CLIENT)
        self._server = Endpoint(self, CloseCause.UPSTREAM)
        self.links = {
            UPSTREAM: ProxyLink(self, UPSTREAM, self._client, self._server),
            DOWNSTREAM: ProxyLink(self, DOWNSTREAM, self._server, self._client),
        }
        self.started = False
        self.finished = False

    async def open(self, client: socket.socket, upstream: str) -> None:
        """Dial the upstream without a time limit, then start. Client data is not read before."""
        loop = asyncio.get_running_loop()
        try:
            host, port = split_address(upstream)
            await loop.create_connection(lambda: self._server, host or "localhost", int(port))
            await loop.connect_accepted_socket(lambda: self._client, client)
        except (OSError, ValueError, OverflowError):
            self.record_cause(CloseCause.DIAL_FAILED)

    def dial_finished(self, client: socket.socket) -> None:
        """Handle the end of the dial. If it failed or was cancelled, the client is closed.

        The client then sees an end, or a reset if it had sent data (Toxiproxy 2.12 behaviour).
        """
        if not self.started:
            client.close()
            self.drop(CloseCause.DIAL_FAILED)

    def endpoint_connected(self) -> None:
        """One side is connected; data flows once both are."""
        client, server = self._client.transport, self._server.transport
        if client is None or server is None:
            return
        self.started = True
        toxics = {direction: self._toxics(direction) for direction in self.links}
        for transport in (client, server):
            peer = transport.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if any(toxic.type == "reset_peer" for in_direction in toxics.values() for toxic in in_direction):
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        now_s = time.monotonic()
        for direction, link in self.links.items():
            link.start(toxics[direction], now_s)

    def record_cause(self, cause: CloseCause) -> None:
        """Record why the connection ends; only the first cause counts."""
        if self.entry.ended is None:
            self.entry.ended = cause

    def drop(self, cause: CloseCause) -> None:
        """Close both sockets now; buffered data is lost."""
        self.record_cause(cause)
        endpoints = (self._client, self._server)
        for endpoint in endpoints:
            endpoint.link_to.ended = True
            if endpoint.transport is not None:
                endpoint.transport.abort()
        self.endpoint_lost()

    def endpoint_lost(self) -> None:
        """A socket is closed; the connection is finished once both are."""
        still_open = any(
            endpoint.transport is not None and not endpoint.lost for endpoint in (self._client, self._server)
        )
        if self.finished or still_open:
            return
        self.finished = True
        self.entry.closed_s = time.monotonic()
        for link in self.links.values():
            link.stop_timer()
        self._on_finished(self)
