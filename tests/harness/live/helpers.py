"""Helpers: waiting, the process table, raw backends, a short scenario, a driver process."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from harness.live.process.child import Child
from harness.live.process.http import HttpResponse, accepts, call
from harness.live.process.ports import PortBlock, port_block
from harness.scenario.faults import Step
from harness.scenario.model import Keys, Load, Method, Scenario, Stream
from harness.targets.reference import ReferenceTarget

PATIENCE_S = 20.0
HOST = "127.0.0.1"
ROOT = Path(__file__).parents[3]
Result = TypeVar("Result")


def until(condition: Callable[[], Result], patience_s: float = PATIENCE_S) -> Result:
    """The first true value of `condition`; fails the test on timeout."""
    deadline_s = time.monotonic() + patience_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"waited {patience_s:.0f} s in vain"
        time.sleep(0.005)
    return value


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens; all different."""
    holders = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [int(holder.getsockname()[1]) for holder in holders]
    for holder in holders:
        holder.close()
    return ports


def free_block(seed: int, backends: int) -> PortBlock:
    """The block of ports that a run with this seed would get now; not locked."""
    with port_block(seed, backends) as block:
        return block


# --- raw backends -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One request received by a raw backend; `nth` is its position on its connection, from 0."""

    nth: int
    head: str
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def write(self, data: bytes) -> None:
        """Send some bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, body: bytes = b"fine", status: str = "200 OK", headers: str = "") -> None:
        """Send a whole answer."""
        await self.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body)

    async def until_closed(self) -> None:
        """Return when the peer has closed or reset the connection."""
        with suppress(ConnectionError):
            await self.reader.read()


Behave = Callable[[Call], Awaitable[None]]


async def fine(call: Call) -> None:
    """Answer every request."""
    await call.answer()


async def hang(call: Call) -> None:
    """Send nothing until the peer disconnects."""
    await call.until_closed()


class RawBackend:
    """An asyncio server in its own thread that handles requests with `behave`; `calls` are in order of arrival."""

    def __init__(self, behave: Behave = fine) -> None:
        self.behave = behave
        self.calls: list[Call] = []
        self.closed = threading.Event()
        """Set when a connection ended while `behave` was running."""
        self._loop = asyncio.new_event_loop()
        self._handlers: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = self.do(asyncio.start_server(self._serve, HOST, 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def do(self, work: Awaitable[Result]) -> Result:
        """Run something in the backend's loop."""

        async def run() -> Result:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE_S)

    def await_call(self) -> Call:
        """The first request; waits for it."""
        return until(lambda: self.calls)[0]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        nth = 0
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = next((line for line in head.lower().split("\r\n") if line.startswith("content-length:")), ":0")
                body = await reader.readexactly(int(length.partition(":")[2]))
                seen = Call(nth, head, body, reader, writer)
                self.calls.append(seen)
                await self.behave(seen)
                nth += 1
                if reader.at_eof():
                    self.closed.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed.set()
        except asyncio.CancelledError:
            pass
        finally:
            self._handlers.discard(task)
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def close(self) -> None:
        """Stop listening, close all connections, end the thread."""

        async def end() -> None:
            self._server.close()
            handlers = list(self._handlers)
            for task in handlers:
                task.cancel()
            await asyncio.gather(*handlers, return_exceptions=True)

        self.do(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


# --- the driver process -----------------------------------------------------------------------------------


class DriverProcess:
    """`python -m harness.proxy.serve` with a gateway of tests.harness.live.gateways, or another one."""

    def __init__(self, folder: Path, gateway: str = "Plain", ports: tuple[int, int] | None = None) -> None:
        self.port, self.admin_port = ports or free_ports(2)
        config = {
            "spec": gateway if ":" in gateway else f"python:tests.harness.live.gateways:{gateway}",
            "host": HOST,
            "port": self.port,
            "admin_port": self.admin_port,
            "health_path": "/health",
            "key_carrier": "header:x-model-id",
            "seed": 1,
            "backends": [],
        }
        path = folder / "shell.json"
        path.write_text(json.dumps(config))
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self.child = Child((sys.executable, "-m", "harness.proxy.serve", str(path)), folder / "shell.log", environment)

    def await_listening(self) -> None:
        """Return when both ports accept."""
        for port in (self.port, self.admin_port):
            until(lambda port=port: accepts(HOST, port) or self.child.status is not None)  # type: ignore[misc]
        assert self.child.status is None, self.child.ending()

    def put(self, body: bytes) -> HttpResponse:
        """PUT /backends."""
        return call("PUT", f"http://{HOST}:{self.admin_port}/backends", body, timeout_s=PATIENCE_S)

    def use(self, **backends: int) -> None:
        """Set these (name=port) as the members."""
        items = [{"id": name, "host": HOST, "port": port, "weight": 1} for name, port in backends.items()]
        assert self.put(json.dumps(items).encode()).status == 200

    def connect(self) -> http.client.HTTPConnection:
        """A client connection."""
        return http.client.HTTPConnection(HOST, self.port, timeout=PATIENCE_S)

    def call(self, method: str = "GET", path: str = "/", body: bytes = b"") -> HttpResponse:
        """One request on a fresh connection."""
        return call(method, f"http://{HOST}:{self.port}{path}", body, timeout_s=PATIENCE_S)


# --- scenarios --------------------------------------------------------------------------------------------

CALM = ReferenceTarget().switches
"""Mechanisms that could hide a fault in the attempts of the reference."""


def traffic(
    seconds: float,
    *timeline: Step,
    rate_per_s: float = 50.0,
    backends: int = 2,
    timeout_s: float = 1.0,
    keys: int = 20,
    methods: tuple[Method, ...] = (Method.POST, Method.GET),
) -> Scenario:
    """`seconds` of steady traffic, with all optional mechanisms off."""
    stream = Stream(
        name="traffic",
        start_s=0.0,
        rate_per_s=rate_per_s,
        requests=int(rate_per_s * seconds),
        keys=Keys(keys, "sweep"),
        methods=methods,
        timeout_s=timeout_s,
    )
    return Scenario(name="short", backends=backends, load=Load((stream,)), timeline=timeline, off=CALM)
