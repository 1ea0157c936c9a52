"""Closed-loop load in a process of its own: PORT CONNECTIONS REQUESTS; prints the seconds, and how many went wrong."""

from __future__ import annotations

import asyncio
import sys
import time

BODY = b'{"model": "llama-8b", "prompt": "%s", "max_tokens": 16}' % (b"word " * 40)
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: proxy\r\nAccept: */*\r\nUser-Agent: bench\r\n"
    b"Content-Type: application/json\r\nx-model-id: model-%d\r\nContent-Length: %d\r\n\r\n%s"
)
MODELS = 20


async def _client(port: int, numbers: asyncio.Queue[int]) -> int:
    """Requests one after the other on one connection; how many of them went wrong."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    wrong = 0
    while not numbers.empty():
        number = numbers.get_nowait()
        writer.write(HEAD % (number % MODELS, len(BODY), BODY))
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(None, 1)[0])
        body = await reader.readexactly(length)
        wrong += not head.startswith(b"http/1.1 200") or not body.startswith(b'{"id"')
    writer.close()
    return wrong


async def _load(port: int, connections: int, requests: int) -> None:
    numbers: asyncio.Queue[int] = asyncio.Queue()
    for number in range(requests):
        numbers.put_nowait(number)
    start_s = time.perf_counter()
    wrong = await asyncio.gather(*(_client(port, numbers) for _ in range(connections)))
    print(time.perf_counter() - start_s, sum(wrong))


if __name__ == "__main__":
    asyncio.run(_load(*map(int, sys.argv[1:4])))
