"""The driver process in front of raw backends: attempts, passed-on answers, and broken transfers."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from tests.harness.live.helpers import HOST, PATIENCE_S, Behave, Call, DriverProcess, fine, free_ports, hang
from tests.harness.proxy.conftest import Serve

BROKEN = (http.client.HTTPException, OSError)
# --- attempts ---------------------------------------------------------------------------------------------


def dropping(dropped: Callable[[Call], bool]) -> Behave:
    """Answers, or closes without an answer after reading the request, as `dropped` says."""

    async def behave(call: Call) -> None:
        if dropped(call):
            call.writer.close()
        else:
            await call.answer()

    return behave


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("warm", [False, True])
def test_one_attempt_for_each_request(driver: DriverProcess, serve: Serve, method: str, warm: bool) -> None:
    backend = serve(dropping(lambda call: not warm or call.nth > 0))
    driver.use(a=backend.port)
    body = b"{}" if method == "POST" else b""
    expected = [200, 502, 200, 502] if warm else [502, 502, 502, 502]
    assert [driver.call(method, f"/{number}", body).status for number in range(4)] == expected
    paths = [call.head.split()[1] for call in backend.calls]
    assert paths == ["/0", "/1", "/2", "/3"]
    assert [call.nth for call in backend.calls] == ([0, 1, 0, 1] if warm else [0, 0, 0, 0])


def test_the_client_library_alone_would_send_again(serve: Serve) -> None:
    backend = serve(dropping(lambda call: call.nth > 0))

    async def twice() -> list[int]:
        async with aiohttp.ClientSession() as client:
            statuses = []
            for number in range(2):
                async with client.get(f"http://{HOST}:{backend.port}/{number}") as response:
                    await response.read()
                    statuses.append(response.status)
            return statuses

    assert asyncio.run(twice()) == [200, 200]
    assert [call.head.split()[1] for call in backend.calls] == ["/0", "/1", "/1"]


def test_refused(driver: DriverProcess) -> None:
    driver.use(a=free_ports(1)[0])
    answer = driver.call()
    assert (answer.status, json.loads(answer.body)) == (502, {"error": {"message": "attempt at a: refused"}})


def test_reset_before_the_answer(driver: DriverProcess, serve: Serve) -> None:
    async def reset(call: Call) -> None:
        call.writer.transport.abort()

    driver.use(a=serve(reset).port)
    assert driver.call("POST", body=b"{}").status == 502


def test_no_http(driver: DriverProcess, serve: Serve) -> None:
    async def babble(call: Call) -> None:
        await call.write(b"what is HTTP?\r\n\r\n")

    driver.use(a=serve(babble).port)
    assert driver.call().status == 502


def test_a_hanging_backend_is_given_up_after_the_timeout(tmp_path: Path, serve: Serve) -> None:
    driver = DriverProcess(tmp_path, "Impatient")
    try:
        driver.await_listening()
        backend = serve(hang)
        driver.use(a=backend.port)
        began_s = time.monotonic()
        assert driver.call().status == 504
        assert time.monotonic() - began_s >= 0.3
        assert backend.closed.wait(PATIENCE_S)

        async def stall(call: Call) -> None:
            await call.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000)
            await call.until_closed()

        driver.use(b=serve(stall).port)
        with pytest.raises(BROKEN):
            driver.call()
    finally:
        driver.child.stop()


def test_own_answers_say_when_to_come_again(driver: DriverProcess) -> None:
    answer = driver.call()
    assert (answer.status, answer.headers["retry-after"]) == (503, "2")
    assert json.loads(answer.body) == {"error": {"message": "no backend is ready"}}


# --- how transfers end --------------------------------------------------------------------------------------


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@pytest.mark.parametrize("size", [10, 65_536])
@pytest.mark.parametrize("chunked", [True, False])
def test_chunks_pass_one_by_one(driver: DriverProcess, serve: Serve, chunked: bool, size: int) -> None:
    step = threading.Semaphore(0)

    async def behave(call: Call) -> None:
        form = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {3 * size}"
        await call.write(f"HTTP/1.1 200 OK\r\n{form}\r\n\r\n".encode())
        for letter in (b"a", b"b", b"c"):
            assert await asyncio.to_thread(step.acquire, timeout=PATIENCE_S)
            await call.write(chunk(letter * size) if chunked else letter * size)
        if chunked:
            await call.write(b"0\r\n\r\n")

    driver.use(a=serve(behave).port)
    connection = driver.connect()
    connection.request("GET", "/")
    response = connection.getresponse()
    assert response.status == 200  # the head is passed on before any body
    for letter in (b"a", b"b", b"c"):
        step.release()
        assert response.read(size) == letter * size
    assert response.read() == b""
    connection.close()


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    "part",
    [
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b"x" * 100),
        b"Transfer-Encoding: chunked\r\n\r\n" + b"64\r\nhalf",
        b"Content-Length: 1000\r\n\r\n",
        b"Content-Length: 1000\r\n\r\nhalf",
        b"Content-Length: 1000000\r\n\r\n",
        b"Content-Length: 1000000\r\n\r\n" + b"x" * 300_000,
    ],
)  # fmt: skip
def test_a_backend_that_dies_in_its_answer_breaks_the_transfer(
    driver: DriverProcess, serve: Serve, part: bytes, reset: bool
) -> None:
    async def behave(call: Call) -> None:
        await call.write(b"HTTP/1.1 200 OK\r\n" + part)
        if reset:
            call.writer.transport.abort()
        else:
            call.writer.close()

    backend = serve(behave)
    driver.use(a=backend.port)
    with pytest.raises(BROKEN):
        driver.call()
    assert len(backend.calls) == 1
    backend.behave = fine
    assert driver.call().body == b"fine"


@pytest.mark.parametrize("rest", [b"Content-Length: 1000\r\n\r\nhalf", b"Content-Length: 1000000\r\n\r\nhalf"])
def test_the_client_of_a_cut_answer_sees_that_it_had_begun(driver: DriverProcess, serve: Serve, rest: bytes) -> None:
    """A plain close would look like an idle connection's close, and as if no attempt had been made."""

    async def behave(call: Call) -> None:
        await call.write(b"HTTP/1.1 200 OK\r\nX-Mine: yes\r\n" + rest)
        call.writer.close()

    driver.use(a=serve(behave).port)
    with socket.create_connection((HOST, driver.port), timeout=PATIENCE_S) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        got = b""
        while block := client.recv(65_536):
            got += block
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and b"X-Mine: yes" in head
    assert b"half".startswith(body)


