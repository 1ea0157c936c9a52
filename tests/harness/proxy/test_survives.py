"""A balancer in service survives disconnecting clients, dying backends, and SIGTERM under load."""

from __future__ import annotations

import asyncio
import socket
import statistics
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from harness.live.process.http import accepts
from tests.harness.live.balancers import BalancerProcess, balancing, plain_backends
from tests.harness.live.helpers import HOST, PATIENCE_S, until

ABORTS = 20
CLIENTS = 100
RATE_PER_S = 200.0
IDLE = 20
CHUNK = b"data: word\n\n"


def asking(path: str, request_id: str, method: str = "GET") -> bytes:
    body = b'{"model": "m"}' if method == "POST" else b""
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nx-request-id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def whole(answer: bytes, chunks: int) -> bool:
    """Whether an answer of `chunks` chunks is complete, chunked or of a known length."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"chunked" in head.lower():
        return body.count(CHUNK) == chunks and body.endswith(b"\r\n0\r\n\r\n")
    return body == chunks * CHUNK


def rest_of(client: socket.socket, got: bytes, chunks: int) -> tuple[bytes, bool]:
    """The received part of an answer, and whether its connection was reset."""
    try:
        while not whole(got, chunks) and (block := client.recv(65_536)):
            got += block
    except ConnectionResetError:
        return got, True
    return got, False


# --- clients that leave -----------------------------------------------------------------------------------


def test_a_client_that_leaves_is_seen_by_the_backend_at_once(tmp_path: Path) -> None:
    lags_s = []
    with plain_backends(tmp_path, 2) as backends, balancing(tmp_path, [item.url for item in backends]) as balancer:
        for number in range(ABORTS):
            client = socket.create_connection((HOST, balancer.port), timeout=PATIENCE_S)
            # No data follows the first chunk, so the balancer cannot notice by a failed write.
            client.sendall(asking("/stream?chunks=2&gap_s=60", f"abort-{number}", "POST"))
            while b"data:" not in client.recv(4096):
                pass
            if number % 2:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            left_s = time.monotonic()
            client.close()
            gone = until(lambda number=number: [  # type: ignore[misc]
                at_s
                for backend in backends
                for request_id, what, at_s in backend.events()
                if (request_id, what) == (f"abort-{number}", "gone")
            ])  # fmt: skip
            lags_s += [at_s - left_s for at_s in gone]
        balancer.await_metric(("steelyard_requests_total", "client_gone", "none"), ABORTS)
        rows = balancer.ask("GET", "/backends")[1]
    assert len(lags_s) == ABORTS
    assert statistics.median(lags_s) <= 0.1, lags_s
    assert [(row["in_flight"], row["breaker"]) for row in rows] == [(0, "closed")] * 2


# --- backends that die ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/stream", "/sized"])
def test_a_killed_backend_breaks_its_transfers(tmp_path: Path, path: str) -> None:
    with plain_backends(tmp_path, 2) as backends, balancing(tmp_path, [item.url for item in backends]) as balancer:
        clients = [socket.create_connection((HOST, balancer.port), timeout=PATIENCE_S) for _ in range(8)]
        begun = []
        for number, client in enumerate(clients):
            client.sendall(asking(f"{path}?chunks=100&gap_s=0.02", str(number)))
            begun.append(client.recv(65_536))
        victim, survivor = backends
        there = {int(request_id) for request_id, what, _ in victim.events() if what == "asked"}
        assert 0 < len(there) < len(clients)
        victim.child.stop(SIGKILL)
        for number, client in enumerate(clients):
            got, reset = rest_of(client, begun[number], chunks=100)
            assert whole(got, chunks=100) == (number not in there), (number, reset, got[-60:])
            client.close()
        balancer.await_metric(("steelyard_requests_total", "broken", "none"), len(there))
        # Other requests continue, also those that would have gone to the dead backend.
        assert {balancer.call(x_model_id=f"m-{number}").status for number in range(20)} == {200}
        assert survivor.child.status is None


# --- SIGTERM ----------------------------------------------------------------------------------------------


@dataclass
class ClientLog:
    """End of each request by id: whole, cut, closed (no byte of an answer) or refused (no connection)."""

    port: int
    ends: dict[str, str] = field(default_factory=dict)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection that is closed at the end of the test."""
        reader, writer = await asyncio.open_connection(HOST, self.port)
        self.writers.append(writer)
        return reader, writer

    def count(self) -> Counter[str]:
        return Counter(self.ends.values())


