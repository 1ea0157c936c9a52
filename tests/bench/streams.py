"""A client of many streams at once, as a process of its own, which looks at every event.

Usage: ``python streams.py PORT STREAMS``, the request as bytes on standard input; each stream has a connection of its
own and runs once. Prints, as JSON, how many streams there were, how many events of tokens in all, and what was wrong
with the first one that had a token too few, too many or out of order.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import cast

TOKEN = re.compile(rb'"token": (\d+)')
END = b"data: [DONE]\n\n\r\n0\r\n\r\n"


class Stream(asyncio.Protocol):
    """One stream; ``ended`` is done when all is there or the connection is not."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._data = bytearray()
        self.ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._data.endswith(END):
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(bytes(self._data))


async def _run(port: int, streams: int, request: bytes) -> list[bytes]:
    loop = asyncio.get_running_loop()
    gate = asyncio.Semaphore(100)  # connections being made; the listener's queue is not endless

    async def one() -> bytes:
        async with gate:
            transport, stream = await loop.create_connection(lambda: Stream(request), "127.0.0.1", port)
        try:
            return await stream.ended
        finally:
            transport.abort()

    return await asyncio.gather(*(one() for _ in range(streams)))


def main() -> None:
    """Run as the arguments say."""
    port, streams = int(sys.argv[1]), int(sys.argv[2])
    request = sys.stdin.buffer.read()
    expected = list(range(json.loads(request.partition(b"\r\n\r\n")[2])["max_tokens"]))
    events, wrong = 0, ""
    for text in asyncio.run(_run(port, streams, request)):
        numbers = [int(number) for number in TOKEN.findall(text)]
        events += len(numbers)
        if not wrong and not (numbers == expected and text.startswith(b"HTTP/1.1 200") and text.endswith(END)):
            wrong = f"tokens {numbers}, from {text[:100]!r} to {text[-100:]!r}"
    print(json.dumps({"streams": streams, "events": events, "wrong": wrong}))


if __name__ == "__main__":
    main()
