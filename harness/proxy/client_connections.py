"""The side of a live balancer that clients see: their connections, how long those may last, and how they end.

A connection is closed only between answers: when it has had its time or its number of requests, the answer says
`Connection: close`, goes out whole, and the connection ends. On a shutdown idle ones end at once, and the others after
the answers to all that was read on them.
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
"""Idle client connections are kept this long: closing one just as it is used again would lose its request."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """After which age and number of requests a client's connection gets its last answer; None: never.

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
    """A client's connection; `number` tells a gateway which.

    `busy`: a request's head was read, and it is not answered yet. `unheard`: nor is its body wholly here.
    """

    number: int
    protocol: web.RequestHandler
    transport: asyncio.Transport
    until_s: float | None
    requests_left: int | None
    leaving: bool = False
    busy: bool = False
    unheard: bool = False

    def mark(self, answer: web.StreamResponse, now_s: float) -> None:
        """Make `answer` say that it is the connection's last one, if it is; to be called before its head is out."""
        if self.leaving:
            last = not self.pipelined
        else:
            used_up = self.requests_left is not None and self.requests_left <= 0
            last = used_up or (self.until_s is not None and now_s >= self.until_s)
        if last:
            answer.force_close()

    @property
    def pipelined(self) -> bool:
        """Whether more requests were read behind the one that is being answered."""
        return bool(self.protocol._messages)  # no public name tells


Answering = Callable[[web.BaseRequest, bytes, ClientConnection], Awaitable[web.StreamResponse]]


class ClientConnections(web.Server):
    """aiohttp's server with connections that know their age; `answer` is asked once a request is here, head and body.

    It gets the request, its body and its connection, and returns an answer that it has prepared or not.
    """

    def __init__(self, answer: Answering, limits: ConnectionLimits | None = None) -> None:
        super().__init__(
            self._serve,
            request_factory=self._request,
            handler_cancellation=True,
            keepalive_timeout=IDLE_S,
            access_log=None,
            auto_decompress=False,  # bodies pass as they are
        )
        self._answer = answer
        self._limits = limits or ConnectionLimits()
        self._clients: dict[web.RequestHandler, ClientConnection] = {}
        self._next_number = 0
        self._leaving = False
        self._changed = asyncio.Event()

    @property
    def open_connections(self) -> int:
        """Client connections that are open now."""
        return len(self._clients)

    # --- connections --------------------------------------------------------------------------------------

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """A client has connected."""
        super().connection_made(handler, transport)
        self._next_number += 1
        age_s = self._limits.age_s
        until_s = None if age_s is None else asyncio.get_running_loop().time() + age_s
        made = ClientConnection(self._next_number, handler, transport, until_s, self._limits.requests, self._leaving)
        self._clients[handler] = made

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """A client's connection has ended, from either side; everything that was written to it is out."""
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
        if connection is not None:  # from here on, as the handler's task begins a turn of the loop later
            connection.busy = connection.unheard = True
        return web.BaseRequest(message, payload, protocol, writer, task, self._loop, client_max_size=LARGEST_BODY)

    # --- requests -----------------------------------------------------------------------------------------

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = self._clients.get(request.protocol)
        if connection is None:  # it left before its request was looked at
            raise asyncio.CancelledError
        if connection.requests_left is not None:
            connection.requests_left -= 1
        try:
            body = await _body(request)
            connection.unheard = False
            self._changed.set()
            answer = await self._answer(request, body, connection)
            # An answer whose head is out already may promise to keep the connection; only a shutdown breaks that.
            if connection.leaving or not answer.prepared:
                connection.mark(answer, self._loop.time())
            # Written here and not by the library afterwards, so that a connection that is not busy has no answer to go.
            with suppress(OSError):  # the client left; the library looks again and says so
                await answer.prepare(request)
                await answer.write_eof()
        finally:
            connection.busy = connection.unheard = False
            self._changed.set()
        return answer

    # --- the end ------------------------------------------------------------------------------------------

    async def leave_idle(self) -> None:
        """Close the connections on which nothing was read, and all others after the answers to what was read."""
        self._leaving = True
        for _ in range(2):  # what has arrived by now is read first
            await asyncio.sleep(0)
        for connection in list(self._clients.values()):
            connection.leaving = True
            if not connection.busy and not connection.pipelined:
                connection.protocol.force_close()

    async def all_heard(self) -> None:
        """Return when every request whose head was read is wholly here."""
        await self._until(lambda: not any(item.unheard or item.pipelined for item in self._clients.values()))

    async def all_gone(self) -> None:
        """Return when every connection has ended, with all that was written to it."""
        for connection in list(self._clients.values()):
            if not connection.busy:
                connection.protocol.force_close()
        await self._until(lambda: not self._clients)

    def cut(self) -> int:
        """Cut what is still open, and how many of those were waiting for an answer."""
        left = list(self._clients.values())
        for connection in left:
            connection.transport.abort()
        return sum(connection.busy for connection in left)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


async def _body(request: web.BaseRequest) -> bytes:
    if request.headers.get("expect", "").lower() == "100-continue":
        writer: Any = request.writer
        await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.output_size = 0
    return await request.read()
