"""Fixtures: a load process, and a raw socket server that records the requests it reads; streams and checks of rows."""

from __future__ import annotations

import json
import re
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.evidence import records
from harness.load.job import LoadJob
from harness.scenario.model import Failure, Load, Method, Stream

ROOT = Path(__file__).parents[3]
PATIENCE_S = 20.0
NONCE = 0x5EED5
BOTH = (Method.GET, Method.POST)


def stream(requests: int = 10, rate_per_s: float = 200.0, name: str = "load", **others: object) -> Stream:
    """A short stream; `others` are fields of harness.scenario.model.Stream."""
    settings: dict[str, object] = {"timeout_s": 5.0, "methods": BOTH, **others}
    return Stream(name, 0.0, rate_per_s, requests, **settings)  # type: ignore[arg-type]


def failures(rows: records.Rows) -> set[Failure]:
    """The different failures in `rows`."""
    return {Failure(value) for value in rows["failure"]}


def assert_never_early(rows: records.Rows) -> None:
    """No request was sent before its intended time, or ended before it was sent."""
    sent = rows[~np.isnan(rows["sent_s"])]
    assert (sent["sent_s"] >= sent["intended_s"]).all()
    assert (sent["end_s"] >= sent["sent_s"]).all()


@dataclass(frozen=True)
class ReceivedRequest:
    """One request as the server read it: number of its connection, its index there, head and body."""

    connection: int
    nth: int
    head: str
    body: bytes

    @property
    def id(self) -> str:
        found = re.search(r"x-request-id: (\S+)", self.head)
        return found[1] if found else ""


@dataclass(frozen=True)
class Reply:
    """A response: write `data`, then "keep" the connection, "close" it, "reset" it or "hang" (send nothing more)."""

    data: bytes = b""
    then: str = "keep"


class RawServer:
    """A server with threads and plain sockets. `reply` makes the response, `requests` has all requests by arrival."""

    def __init__(self) -> None:
        self.reply: Callable[[ReceivedRequest], Reply] = self.ok
        self.requests: list[ReceivedRequest] = []
        self.arrived = threading.Condition()
        self.connections: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @staticmethod
    def ok(request: ReceivedRequest) -> Reply:
        """A complete answer with the request's own tag."""
        body = b'{"id": "%s"}' % request.id.encode()
        head = b"HTTP/1.1 200 OK\r\nX-Backend-Id: gpu-1\r\nContent-Length: %d\r\n\r\n" % len(body)
        return Reply(head + body, "close" if "connection: close" in request.head.lower() else "keep")

    def wait_for(self, count: int) -> None:
        """Return once `count` requests have arrived."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.requests) >= count, PATIENCE_S)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for connection in self.connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection, len(self.connections)))
            self.connections.append(connection)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        rest, nth = b"", 0
        with suppress(OSError):
            while True:
                while b"\r\n\r\n" not in rest:
                    if not (block := connection.recv(65536)):
                        return
                    rest += block
                head, _, rest = rest.partition(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                size = int(length[1]) if length else 0
                while len(rest) < size:
                    rest += connection.recv(65536)
                request = ReceivedRequest(number, nth, head.decode(), rest[:size])
                rest, nth = rest[size:], nth + 1
                with self.arrived:
                    self.requests.append(request)
                    self.arrived.notify_all()
                if not self._do(connection, self.reply(request)):
                    return

    @staticmethod
    def _do(connection: socket.socket, reply: Reply) -> bool:
        connection.sendall(reply.data)
        if reply.then == "hang":
            connection.recv(1)
        elif reply.then == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        elif reply.then == "close":
            connection.shutdown(socket.SHUT_RDWR)
        return reply.then == "keep"


@dataclass
class LoadProcess:
    """A running `python -m harness.load.locust_engine`; `run` runs one job and returns its answer and its records."""

    folder: Path
    child: subprocess.Popen[bytes]
    _rest: bytes = b""
    _jobs: int = 0
    _lines: list[bytes] = field(default_factory=list)

    @classmethod
    def start(
        cls, folder: Path, module: str = "harness.load.locust_engine", *options: str, most_files: int | None = None
    ) -> LoadProcess:
        command = [sys.executable, "-m", module, *options]
        if most_files is not None:
            command = ["sh", "-c", 'ulimit -n "$0"; exec "$@"', str(most_files), *command]
        child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        process = cls(folder, child)
        assert process.answer() == {"ready": True, "pid": child.pid}
        return process

    def send(self, line: dict[str, Any] | bytes) -> None:
        assert self.child.stdin
        self.child.stdin.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")

    def answer(self) -> dict[str, Any]:
        """The next line of output. Fails if none arrives in time, or the process has exited."""
        assert self.child.stdout
        deadline_s = time.monotonic() + PATIENCE_S
        while not self._lines:
            assert select.select([self.child.stdout], [], [], max(0.0, deadline_s - time.monotonic()))[0], "no answer"
            block = self.child.stdout.read(65536)
            assert block, f"the load process exited with {self.child.wait()}"
            *self._lines, self._rest = (self._rest + block).split(b"\n")
        answer: dict[str, Any] = json.loads(self._lines.pop(0))
        return answer

    def submit(self, url: str, *streams: Stream, lead_s: float = 0.02, **others: Any) -> Path:
        """Request a job whose second 0 is `lead_s` from now; returns the path of its records."""
        self._jobs += 1
        name = f"job-{self._jobs}"
        out = Path(others.pop("out", self.folder / f"{name}.records"))
        load = Load(streams, others.pop("key_carrier", "header:x-model-id"))
        more = {"news_s": others.pop("news_s")} if "news_s" in others else {}
        start_s = time.monotonic() + lead_s
        settings: dict[str, Any] = {"seed": 7, "nonce": NONCE, "backends": ("gpu-0", "gpu-1"), **others}
        LoadJob(load=load, url=url, start_s=start_s, out=str(out), **settings).write(self.folder / f"{name}.json")
        self.send({"job": name, "file": str(self.folder / f"{name}.json"), **more})
        return out

    def run(self, url: str, *streams: Stream, **others: Any) -> tuple[dict[str, Any], records.Rows]:
        out = self.submit(url, *streams, **others)
        answer = self.answer()
        assert answer.get("done"), answer
        return answer, records.read_requests(out)

    def close(self) -> None:
        assert self.child.stdin
        assert self.child.stdout
        self.child.stdin.close()
        try:
            self.child.wait(PATIENCE_S)
        finally:
            self.child.kill()
            self.child.wait()
            self.child.stdout.close()


@pytest.fixture
def server() -> Iterator[RawServer]:
    raw = RawServer()
    yield raw
    raw.close()


@pytest.fixture(scope="session")
def load_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadProcess]:
    """One process for all tests, as in a session of live runs."""
    process = LoadProcess.start(tmp_path_factory.mktemp("load"), "harness.load.locust_engine", "--with-parent")
    yield process
    process.close()
