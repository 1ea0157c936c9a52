"""The aiohttp engine: the table of endings that it shares with the Locust process, and tests of its own."""

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
from tests.harness.load.conftest import (
    BOTH,
    NONCE,
    PATIENCE_S,
    LoadProcess,
    RawServer,
    ReceivedRequest,
    Reply,
    failures,
    stream,
)
from tests.harness.load.endings import CHUNKED, ENDINGS, Ending, assert_recorded_once

ENGINE = "harness.load.asyncio_engine"


@pytest.fixture(scope="module")
def load_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadProcess]:
    """The engine in the place of the Locust process."""
    process = LoadProcess.start(tmp_path_factory.mktemp("engine"), ENGINE)
    yield process
    process.close()


@pytest.mark.parametrize("ending", ENDINGS, ids=str)
def test_each_ending_is_recorded_and_sent_once(load_process: LoadProcess, server: RawServer, ending: Ending) -> None:
    assert_recorded_once(load_process, server, ending, ending.aiohttp or ending.result)


@pytest.mark.parametrize("method", BOTH)
def test_a_pool_whose_connections_are_dropped_repeats_nothing(
    load_process: LoadProcess, server: RawServer, method: Method
) -> None:
    server.reply = lambda request: Reply(then="close") if request.nth else RawServer.ok(request)
    answer, rows = load_process.run(server.url, stream(60, 100.0, methods=(method,), connections=Connections.KEPT))
    assert failures(rows) == {Failure.NONE, Failure.STALE_CONNECTION}
    assert len(server.requests) == answer["sent"] == 60
    assert len({request.id for request in server.requests}) == 60


def test_workers_share_a_job(load_process: LoadProcess, server: RawServer) -> None:
    numbers = [
        set(load_process.run(server.url, stream(20), worker=worker, workers=2)[1]["number"]) for worker in (0, 1)
    ]
    assert not numbers[0] & numbers[1] and numbers[0] | numbers[1] == set(range(20))


def test_a_stop_ends_requests_that_wait_for_their_only_connection(server: RawServer, tmp_path: Path) -> None:
    stopped = threading.Event()

    def reply(request: ReceivedRequest) -> Reply:
        assert stopped.wait(PATIENCE_S)
        return RawServer.ok(request)

    server.reply = reply
    load = Load((stream(10, 1000.0, timeout_s=15.0, connections=Connections.ONE),))
    job = LoadJob(load, 1, NONCE, server.url, time.monotonic() + 0.1, (), str(tmp_path / "out"))

    async def run() -> dict[str, Any]:
        engine = AsyncioEngine(job)
        running = asyncio.create_task(engine.run())
        await asyncio.to_thread(server.wait_for, 1)
        await asyncio.sleep(0.2)  # all are due by then, and wait for the answer to the first
        engine.stop()
        stopped.set()
        return await running

    answer = asyncio.run(run())
    assert (answer["sent"], answer["requests"], len(server.requests)) == (1, 10, 1)


def test_leaves_at_the_end_of_input_and_on_sigterm(tmp_path: Path, server: RawServer) -> None:
    process = LoadProcess.start(tmp_path, ENGINE)
    out = process.submit(server.url, stream(200, 10.0))
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
    def reply(request: ReceivedRequest) -> Reply:
        server.connections[request.connection].sendall(CHUNKED + b"4\r\none \r\n")
        time.sleep(0.2)
        return Reply(b"3\r\ntwo\r\n0\r\n\r\n")

    server.reply = reply
    _, rows = load_process.run(server.url, stream(3, 100.0))
    assert failures(rows) == {Failure.NONE}
    assert set(rows["bytes"]) == {7}
    assert (rows["end_s"] - rows["first_byte_s"] > 0.15).all()


def test_a_client_aborts_at_the_time_of_its_arrival(load_process: LoadProcess, server: RawServer) -> None:
    server.reply = lambda _: Reply(then="hang")
    content = Content(abort_share=1.0, abort_after_s=0.2)
    _, rows = load_process.run(server.url, stream(3, 100.0, content=content, timeout_s=15.0))
    assert failures(rows) == {Failure.TIMEOUT}
    waited_s = rows["end_s"] - rows["sent_s"]
    assert (waited_s > 0.15).all() and (waited_s < 10.0).all()
