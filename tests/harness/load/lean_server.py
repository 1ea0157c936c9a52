"""A very cheap HTTP server in a process of its own: prints its port, leaves at the end of its input."""

from __future__ import annotations

import asyncio
import re
import sys

_LENGTH = re.compile(rb"content-length: (\d+)")
_ID = re.compile(rb"x-request-id: (\S+)")


class _Answering(asyncio.Protocol):
    def __init__(self) -> None:
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while True:
            head, found, rest = self._rest.partition(b"\r\n\r\n")
            length = _LENGTH.search(head)
            size = int(length[1]) if length else 0
            if not found or len(rest) < size:
                return
            self._rest = rest[size:]
            asked = _ID.search(head)
            body = b'{"id": "%s"}' % (asked[1] if asked else b"sy-none")
            self._transport.write(
                b"HTTP/1.1 200 OK\r\nx-backend-id: gpu-0\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
            )


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Answering, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve())
