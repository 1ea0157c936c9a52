"""What the tests of the fault proxy share: a process to test, backends to stand behind it, sinks for its chains."""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.toxiproxy.connection_log import CloseCause
from harness.toxiproxy.stage import Chunk

ROOT = Path(__file__).parents[3]
REAL = "toxiproxy-server"
KINDS = ("embedded", "real")
GARBAGE = (b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 5000, b'{"name": 1}', b"1" * 5000, b'{"a": NaN}')
"""Bodies that no path of the API wants."""

LONG_S = 10.0  # how long to wait for what must come; only a failing test waits so long


class Sink:
    """The end of a chain under test: remembers what arrived and how it ended; `room` can be taken away."""

    def __init__(self) -> None:
        self.room = True
        self.chunks: list[bytes] = []
        self.ending: CloseCause | None = None

    def has_room(self) -> bool:
        return self.room

    def put(self, chunk: Chunk) -> None:
        assert self.ending is None, "data after the end"
        self.chunks.append(chunk.data)

    def end(self, cause: CloseCause) -> None:
        if self.ending is None:
            self.ending = cause

    def state(self) -> tuple[list[bytes], CloseCause | None]:
        """What has arrived, and how it has ended, if it has."""
        return self.chunks, self.ending

    def take(self) -> list[bytes]:
        """What arrived since the last call."""
        taken, self.chunks = self.chunks, []
        return taken


class ServerProcess:
    """`python -m harness.toxiproxy` as a child; use as a context manager."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harness.toxiproxy", "--port", "0", "--with-parent", *options],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline().split()
        assert ready[:1] == ["ready"], self.process.communicate()
        self.port = int(ready[1].rpartition(":")[2])

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            complaints = self.process.communicate(timeout=LONG_S)[1]
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert complaints == "", f"the server complained: {complaints}"
        assert self.process.returncode == 0


class RealServer:
    """A real `toxiproxy-server` from PATH as a child; use as a context manager. Skips the test where there is none."""

    def __init__(self, *options: str) -> None:
        binary = shutil.which(REAL)
        if binary is None:
            pytest.skip(f"no {REAL} on PATH to compare with")
        (self.port,) = free_ports(1)
        self.process = subprocess.Popen(
            [binary, "-host", "127.0.0.1", "-port", str(self.port), *options],
            env={**os.environ, "LOG_LEVEL": "fatal"},
            stdout=subprocess.DEVNULL,
        )

        def answers() -> bool:
            assert self.process.poll() is None, f"{REAL} has left with {self.process.returncode}"
            try:
                connect(self.port).close()
            except ConnectionRefusedError:
                return False
            return True

        wait_until(answers, f"{REAL} to answer")

    def __enter__(self) -> RealServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # it may be blocked by what a test did to it
        self.process.wait()


def start_server(kind: str, *options: str) -> ServerProcess | RealServer:
    """The `embedded` server or the `real` one, with options that both know."""
    return ServerProcess(*options) if kind == "embedded" else RealServer(*options)


class Backend:
    """A listening socket on loopback whose connections are each served by `serve` in a thread.

    `serve` gets the connected socket; what it returns, or the name of the errno that ended it, is in `endings`.
    """

    def __init__(self, serve: Callable[[socket.socket], object]) -> None:
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.endings: list[object] = []
        self.accepted = 0
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.append(connected)
            thread = threading.Thread(target=self._run, args=(connected,))
            self._threads.append(thread)
            thread.start()

    def _run(self, connected: socket.socket) -> None:
        with connected:
            try:
                self.endings.append(self._serve(connected))
            except OSError as error:
                self.endings.append(errno.errorcode.get(error.errno or 0, repr(error)))

    def close(self) -> None:
        """Stop listening, break off what is left, and end all threads."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connected in list(self._sockets):
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LONG_S)


BackendWith = Callable[[Callable[[socket.socket], object]], Backend]
"""The fixture `backend_with`: makes backends that serve so, and closes them after the test."""


def echo(connected: socket.socket) -> str:
    """A `serve` that sends everything back."""
    while data := connected.recv(65536):
        connected.sendall(data)
    return "EOF"


def collect(connected: socket.socket) -> bytes:
    """A `serve` that reads until the end and returns what it read."""
    return b"".join(iter(lambda: connected.recv(65536), b""))


def answer_with(data: bytes) -> Callable[[socket.socket], str]:
    """A `serve` that waits for one read, sends `data` and closes."""

    def serve(connected: socket.socket) -> str:
        connected.recv(65536)
        connected.sendall(data)
        return "closed"

    return serve


def connect(port: int) -> socket.socket:
    """A client's connection."""
    client = socket.create_connection(("127.0.0.1", port), LONG_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def read_to_end(client: socket.socket) -> tuple[bytes, str]:
    """What arrives until the end, and how it ends: `EOF`, `timeout` or the name of an errno."""
    pieces: list[bytes] = []
    while True:
        try:
            piece = client.recv(1 << 20)
        except TimeoutError:
            return b"".join(pieces), "timeout"
        except OSError as error:
            return b"".join(pieces), errno.errorcode[error.errno or 0]
        if not piece:
            return b"".join(pieces), "EOF"
        pieces.append(piece)


def read_exactly(client: socket.socket, size_bytes: int) -> bytes:
    """The next `size_bytes` bytes."""
    data = b""
    while len(data) < size_bytes:
        more = client.recv(size_bytes - len(data))
        assert more, f"ended after {len(data)} of {size_bytes} bytes"
        data += more
    return data


def round_trip_s(client: socket.socket, data: bytes = b"ping") -> float:
    """How long it takes until `data` has come back."""
    start_s = time.monotonic()
    client.sendall(data)
    assert read_exactly(client, len(data)) == data
    return time.monotonic() - start_s


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait until something has come true, asking again and again."""
    deadline_s = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {LONG_S:g} s in vain for: {what}"
        time.sleep(0.005)


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Status and answer of one request, which must come in time."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_S)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def free_ports(count: int) -> Iterator[int]:
    """Ports of loopback that were free a moment ago, in a row, below the range the system draws from."""
    first = 20000 + os.getpid() * count % 10000  # tests in other processes are looking too
    for base in range(first, 32000, count):
        ports = range(base, base + count)
        with contextlib.ExitStack() as probes:
            try:
                for port in ports:
                    probes.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        yield from ports
        return
    raise AssertionError("no free ports in a row")
