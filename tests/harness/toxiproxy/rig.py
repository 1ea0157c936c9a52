"""Shared tools of the fault proxy tests: server processes, backends, and sinks for chains."""

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
"""Bodies that are invalid for every path of the API."""

LONG_S = 10.0  # time limit of a wait; reached only by a failing test


class Sink:
    """Sink of a chain under test: records data and the cause of the end; `room = False` blocks it."""

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
        """The data received, and the cause of the end (None: not ended)."""
        return self.chunks, self.ending

    def take(self) -> list[bytes]:
        """The data received since the last call."""
        taken, self.chunks = self.chunks, []
        return taken


class ServerProcess:
    """`python -m harness.toxiproxy` as a child process; use as a context manager."""

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
            stderr = self.process.communicate(timeout=LONG_S)[1]
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert stderr == "", f"the server printed an error: {stderr}"
        assert self.process.returncode == 0


class RealServer:
    """A real `toxiproxy-server` from PATH as a child process, else the test is skipped; use as a context manager."""

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
            assert self.process.poll() is None, f"{REAL} has exited with {self.process.returncode}"
            try:
                connect(self.port).close()
            except ConnectionRefusedError:
                return False
            return True

        wait_until(answers, f"{REAL} to answer")

    def __enter__(self) -> RealServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # a test may have blocked it
        self.process.wait()


def start_server(kind: str, *options: str) -> ServerProcess | RealServer:
    """Start the `embedded` or the `real` server, with options common to both."""
    return ServerProcess(*options) if kind == "embedded" else RealServer(*options)


class Backend:
    """A listening socket on loopback; `serve` handles each connection in a thread.

    `serve` receives the connected socket; its return value, or the name of the errno it failed with, is in `endings`.
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
        """Stop listening, shut down open connections, and join all threads."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connected in list(self._sockets):
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LONG_S)


BackendWith = Callable[[Callable[[socket.socket], object]], Backend]
"""Type of the fixture `backend_with`: makes backends with a given `serve`, closed after the test."""


def echo(connected: socket.socket) -> str:
    """A `serve` that echoes all data."""
    while data := connected.recv(65536):
        connected.sendall(data)
    return "EOF"


def collect(connected: socket.socket) -> bytes:
    """A `serve` that reads until the end and returns the data."""
    return b"".join(iter(lambda: connected.recv(65536), b""))


def answer_with(data: bytes) -> Callable[[socket.socket], str]:
    """A `serve` that waits for one read, sends `data` and closes."""

    def serve(connected: socket.socket) -> str:
        connected.recv(65536)
        connected.sendall(data)
        return "closed"

    return serve


def connect(port: int) -> socket.socket:
    """Open a client connection."""
    client = socket.create_connection(("127.0.0.1", port), LONG_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def read_to_end(client: socket.socket) -> tuple[bytes, str]:
    """All data until the end, and the end: `EOF`, `timeout` or the name of an errno."""
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
    """Time in seconds until `data` has been echoed."""
    start_s = time.monotonic()
    client.sendall(data)
    assert read_exactly(client, len(data)) == data
    return time.monotonic() - start_s


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll a condition until it holds; fail after `LONG_S`."""
    deadline_s = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {LONG_S:g} s: {what}"
        time.sleep(0.005)


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Status and body of one response, with a time limit of `LONG_S`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_S)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def free_ports(count: int) -> Iterator[int]:
    """Consecutive loopback ports that were free when probed, below the ephemeral range of the system."""
    first = 20000 + os.getpid() * count % 10000  # tests in other processes search at the same time
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
