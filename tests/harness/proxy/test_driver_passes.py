"""Headers and bodies pass the driver unchanged in both directions, without additions or other clients' data."""

from __future__ import annotations

import gzip
import json
import socket

import pytest

from tests.harness.live.helpers import HOST, PATIENCE_S, Call, DriverProcess, fine
from tests.harness.proxy.conftest import Serve


def test_requests_arrive_as_they_were_sent(driver: DriverProcess, serve: Serve) -> None:
    backend = serve(fine)
    driver.use(a=backend.port)
    body = bytes(range(256)) * 5000
    connection = driver.connect()
    connection.request(
        "POST",
        "/a%20b/c?d=%2F&e",
        body,
        {"x-one": "1", "cookie": "k=v", "te": "x", "Keep-Alive": "9", "Connection": "x-hop", "x-hop": "1"},
    )
    assert connection.getresponse().read() == b"fine"
    connection.putrequest("GET", "/bare", skip_accept_encoding=True)
    connection.endheaders()
    assert connection.getresponse().read() == b"fine"
    connection.close()
    first, second = backend.calls
    assert first.head.startswith("POST /a%20b/c?d=%2F&e HTTP/1.1\r\n")
    assert first.body == body
    lines = first.head.lower().split("\r\n")
    assert {"x-one: 1", "cookie: k=v", f"content-length: {len(body)}", f"host: {HOST}:{backend.port}"} <= set(lines)
    assert not [line for line in lines if line.startswith(("te:", "keep-alive:", "connection:", "x-hop:"))]
    names = {line.partition(":")[0].lower() for line in second.head.split("\r\n")[1:] if line}
    assert names == {"host"}, "nothing that the client did not send"


@pytest.mark.parametrize("status", ["200 OK", "204 No Content", "301 Moved", "404 Not Found", "503 Busy"])
def test_answers_come_back_as_they_were(driver: DriverProcess, serve: Serve, status: str) -> None:
    body = b"" if status.startswith("204") else b"said"

    async def behave(call: Call) -> None:
        await call.answer(
            body, status, "X-One: 1\r\nContent-Encoding: gzip\r\nKeep-Alive: 7\r\nConnection: x-hop\r\nX-Hop: 1\r\n"
        )

    backend = serve(behave)
    driver.use(a=backend.port)
    answer = driver.call()
    assert (answer.status, answer.body) == (int(status[:3]), body)
    assert (answer.headers["x-one"], answer.headers["content-encoding"]) == ("1", "gzip")
    assert not {"keep-alive", "x-hop"} & answer.headers.keys()
    assert len(backend.calls) == 1


def test_compressed_bodies_pass_as_they_are(driver: DriverProcess, serve: Serve) -> None:
    backend = serve(fine)
    driver.use(a=backend.port)
    body = gzip.compress(b"asked" * 100)
    connection = driver.connect()
    connection.request("POST", "/", body, {"content-encoding": "gzip"})
    assert connection.getresponse().read() == b"fine"
    connection.close()
    assert backend.calls[0].body == body
    assert f"content-length: {len(body)}" in backend.calls[0].head.lower()


def test_one_clients_cookies_do_not_reach_the_backend_with_another(driver: DriverProcess, serve: Serve) -> None:
    async def behave(call: Call) -> None:
        await call.answer(headers="Set-Cookie: session=secret; Path=/\r\n")

    backend = serve(behave)
    # The library's default cookie jar ignores IP addresses, but not host names.
    assert driver.put(json.dumps([{"id": "a", "url": f"http://localhost:{backend.port}"}]).encode()).status == 200
    assert driver.call().headers["set-cookie"] == "session=secret; Path=/"
    assert driver.call().status == 200
    assert [call for call in backend.calls if "cookie" in call.head.lower()] == []


def test_head_tells_the_length_of_what_get_would_bring(driver: DriverProcess, serve: Serve) -> None:
    async def behave(call: Call) -> None:
        await call.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n")

    driver.use(a=serve(behave).port)
    connection = driver.connect()
    for _ in range(2):
        connection.request("HEAD", "/")
        response = connection.getresponse()
        assert (response.status, response.headers["content-length"], response.read()) == (200, "1234", b"")
    connection.close()


def raw(driver: DriverProcess, data: bytes, until_text: bytes) -> bytes:
    """The reply to these bytes, up to a text or the end."""
    with socket.create_connection((HOST, driver.port), timeout=PATIENCE_S) as client:
        client.sendall(data)
        got = b""
        while until_text not in got and (block := client.recv(65_536)):
            got += block
    return got


def test_who_waits_for_leave_to_send_a_body_gets_it(driver: DriverProcess, serve: Serve) -> None:
    backend = serve(fine)
    driver.use(a=backend.port)
    with socket.create_connection((HOST, driver.port), timeout=PATIENCE_S) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"body")
        assert client.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")
    assert backend.calls[0].body == b"body"
    assert "expect" not in backend.calls[0].head.lower()


@pytest.mark.parametrize("line", [b"OPTIONS * HTTP/1.1", b"CONNECT elsewhere:80 HTTP/1.1"])
def test_a_target_that_is_no_path_goes_nowhere(driver: DriverProcess, serve: Serve, line: bytes) -> None:
    backend = serve(fine)
    driver.use(a=backend.port)
    assert raw(driver, line + b"\r\nHost: x\r\n\r\n", b"}").startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert backend.calls == []


def test_an_absolute_target_is_asked_for_by_its_path(driver: DriverProcess, serve: Serve) -> None:
    backend = serve(fine)
    driver.use(a=backend.port)
    assert b"fine" in raw(driver, b"GET http://elsewhere:80/a?b=c HTTP/1.1\r\nHost: elsewhere\r\n\r\n", b"fine")
    assert backend.calls[0].head.startswith("GET /a?b=c HTTP/1.1\r\n")