async def one_request(reader: asyncio.StreamReader, request_id: str) -> str:
    """End of the answer to the last sent request; `whole+close` if it is the connection's last."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        return "cut" if isinstance(error, asyncio.IncompleteReadError) and error.partial else "closed"
    try:
        if b"chunked" in head:
            await reader.readuntil(b"\r\n0\r\n\r\n")
        else:
            body = await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
            assert request_id.encode() in body
    except (asyncio.IncompleteReadError, ConnectionError):
        return "cut"
    assert head.startswith(b"http/1.1 200"), head
    return "whole+close" if b"connection: close" in head else "whole"


async def steady_client(number: int, log: ClientLog) -> None:
    """Two requests a second on a kept connection, short and streamed alternately, until the connection is refused."""
    await asyncio.sleep(number / RATE_PER_S)
    writer = None
    for turn in count():
        request_id = f"c{number}-{turn}"
        if writer is None:
            try:
                reader, writer = await log.connect()
            except ConnectionError:
                log.ends[request_id] = "refused"
                return
        path = "/stream?chunks=20&gap_s=0.02" if turn % 2 else "/short"
        began_s = time.monotonic()
        with suppress(ConnectionError):
            writer.write(asking(path, request_id, "POST" if number % 2 else "GET"))
            await writer.drain()
        log.ends[request_id] = await one_request(reader, request_id)
        if log.ends[request_id] != "whole":
            writer.close()
            writer = None
        await asyncio.sleep(max(0.0, CLIENTS / RATE_PER_S - (time.monotonic() - began_s)))


async def late_body(log: ClientLog, half_sent: asyncio.Semaphore, go_on: asyncio.Event) -> str:
    """A request with its head and half of its body sent before `go_on`, and the rest after."""
    reader, writer = await log.connect()
    data = asking("/short", "late-body", "POST")
    writer.write(data[:-3])
    await writer.drain()
    half_sent.release()
    await go_on.wait()
    writer.write(data[-3:])
    return await one_request(reader, "late-body")


async def seconds_until_closed(reader: asyncio.StreamReader, since: Callable[[], float]) -> float:
    with suppress(ConnectionError):
        assert await reader.read() == b""
    return time.monotonic() - since()


async def shut_down_under_load(balancer: BalancerProcess, log: ClientLog) -> tuple[list[float], list[str], float]:
    """SIGTERM under load: seconds until each idle connection closed, ends of late bodies, seconds until the exit."""
    clients = [asyncio.create_task(steady_client(number, log)) for number in range(CLIENTS)]
    idle = [await log.connect() for _ in range(IDLE)]
    for number, (reader, writer) in enumerate(idle[: IDLE // 2]):
        writer.write(asking("/short", f"idle-{number}"))
        assert await one_request(reader, f"idle-{number}") == "whole"
    await asyncio.sleep(1.5)  # load, not a wait
    half_sent, go_on = asyncio.Semaphore(0), asyncio.Event()
    late = [asyncio.create_task(late_body(log, half_sent, go_on)) for _ in range(5)]
    for _ in late:
        await half_sent.acquire()
    reader, writer = await log.connect()
    writer.write(asking("/stream?chunks=100&gap_s=0.01", "long"))
    await reader.readuntil(b"data: word")
    stopped_s = time.monotonic()
    balancer.child.signal(SIGTERM)
    closed_s = await asyncio.gather(*(seconds_until_closed(each, lambda: stopped_s) for each, _ in idle))
    assert not accepts(HOST, balancer.port), "listens on"
    assert balancer.child.status is None
    go_on.set()
    await reader.readuntil(b"\r\n0\r\n\r\n")
    late_ends = await asyncio.gather(*late)
    assert await asyncio.to_thread(balancer.child.wait, PATIENCE_S)
    took_s = time.monotonic() - stopped_s
    await asyncio.gather(*clients)
    for writer in log.writers:
        writer.close()
    return closed_s, late_ends, took_s


@pytest.mark.slow
def test_sigterm_under_load_loses_nothing(tmp_path: Path) -> None:
    with plain_backends(tmp_path, 2, delay_s=0.05) as backends:
        with balancing(tmp_path, [item.url for item in backends]) as balancer:
            log = ClientLog(balancer.port)
            closed_s, late_ends, took_s = asyncio.run(shut_down_under_load(balancer, log))
            assert balancer.child.status == 0
        reached = {name for item in backends for name, what, _ in item.events() if what == "asked"}
    counts = log.count()
    assert counts["cut"] == 0, counts
    assert counts["whole"] + counts["whole+close"] > RATE_PER_S
    assert counts["whole+close"] > 0, "no request was in flight"
    read = {name for name in reached if name in log.ends}
    assert {name for name in read if not log.ends[name].startswith("whole")} == set()
    assert late_ends == ["whole+close"] * 5
    assert max(closed_s) < 0.5
    assert took_s < 10
