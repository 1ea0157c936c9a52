import asyncio
import json
import logging
import socket
from typing import Any

import pytest

from mockgpu.gpu.catalogue import Gpu, Model, Setup

SETUP = Setup(Gpu("box", 1_000, 4, None), Model("any", 0, 0.0, 10_000.0, 0.001))
# The first bytes of a gRPC client, with an empty SETTINGS frame.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"


async def exchange(port: int, data: bytes) -> bytes:
    """All bytes received until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "data",
    [
        PREFACE,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64,  # TLS
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nBad Header: y\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_1_is_answered_400_and_closed(
    serve: Any, data: bytes, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def test(it: Any) -> None:
        answer = await exchange(it.port, data)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400"))
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
        assert (await it.health())["ready"]

    with caplog.at_level(logging.INFO):
        serve(test, SETUP)
    assert caplog.records == []
    assert "Traceback" not in capfd.readouterr().err


def test_a_preface_on_an_open_connection_harms_no_other(serve: Any) -> None:
    async def test(it: Any) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
        writer.write(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await reader.readuntil(b"\r\n\r\n")
        writer.write(PREFACE)
        assert b"400" in await asyncio.wait_for(reader.read(), 10)
        writer.close()
        for _ in range(50):
            await exchange(it.port, PREFACE)
        assert (await it.health())["ready"]

    serve(test, SETUP)


def test_a_bug_is_told_in_the_log_and_answered_500(
    serve: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("planted")

    async def test(it: Any) -> None:
        monkeypatch.setattr("mockgpu.api.wire.health", broken)
        status, body = await it.get("/health")
        assert (status, body["error"]["type"]) == (500, "internal_error")
        assert "GET /health failed" in caplog.text and "planted" in caplog.text

    serve(test, SETUP)


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_connection_is_closed_where_its_client_wants_it(serve: Any, version: bytes, stream: bool) -> None:
    async def test(it: Any) -> None:
        body = json.dumps({"prompt": "a", "max_tokens": 3, "stream": stream}).encode()
        head = b"POST /v1/completions " + version + b"\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        answer = await exchange(it.port, head % len(body) + body)
        head, _, rest = answer.partition(b"\r\n\r\n")
        assert b"Connection: close" in head
        assert rest.count(b" the") == 3
        assert (b"chunked" in head) == (stream and version == b"HTTP/1.1")
        if stream:
            assert b"data: [DONE]\n\n" in rest

    serve(test, SETUP)


def test_two_requests_at_once_on_one_connection_are_answered_in_order(serve: Any) -> None:
    async def test(it: Any) -> None:
        def request(tokens: int, close: bytes = b"") -> bytes:
            body = json.dumps({"prompt": "a", "max_tokens": tokens}).encode()
            return (
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n" % (close, len(body)) + body
            )

        answer = await exchange(it.port, request(5) + request(1, b"Connection: close\r\n"))
        assert [part.count(b" the") for part in answer.split(b"HTTP/1.1 200 OK")] == [0, 5, 1]

    serve(test, SETUP)


TOKENS = 5_000  # over a megabyte


def test_a_slow_reader_gets_all_of_a_stream(serve: Any) -> None:
    async def test(it: Any) -> None:
        body = json.dumps({"prompt": "a", "max_tokens": TOKENS, "stream": True}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port, limit=1024)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        text = b""
        while not text.endswith(b"0\r\n\r\n"):
            text += await reader.read(65_536)
            await asyncio.sleep(0)
        writer.close()
        assert text.count(b" the") == TOKENS
        assert [b'"token": %d,' % number in text for number in (0, TOKENS - 1)] == [True, True]

    serve(test, Setup(Gpu("box", 1_000, 4, None), Model("any", 0, 0.0, 10_000.0, 0.0)))
