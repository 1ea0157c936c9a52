"""A load client as a process of its own: every connection sends its request anew as soon as it has the answer.

Usage: ``python closed_loop.py PORT CONNECTIONS SECONDS``, the request as bytes on standard input; prints the number of
answers as JSON. It looks at nothing of an answer but its length and its first line, which must say 200: what is
measured is the server, and a client that cost more than it would set the pace.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import cast


class Connection(asyncio.Protocol):
    """Sends ``request`` again and again; ``answers`` counts the whole answers."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._held = b""
        self.answers = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._held:
            data = self._held + data
        head = data.find(b"\r\n\r\n")
        if head < 0 or len(data) < head + 4 + _length(data, head):
            self._held = data
            return
        if not data.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"answered {data!r}")
        self._held = b""
        self.answers += 1
        self._transport.write(self._request)


def _length(data: bytes, head: int) -> int:
    at = data.index(b"Content-Length: ", 0, head) + 16
    return int(data[at : data.index(b"\r", at)])


async def _run(port: int, connections: int, seconds: float, request: bytes) -> int:
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context.get("exception") or context["message"]))
    made = [(await loop.create_connection(lambda: Connection(request), "127.0.0.1", port)) for _ in range(connections)]
    await asyncio.sleep(seconds)
    for transport, _ in made:
        transport.abort()
    if failures:
        raise SystemExit(str(failures[0]))
    return sum(connection.answers for _, connection in made)


def main() -> None:
    """Run as the arguments say."""
    port, connections, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    print(json.dumps({"answers": asyncio.run(_run(port, connections, seconds, sys.stdin.buffer.read()))}))


if __name__ == "__main__":
    main()
