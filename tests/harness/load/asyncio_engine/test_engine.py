"""The aiohttp engine: the tests of the Locust process, run against it, and what is its own.

Both engines are processes that speak the same words and write the same records, so what holds for one is asked of the
other by the very same tests.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.evidence import records
from harness.load.asyncio_engine.engine import AsyncioEngine
from harness.load.job import LoadJob
from harness.scenario.model import Connections, Failure, Load, Method
from harness.scenario.request_mix import Content
from tests.harness.load.conftest import NONCE, PATIENCE_S, LoadProcess, RawServer, Reply, Seen
from tests.harness.load.locust_engine.test_process import (
    CHUNKED,
    FULL,
    assert_never_early,
    failures,
    stream,
)

ENGINE = "harness.load.asyncio_engine"


@pytest.fixture(scope="module")
def load_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadProcess]:
    """The engine in the place of the Locust process."""
    process = LoadProcess.start(tmp_path_factory.mktemp("engine"), ENGINE)
    yield process
    process.close()


@pytest.mark.parametrize(
    ("reply", "failure", "status"),
    [
        (Reply(then="reset"), Failure.RESET, 0),
        (Reply(then="close"), Failure.CLOSED, 0),
        (Reply(FULL + b"half", "close"), Failure.TRUNCATED, 200),
        (Reply(FULL, "close"), Failure.TRUNCATED, 200),
        (Reply(CHUNKED + b"4\r\nhalf\r\n", "close"), Failure.TRUNCATED, 200),
        (Reply(b"HTTP/1.1 200 OK\r\nConte", "close"), Failure.CLOSED, 0),
        (Reply(then="hang"), Failure.TIMEOUT, 0),
        (Reply(FULL + b"half", "hang"), Failure.TIMEOUT, 200),
        (Reply(b"no HTTP at all\r\n\r\n", "hang"), Failure.OTHER, 0),
        (Reply(b"HTTP/1.1 200 OK\r\n\r\nuntil the end", "close"), Failure.NONE, 200),
        (Reply(b"HTTP/1.1 100 Continue\r\n\r\n" + FULL + b"0123456789"), Failure.NONE, 200),
        (Reply(CHUNKED + b"4\r\nhalf\r\n0\r\n\r\n"), Failure.NONE, 200),
        (Reply(b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"), Failure.NONE, 302),
    ],
    ids=lambda value: value.name if isinstance(value, Failure) else None,
)
def test_each_ending_is_named_and_sent_once_here_too(
    load_process: LoadProcess, server: RawServer, reply: Reply, failure: Failure, status: int
) -> None:
    server.reply = lambda _: reply
    answer, rows = load_process.play(server.url, stream(6, 400.0, timeout_s=0.4 if reply.then == "hang" else 5.0))
    assert failures(rows) == {failure}
    assert set(rows["status"]) == {status}
    assert len(server.seen) == answer["sent"] == 6
    assert answer["failed"] == (0 if failure is Failure.NONE else 6)
    assert_never_early(rows)


@pytest.mark.parametrize("method", [Method.GET, Method.POST])
def test_a_pool_whose_connections_are_dropped_repeats_nothing(
    load_process: LoadProcess, server: RawServer, method: Method
) -> None:
    server.reply = lambda seen: Reply(then="close") if seen.nth else RawServer.ok(seen)
    answer, rows = load_process.play(server.url, stream(60, 100.0, methods=(method,), connections=Connections.KEPT))
    assert failures(rows) == {Failure.NONE, Failure.STALE_CONNECTION}
    assert len(server.seen) == answer["sent"] == 60
    assert len({seen.id for seen in server.seen}) == 60


def test_workers_share_a_job(load_process: LoadProcess, server: RawServer) -> None:
    numbers = [
        set(load_process.play(server.url, stream(20), worker=worker, workers=2)[1]["number"]) for worker in (0, 1)
    ]
    assert not numbers[0] & numbers[1] and numbers[0] | numbers[1] == set(range(20))


def test_a_stop_ends_what_waits_for_its_one_connection_too(server: RawServer, tmp_path: Path) -> None:
    stopped = threading.Event()

    def reply(seen: Seen) -> Reply:
        assert stopped.wait(PATIENCE_S)
        return RawServer.ok(seen)

    server.reply = reply
    load = Load((stream(10, 1000.0, timeout_s=15.0, connections=Connections.ONE),))
    job = LoadJob(load, 1, NONCE, server.url, time.monotonic() + 0.1, (), str(tmp_path / "out"))

    async def play() -> dict[str, Any]:
        engine = AsyncioEngine(job)
        playing = asyncio.create_task(engine.play())
        await asyncio.to_thread(server.wait_for, 1)
        await asyncio.sleep(0.2)  # by now all are due, and wait for the first one's answer
        engine.stop()
        stopped.set()
        return await playing

    answer = asyncio.run(play())
    assert (answer["sent"], answer["requests"], len(server.seen)) == (1, 10, 1)


def test_leaves_at_the_end_of_input_and_on_sigterm(tmp_path: Path, server: RawServer) -> None:
    process = LoadProcess.start(tmp_path, ENGINE)
    out = process.ask(server.url, stream(200, 10.0))
    server.wait_for(1)
    assert process.child.stdin
    process.child.stdin.close()
    assert process.child.wait(PATIENCE_S) == 0
    assert len(records.read_requests(out)) == 200
    process.close()
    process = LoadProcess.start(tmp_path, ENGINE)
    process.child.send_signal(signal.SIGTERM)
    assert process.child.wait(PATIENCE_S) == 0
    process.close()


def test_a_stream_is_read_to_its_end(load_process: LoadProcess, server: RawServer) -> None:
    def reply(seen: Seen) -> Reply:
        server.connections[seen.connection].sendall(CHUNKED + b"4\r\none \r\n")
        time.sleep(0.2)
        return Reply(b"3\r\ntwo\r\n0\r\n\r\n")

    server.reply = reply
    _, rows = load_process.play(server.url, stream(3, 100.0))
    assert failures(rows) == {Failure.NONE}
    assert set(rows["bytes"]) == {7}
    assert (rows["end_s"] - rows["first_byte_s"] > 0.15).all()


def test_a_client_gives_up_when_its_arrival_says_so(load_process: LoadProcess, server: RawServer) -> None:
    server.reply = lambda _: Reply(then="hang")
    content = Content(abort_share=1.0, abort_after_s=0.2)
    _, rows = load_process.play(server.url, stream(3, 100.0, content=content, timeout_s=15.0))
    assert failures(rows) == {Failure.TIMEOUT}
    waited_s = rows["end_s"] - rows["sent_s"]
    assert (waited_s > 0.15).all() and (waited_s < 10.0).all()
