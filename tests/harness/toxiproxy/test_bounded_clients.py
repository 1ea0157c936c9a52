"""API clients that send garbage, too much data, or data too slowly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Callable

import pytest

from harness.toxiproxy.api import ControlApi
from harness.toxiproxy.registry import Registry
from harness.toxiproxy.server import control_server
from tests.harness.toxiproxy import rig
from tests.harness.toxiproxy.rig import Backend, ServerProcess

Behind = Callable[[Callable[[socket.socket], object]], tuple[Backend, int]]

HARMLESS = {
    ("/proxies/p", b"null"),
    ("/proxies/p", b'{"name": 1}'),
    ("/populate", b"null"),
    ("/populate", b"[]"),
}
"""Paths and bodies that change nothing."""


@pytest.mark.parametrize("body", [*rig.GARBAGE, b'{"name":' * 20_000, bytes(1000), "ü".encode("latin-1")])
@pytest.mark.parametrize("path", ["/proxies", "/populate", "/proxies/p", "/proxies/p/toxics"])
def test_garbage_is_refused(behind: Behind, server: ServerProcess, path: str, body: bytes) -> None:
    behind(rig.echo)
    status, answer = rig.ask(server.port, "POST", path, body)
    if (path, body) in HARMLESS:
        assert status in (200, 201)
    else:
        assert (status, json.loads(answer)["status"]) == (400, 400)


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"\0" * 100, b"hi\r\n" * 9]
)
def test_invalid_http_gets_a_400_and_is_cut_off(server: ServerProcess, garbage: bytes) -> None:
    with rig.connect(server.port) as client:
        client.sendall(garbage)
        assert rig.read_to_end(client)[0].startswith(b"HTTP/1.0 400 ") or rig.read_to_end(client)[1] != "timeout"


@pytest.mark.parametrize("endless", [b"x-more: 1\r\n" * 50, b"x" * 1000], ids=["headers", "one header"])
def test_a_head_without_end_is_cut_off(server: ServerProcess, endless: bytes) -> None:
    with rig.connect(server.port) as client:
        client.sendall(b"GET /version HTTP/1.1\r\nhost: a\r\nx: ")
        with contextlib.suppress(ConnectionError):
            for _ in range((4 << 20) // len(endless)):
                client.sendall(endless)
                time.sleep(0.0005)  # so that the kernel's buffers do not take all of it
            pytest.fail("4 MiB of a head were not too much")


@pytest.mark.parametrize("sent", [b"POST /prox", b"POST /populate HTTP/1.1\r\nhost: a\r\n"], ids=["line", "header"])
def test_a_slow_head_is_cut_off(sent: bytes) -> None:
    """One byte every 20 ms does not extend the time limit."""
    assert drip(sent, b"x", idle_s=0.3) == b""


def test_a_slow_body_is_cut_off() -> None:
    sent = b"POST /populate HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n"
    assert b" 400 " in drip(sent, b" ", body_timeout_s=0.3).partition(b"\r\n")[0]


def test_a_client_that_disconnects_within_its_body_is_dropped(server: ServerProcess) -> None:
    with rig.connect(server.port) as client:
        client.sendall(b"POST /populate HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n[")
    assert rig.ask(server.port, "GET", "/version")[0] == 200


def drip(head: bytes, more: bytes, idle_s: float = 60.0, body_timeout_s: float = 60.0) -> bytes:
    """Answer of a server with these limits to a client that sends `head`, then `more` every 20 ms."""

    async def exchange() -> bytes:
        loop = asyncio.get_running_loop()
        http_server = control_server(ControlApi(Registry(), body_timeout_s=body_timeout_s), idle_s)
        listener = await loop.create_server(http_server, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)

        async def keep_busy() -> None:
            while True:
                writer.write(more)
                await asyncio.sleep(0.02)

        busy = loop.create_task(keep_busy())
        start_s = loop.time()
        answer = await read_all(reader)
        assert loop.time() - start_s >= 0.3
        busy.cancel()
        # A slow client does not delay others.
        other, other_writer = await asyncio.open_connection("127.0.0.1", port)
        other_writer.write(b"GET /version HTTP/1.0\r\n\r\n")
        assert b"2.12.0" in await read_all(other)
        for each in (writer, other_writer):
            each.transport.abort()
        listener.close()
        await http_server.shutdown(0)
        return answer

    async def read_all(reader: asyncio.StreamReader) -> bytes:
        """Read until an end or a reset: a server that closes with unread input resets the connection."""
        pieces = []
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(rig.LONG_S):
                while piece := await reader.read(65536):
                    pieces.append(piece)
        return b"".join(pieces)

    return asyncio.run(exchange())
