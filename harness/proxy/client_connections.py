"""Client connections of a live balancer: accepting them, limiting their age and requests, and closing them.

A connection is closed only between answers: when its age or number of requests reaches the limit, the next answer
carries `Connection: close`, is sent completely, and the connection is closed. On shutdown idle connections are closed
at once, the others after the answers to all requests that were read on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader

LARGEST_BODY = 64 * 2**20
IDLE_S = 3600.0
"""How long idle client connections are kept. Closing one as its client reuses it would lose the request."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Age and number of requests after which a client's connection gets its last answer; None: unlimited.

    ValueError unless above 0.
    """

    age_s: float | None = None
    requests: int | None = None

    def __post_init__(self) -> None:
        if self.age_s is not None and not self.age_s > 0:
            raise ValueError(f"age_s {self.age_s}: expected above 0")
        if self.requests is not None and self.requests < 1:
            raise ValueError(f"requests {self.requests}: expected 1 or more")


@dataclass(slots=True, eq=False)
class ClientConnection:
    """A client's connection; `number` identifies it to the gateway.

    `busy`: a request's head was read and is not answered yet. `body_pending`: its body is incomplete, too.
    """

    number: int
    protocol: web.RequestHandler
    transport: asyncio.Transport
    until_s: float | None
    requests_left: int | None
    closing: bool = False
    busy: bool = False
    body_pending: bool = False

    def mark(self, answer: web.StreamResponse, now_s: float) -> None:
        """Add `Connection: close` to `answer` if it is the connection's last; call before its head is sent."""
        if self.closing:
            last = not self.pipelined
        else:
            used_up = self.requests_left is not None and self.requests_left <= 0
            last = used_up or (self.until_s is not None and now_s >= self.until_s)
        if last:
            answer.force_close()

    @property
    def pipelined(self) -> bool:
        """Whether further requests were read behind the current one."""
        return bool(self.protocol._messages)  # there is no public accessor


AnswerFunction = Callable[[web.BaseRequest, bytes, ClientConnection], Awaitable[web.StreamResponse]]


class ClientConnections(web.Server):
    """aiohttp's server with limits on connections. Calls `answer` when a request's head and body are complete.

    `answer` gets the request, its body and its connection, and returns an answer, prepared or not.
    """

    def __init__(self, answer: AnswerFunction, limits: ConnectionLimits | None = None) -> None:
        super().__init__(
            self._serve,
            request_factory=self._request,
            handler_cancellation=True,
            keepalive_timeout=IDLE_S,
            access_log=None,
            auto_decompress=False,  # bodies pass unchanged
        )
        self._answer = answer
        self._limits = limits or ConnectionLimits()
        self._clients: dict[web.RequestHandler, ClientConnection] = {}
        self._next_number = 0
        self._closing = False
        self._changed = asyncio.Event()

    @property
    def open_connections(self) -> int:
        """Number of open client connections."""
        return len(self._clients)

    # --- connections --------------------------------------------------------------------------------------

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Register a new client connection."""
        super().connection_made(handler, transport)
        self._next_number += 1
        age_s = self._limits.age_s
        until_s = None if age_s is None else asyncio.get_running_loop().time() + age_s
        requests_left = self._limits.requests
        connection = ClientConnection(self._next_number, handler, transport, until_s, requests_left, self._closing)
        self._clients[handler] = connection

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Remove a connection that either side has closed; all data written to it has been sent."""
        super().connection_lost(handler, exc)
        self._clients.pop(handler, None)
        self._changed.set()

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        connection = self._clients.get(protocol)
        if connection is not None:  # set here, as the handler's task starts one loop iteration later
            connection.busy = connection.body_pending = True
        return web.BaseRequest(message, payload, protocol, writer, task, self._loop, client_max_size=LARGEST_BODY)

    # --- requests -----------------------------------------------------------------------------------------

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = self._clients.get(request.protocol)
        if connection is None:  # closed before its request was handled
            raise asyncio.CancelledError
        if connection.requests_left is not None:
            connection.requests_left -= 1
        try:
            body = await _read_body(request)
            connection.body_pending = False
            self._changed.set()
            answer = await self._answer(request, body, connection)
            # A sent head may have promised keep-alive; only a shutdown breaks that.
            if connection.closing or not answer.prepared:
                connection.mark(answer, self._loop.time())
            # Written here, not by the library afterwards, so that a connection without `busy` has no unsent answer.
            with suppress(OSError):  # the client left; the library detects and reports it
                await answer.prepare(request)
                await answer.write_eof()
        finally:
            connection.busy = connection.body_pending = False
            self._changed.set()
        return answer

    # --- shutdown ------------------------------------------------------------------------------------------

    async def close_idle(self) -> None:
        """Close idle connections now, and mark all others to close after the answers to the requests read on them."""
        self._closing = True
        for _ in range(2):  # data that has already arrived is read first
            await asyncio.sleep(0)
        for connection in list(self._clients.values()):
            connection.closing = True
            if not connection.busy and not connection.pipelined:
                connection.protocol.force_close()

    async def all_requests_read(self) -> None:
        """Return when every request whose head was read is complete."""
        await self._until(lambda: not any(item.body_pending or item.pipelined for item in self._clients.values()))

    async def all_closed(self) -> None:
        """Close the connections that are not busy. Return when all are closed and all written data is sent."""
        for connection in list(self._clients.values()):
            if not connection.busy:
                connection.protocol.force_close()
        await self._until(lambda: not self._clients)

    def abort_all(self) -> int:
        """Abort all open connections. Returns how many of them had an unanswered request."""
        connections = list(self._clients.values())
        for connection in connections:
            connection.transport.abort()
        return sum(connection.busy for connection in connections)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


async def _read_body(request: web.BaseRequest) -> bytes:
    if request.headers.get("expect", "").lower() == "100-continue":
        writer: Any = request.writer
        await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.output_size = 0
    return await request.read()
