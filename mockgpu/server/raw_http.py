"""Responses written as bytes directly to the connection.

An aiohttp response object builds and validates its headers for each request and passes every stream event through
three coroutines, which costs as much as the rest of the mock. So inference writes its few headers itself, all known to
be valid, and returns to aiohttp a response that is complete already.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from aiohttp import ClientConnectionResetError, HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest

# A stream waits for its client when more bytes than this are unsent.
_HIGH_WATER = 65_536


class _WrittenResponse(web.StreamResponse):
    """A response that has been written already."""

    def __init__(self, keep_alive: bool) -> None:
        super().__init__()
        self._keeps = keep_alive

    @property
    def keep_alive(self) -> bool | None:
        return self._keeps

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None


_KEEP, _CLOSE = _WrittenResponse(True), _WrittenResponse(False)
CLOSED: web.StreamResponse = _CLOSE
"""The return value of a handler whose connection is closed."""


@lru_cache(maxsize=2)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


@lru_cache(maxsize=256)
def _first_lines(status: int, content_type: str, keep_alive: bool) -> bytes:
    close = "" if keep_alive else "Connection: close\r\n"
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Unknown"
    return f"HTTP/1.1 {status} {phrase}\r\nContent-Type: {content_type}\r\n{close}".encode()


def _head(status: int, content_type: str, keep_alive: bool, framing: bytes, headers: Mapping[str, str]) -> bytes:
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode()
    first = _first_lines(status, content_type, keep_alive)
    return b"%b%bDate: %b\r\n%b\r\n" % (first, framing, _date(int(time.time())), lines)


def _write(request: BaseRequest, data: bytes) -> None:
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ClientConnectionResetError("the client has left")
    transport.write(data)


def send_whole(
    request: BaseRequest, status: int, body: bytes, content_type: str, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Write a whole response; raises ClientConnectionResetError if the client has left.

    ``headers`` are not validated: they must not contain client input.
    """
    keep_alive = request.keep_alive and request.version >= HttpVersion11
    _write(request, _head(status, content_type, keep_alive, b"Content-Length: %d\r\n" % len(body), headers) + body)
    return _KEEP if keep_alive else _CLOSE


def begin_whole(request: BaseRequest, length: int, content_type: str, headers: Mapping[str, str]) -> web.StreamResponse:
    """Write the head of a 200 response of ``length`` bytes, for ``send_piece``; errors as in ``send_whole``."""
    keep_alive = request.keep_alive and request.version >= HttpVersion11
    _write(request, _head(200, content_type, keep_alive, b"Content-Length: %d\r\n" % length, headers))
    return _KEEP if keep_alive else _CLOSE


def send_piece(request: BaseRequest, data: bytes) -> None:
    """Write a piece of a body; errors as in ``send_whole``."""
    _write(request, data)


def send_part(
    request: BaseRequest, body: bytes, part: int, content_type: str, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Write the head of a whole response and the first ``part`` bytes of its body; errors as in ``send_whole``."""
    _write(request, _head(200, content_type, True, b"Content-Length: %d\r\n" % len(body), headers) + body[:part])
    return _CLOSE


class EventStream:
    """A streamed response. Methods raise ClientConnectionResetError if the client has left."""

    __slots__ = ("_chunked", "_head", "_keep_alive", "_request")

    def __init__(self, request: BaseRequest, content_type: str, headers: Mapping[str, str]) -> None:
        """Nothing is sent yet: the head is sent with the first event."""
        self._request = request
        self._chunked = request.version >= HttpVersion11
        self._keep_alive = request.keep_alive and self._chunked
        framing = b"Transfer-Encoding: chunked\r\n" if self._chunked else b""
        self._head = _head(200, content_type, self._keep_alive, framing, headers)

    def begin(self) -> None:
        """Send the head only."""
        _write(self._request, self._head)
        self._head = b""

    async def write(self, data: bytes) -> None:
        """Send one event; waits only if the client is far behind."""
        if self.put(data):
            await self.drain()

    def put(self, data: bytes) -> bool:
        """Send one event; returns whether the client is so far behind that the caller should ``drain``."""
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ClientConnectionResetError("the client has left")
        data = b"%b%x\r\n%b\r\n" % (self._head, len(data), data) if self._chunked else self._head + data
        self._head = b""
        transport.write(data)
        return transport.get_write_buffer_size() > _HIGH_WATER

    async def drain(self) -> None:
        """Wait until most of the sent data has left the buffer."""
        await self._request.writer.drain()

    def end(self, data: bytes) -> None:
        """Send the last events and end the stream."""
        data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if self._chunked else data
        _write(self._request, self._head + data)

    def end_with_wrong_length(self, data: bytes, by: int) -> int:
        """Like ``end`` with a chunk length that is wrong by ``by``, or, without chunks, with half of the data.

        Returns the number of data bytes sent.
        """
        sent = data if self._chunked else data[: len(data) // 2]
        framed = b"%x\r\n%b\r\n0\r\n\r\n" % (max(1, len(data) + by), data) if self._chunked else sent
        _write(self._request, self._head + framed)
        return len(sent)

    def response(self) -> web.StreamResponse:
        """The return value for the handler."""
        return _KEEP if self._keep_alive else _CLOSE