def test_a_client_of_old_is_reset_when_its_answer_breaks_off(driver: DriverProcess, serve: Serve) -> None:
    """HTTP/1.0 has no chunks, so an answer of unknown length ends with its connection."""
    died = threading.Event()

    async def behave(call: Call) -> None:
        await call.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"x" * 100))
        assert await asyncio.to_thread(died.wait, PATIENCE_S)
        call.writer.close()

    driver.use(a=serve(behave).port)
    with socket.create_connection((HOST, driver.port), timeout=PATIENCE_S) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        got = b""
        while not got.endswith(b"x" * 100):
            got += client.recv(65_536)
        died.set()
        with pytest.raises(ConnectionResetError):
            client.recv(65_536)


# --- clients that leave -----------------------------------------------------------------------------------


async def flood(call: Call) -> None:
    """An endless answer."""
    await call.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        await call.write(chunk(b"x" * 100_000))


async def trickle(call: Call) -> None:
    """Only the first chunk of an answer."""
    await call.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"x"))
    await call.until_closed()


def leave(client: socket.socket, reset: bool) -> None:
    if reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("behave", [hang, trickle, flood])
def test_a_client_that_leaves_frees_the_backend(
    driver: DriverProcess, serve: Serve, behave: Behave, reset: bool
) -> None:
    backend = serve(behave)
    driver.use(a=backend.port)
    client = socket.create_connection((HOST, driver.port), timeout=PATIENCE_S)
    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    backend.await_call()
    if behave is not hang:
        assert client.recv(10)
    assert not backend.closed.is_set()
    leave(client, reset)
    assert backend.closed.wait(PATIENCE_S)  # an attempt may take 60 s
    assert len(backend.calls) == 1


@pytest.mark.parametrize("behave", [hang, trickle, flood])
def test_a_client_that_leaves_is_not_the_backends_fault(tmp_path: Path, serve: Serve, behave: Behave) -> None:
    driver = DriverProcess(tmp_path, "Strict")
    try:
        driver.await_listening()
        for reset in (True, False, True, False):
            backend = serve(behave)
            driver.use(a=backend.port)
            client = socket.create_connection((HOST, driver.port), timeout=PATIENCE_S)
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            backend.await_call()
            if behave is not hang:
                assert client.recv(10)
            leave(client, reset)
            assert backend.closed.wait(PATIENCE_S)
            backend.behave = fine
            assert driver.call().status == 200, "ejected"
    finally:
        driver.child.stop()


# --- the admin interface ----------------------------------------------------------------------------------


def test_put_backends_changes_who_is_asked(driver: DriverProcess, serve: Serve) -> None:
    one, other = serve(fine), serve(fine)
    driver.use(a=one.port)
    assert driver.call().status == 200
    driver.use(b=other.port)
    assert driver.call().status == 200
    driver.use(a=other.port)
    assert driver.call().status == 200
    assert (len(one.calls), len(other.calls)) == (1, 2)
    driver.use()
    assert driver.call().status == 503


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"\xff", b"7", b"null", b'"text"', b"[7]", b'{"id": "a"}', b'[{"id": "a"}]',
        b'[{"id": "a", "host": "127.0.0.1", "port": 1}]',
    ],
)  # fmt: skip
def test_nonsense_is_refused_and_changes_nothing(driver: DriverProcess, serve: Serve, body: bytes) -> None:
    backend = serve(fine)
    driver.use(a=backend.port)
    answer = driver.put(body)
    assert answer.status == 400
    assert json.loads(answer.body)["error"].startswith("expected a list of id, host, port, weight: ")
    assert driver.call().status == 200
