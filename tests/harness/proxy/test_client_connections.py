"""Client connections of a running balancer: their limits, and their end at a shutdown."""

from __future__ import annotations

import asyncio
import http.client
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGSTOP, SIGTERM

import pytest
from aiohttp import web

from harness.live.process.http import accepts
from harness.proxy.client_connections import ClientConnection, ClientConnections, ConnectionLimits
from tests.harness.live.balancers import BalancerProcess, PlainBackend, balancing, plain_backends
from tests.harness.live.helpers import HOST, PATIENCE_S, until


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainBackend]:
    with plain_backends(tmp_path_factory.mktemp("backend"), 1) as started:
        yield started[0]


def connect(balancer: BalancerProcess) -> socket.socket:
    return socket.create_connection((HOST, balancer.port), timeout=PATIENCE_S)


def asking(path: str, request_id: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nx-request-id: {request_id}\r\n\r\n".encode()


def to_the_end(client: socket.socket) -> bytes:
    """All bytes up to the end of the connection, which must be a clean close."""
    got = b""
    while block := client.recv(65_536):
        got += block
    return got


def answers(client: http.client.HTTPConnection, path: str = "/short") -> str | None:
    """Send a request, read the complete answer, and return its Connection header."""
    client.request("GET", path)
    response = client.getresponse()
    body = response.read()
    assert response.status == 200 and body
    return response.headers["connection"]


# --- limits -----------------------------------------------------------------------------------------------


def test_a_connection_ends_with_its_last_request(tmp_path: Path, backend: PlainBackend) -> None:
    with balancing(tmp_path, [backend.url], "--max-connection-requests", "3") as balancer:
        client = http.client.HTTPConnection(HOST, balancer.port, timeout=PATIENCE_S)
        client.auto_open = 0
        for path in ("/short", "/stream?chunks=3&gap_s=0.01"):  # the last answer is complete in every form
            client.connect()
            assert [answers(client), answers(client), answers(client, path)] == [None, None, "close"]
            client.close()
        with connect(balancer) as raw:
            raw.sendall(asking("/short") * 3)
            got = to_the_end(raw)
        assert got.count(b"HTTP/1.1 200 OK") == 3
        assert got.lower().count(b"connection: close") == 1


def test_an_old_connection_ends_with_an_answer_and_never_within_one(tmp_path: Path, backend: PlainBackend) -> None:
    age_s = 0.5
    with balancing(tmp_path, [backend.url], "--max-connection-age-s", str(age_s)) as balancer:
        began_s = time.monotonic()
        client = http.client.HTTPConnection(HOST, balancer.port, timeout=PATIENCE_S)
        client.request("GET", "/stream?chunks=30&gap_s=0.03")
        response = client.getresponse()
        assert response.headers["connection"] is None
        assert response.read().count(b"data:") == 30
        assert time.monotonic() - began_s > age_s
        assert answers(client) == "close"
        assert client.sock is None
        with connect(balancer) as raw:
            raw.sendall(asking("/short"))
            assert b"connection: close" not in raw.recv(65_536).lower()
            until(lambda: time.monotonic() - began_s > 3 * age_s)
            raw.sendall(asking("/short"))
            assert b"connection: close" in to_the_end(raw).lower()


@pytest.mark.parametrize("limits", [{"age_s": 0}, {"age_s": -1.0}, {"age_s": float("nan")}, {"requests": 0}])
def test_limits_that_make_no_sense(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        ConnectionLimits(**limits)  # type: ignore[arg-type]


# --- the end ----------------------------------------------------------------------------------------------


def test_pipelined_requests_are_answered_before_the_end(tmp_path: Path, backend: PlainBackend) -> None:
    with balancing(tmp_path, [backend.url]) as balancer, connect(balancer) as client:
        client.sendall(b"".join(asking("/stream?chunks=10&gap_s=0.02", f"piped-{number}") for number in range(4)))
        backend.when("piped-0", "asked")
        balancer.child.signal(SIGTERM)
        got = to_the_end(client)
        assert got.count(b"HTTP/1.1 200 OK") == 4
        assert got.count(b"data: word") == 40
        assert got.lower().count(b"connection: close") == 1
        assert balancer.child.wait(PATIENCE_S) and balancer.child.status == 0


def test_what_has_arrived_by_then_is_answered(tmp_path: Path, backend: PlainBackend) -> None:
    """Requests on idle and on new connections that arrive just before the signal."""
    with balancing(tmp_path, [backend.url]) as balancer:
        clients = [connect(balancer) for _ in range(5)]
        for client in clients:
            client.sendall(asking("/short"))
            assert client.recv(65_536).startswith(b"HTTP/1.1 200 OK")
        balancer.child.signal(SIGSTOP)
        clients += [connect(balancer) for _ in range(5)]
        for client in clients:
            client.sendall(asking("/short"))
        balancer.child.signal(SIGTERM)
        balancer.child.signal(SIGCONT)
        for client in clients:
            assert to_the_end(client).startswith(b"HTTP/1.1 200 OK")
            client.close()
        assert balancer.child.wait(PATIENCE_S) and balancer.child.status == 0


@pytest.mark.parametrize("turns", range(12))
def test_a_request_that_was_read_is_answered_at_whatever_moment_the_end_comes(turns: int) -> None:
    """Shutdown a number of loop iterations after a request: before, while or after it is read."""
    begun = []

    async def answer(request: web.BaseRequest, data: bytes, connection: ClientConnection) -> web.StreamResponse:
        begun.append(data)
        for _ in range(5):
            await asyncio.sleep(0)
        return web.Response(body=data)

    async def case() -> bytes:
        client_connections = ClientConnections(answer)
        runner = web.ServerRunner(client_connections)
        await runner.setup()
        site = web.TCPSite(runner, HOST, 0)
        await site.start()
        reader, writer = await asyncio.open_connection(HOST, site.port)
        while not client_connections.open_connections:  # noqa: ASYNC110  loop iterations are counted
            await asyncio.sleep(0)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody")
        for _ in range(turns):
            await asyncio.sleep(0)
        await client_connections.close_idle()
        await client_connections.all_requests_read()
        count = len(begun)
        await client_connections.all_closed()
        got = await reader.read()
        writer.close()
        await runner.cleanup()
        assert len(begun) == count, "a request arrived after all_requests_read"
        return got

    got = asyncio.run(case())
    assert got.endswith(b"\r\n\r\nbody") == bool(begun)
    assert bool(begun) == (got != b"")


def test_the_end_waits_for_what_was_written_to_be_out() -> None:
    """The handler ends when the loop has buffered the answer; the process must not end before it is sent."""
    body = b"x" * 60_000

    async def answer(request: web.BaseRequest, data: bytes, connection: ClientConnection) -> web.StreamResponse:
        return web.Response(body=body)

    async def case() -> None:
        client_connections = ClientConnections(answer)
        runner = web.ServerRunner(client_connections)
        await runner.setup()
        listener, client = socket.socket(), socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # inherited by accepted sockets
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind((HOST, 0))
        await web.SockSite(runner, listener).start()
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, listener.getsockname())
        await loop.sock_sendall(client, asking("/"))
        got = await loop.sock_recv(client, 100)
        await client_connections.close_idle()
        await client_connections.all_requests_read()
        gone = asyncio.create_task(client_connections.all_closed())
        await asyncio.sleep(0.05)  # time for an early end to show
        assert not gone.done() and client_connections.open_connections == 1
        while block := await loop.sock_recv(client, 65_536):
            got += block
        await asyncio.wait_for(gone, PATIENCE_S)
        assert got.partition(b"\r\n\r\n")[2] == body
        client.close()
        await runner.cleanup()

    asyncio.run(case())


def test_a_slow_reader_gets_the_rest(tmp_path: Path, backend: PlainBackend) -> None:
    chunks, times = 100, 5_000  # more than the kernel's buffers hold
    with balancing(tmp_path, [backend.url]) as balancer:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        client.settimeout(PATIENCE_S)
        client.connect((HOST, balancer.port))
        client.sendall(asking(f"/sized?chunks={chunks}&gap_s=0&times={times}", "slowly"))
        backend.when("slowly", "asked")
        balancer.child.signal(SIGTERM)
        assert not balancer.child.wait(0.5)
        got = bytearray()
        while block := client.recv(32_768):
            got += block
            time.sleep(0.003)  # the reader's pace
        assert got.partition(b"\r\n\r\n")[2] == b"data: word\n\n" * (chunks * times)
        client.close()
        assert balancer.child.wait(PATIENCE_S) and balancer.child.status == 0


@pytest.mark.parametrize(("words", "again", "message"), [
    (["--drain-deadline-s", "0.5"], False, "stopped after 0.5 s with 1 requests unanswered"),
    ([], True, "stopped by a second signal with 1 requests unanswered"),
])  # fmt: skip
def test_a_shutdown_has_an_end(
    tmp_path: Path, backend: PlainBackend, words: list[str], again: bool, message: str
) -> None:
    request_id = f"endless-{again}"
    balancer = BalancerProcess(tmp_path, [backend.url], *words)
    try:
        with connect(balancer) as client:
            client.sendall(asking("/stream?chunks=100000&gap_s=0.01", request_id))
            assert b"200 OK" in client.recv(65_536)
            began_s = time.monotonic()
            balancer.child.signal(SIGTERM)
            if again:
                until(lambda: not accepts(HOST, balancer.port))
                balancer.child.signal(SIGINT)
            assert balancer.child.wait(5)
            assert balancer.child.status == 0
            assert time.monotonic() - began_s >= (0 if again else 0.5)
            assert not to_the_end(client).endswith(b"\r\n0\r\n\r\n"), "looks whole"
            backend.when(request_id, "gone")
        assert balancer.said == [message]
    finally:
        balancer.child.stop()
