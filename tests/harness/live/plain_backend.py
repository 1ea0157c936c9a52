"""A small model server as a process: LOG PORTS [DELAY_S]; prints its ports, exits at the end of its input.

    /health                 200
    /short                  a short answer with the request's x-request-id, after DELAY_S
    /stream?chunks=N&gap_s=S  N chunks, chunked
    /sized?chunks=N&gap_s=S   the same, of a known length; &times=T makes each chunk T times as long

A line in LOG for each event of a request: id, event (`asked`, `answered`, `gone`) and time (seconds, monotonic).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

CHUNK = b"data: word\n\n"


class Server:
    """Answers the same on several ports."""

    def __init__(self, log: str, delay_s: float) -> None:
        self._log = Path(log).open("a", buffering=1, encoding="utf-8")  # noqa: SIM115  open as long as the process
        self._delay_s = delay_s

    def _note(self, asked: str, what: str) -> None:
        if asked:
            self._log.write(f"{asked} {what} {time.monotonic()}\n")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until its end."""
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    await self._one(reader, writer)
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = head.split("\r\n")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        await reader.readexactly(int(headers.get("content-length", "0")))
        asked = headers.get("x-request-id", "")
        target = urlsplit(lines[0].split()[1])
        query = dict(parse_qsl(target.query))
        self._note(asked, "asked")
        if target.path in ("/stream", "/sized"):
            chunk = CHUNK * int(query.get("times", "1"))
            work = self._stream(writer, chunk, int(query["chunks"]), float(query["gap_s"]), target.path == "/stream")
            await self._while_here(work, reader, asked)
        else:
            if target.path != "/health" and self._delay_s:
                await asyncio.sleep(self._delay_s)
            body = json.dumps({"id": asked}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            await writer.drain()
        self._note(asked, "answered")

    async def _stream(
        self, writer: asyncio.StreamWriter, chunk: bytes, chunks: int, gap_s: float, chunked: bool
    ) -> None:
        form = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {chunks * len(chunk)}"
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{form}\r\n\r\n".encode())
        for _ in range(chunks):
            writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk) if chunked else chunk)
            await writer.drain()
            await asyncio.sleep(gap_s)
        writer.write(b"0\r\n\r\n" if chunked else b"")
        await writer.drain()

    async def _while_here(self, work: object, reader: asyncio.StreamReader, asked: str) -> None:
        """Run `work`; if the client disconnects meanwhile, log it and stop."""
        answering = asyncio.ensure_future(work)  # type: ignore[call-overload]
        leaving = asyncio.ensure_future(reader.read(1))
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        if answering.done() and not answering.exception():
            leaving.cancel()
            with suppress(asyncio.CancelledError):
                await leaving
            return
        self._note(asked, "gone")
        answering.cancel()
        leaving.cancel()
        await asyncio.gather(answering, leaving, return_exceptions=True)
        raise ConnectionError


async def _main(log: str, ports: int, delay_s: float) -> None:
    server = Server(log, delay_s)
    listeners = [await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=1024) for _ in range(ports)]
    print(json.dumps([listener.sockets[0].getsockname()[1] for listener in listeners]), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 0.0))
