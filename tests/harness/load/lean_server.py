"""An HTTP server with low CPU cost, run as a process: prints its port, exits at the end of its input.

Usage: ``python lean_server.py [SECONDS...]``: each answer is delayed by one of these times, chosen by a hash of the
request's ID; without times there is no delay. ``GET /count`` returns the number of all other requests.
"""

from __future__ import annotations

import asyncio
import re
import sys
import zlib

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_ID = re.compile(rb"x-request-id: (\S+)")
_service_s = [float(word) for word in sys.argv[1:]]


class _Answering(asyncio.Protocol):
    count = 0

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
            if head.startswith(b"GET /count"):
                self._answer(b"%d" % _Answering.count)
                continue
            _Answering.count += 1
            found_id = _ID.search(head)
            name = found_id[1] if found_id else b"sy-none"
            body = b'{"id": "%s"}' % name
            if _service_s:
                service_s = _service_s[zlib.crc32(name) % len(_service_s)]
                asyncio.get_running_loop().call_later(service_s, self._answer, body)
            else:
                self._answer(body)

    def _answer(self, body: bytes) -> None:
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
