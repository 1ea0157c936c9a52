"""Reports of both engines: progress of a job, backends by name, clients that abort on purpose, dropped arrivals."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from harness.evidence import records
from harness.scenario.model import Chats, Failure, Stream
from harness.scenario.request_mix import Content
from tests.harness.load.conftest import PATIENCE_S, LoadProcess, RawServer, ReceivedRequest, Reply, failures, stream

MOST_FILES, SPARE_FILES = 130, 100


@pytest.fixture(scope="module", params=["harness.load.locust_engine", "harness.load.asyncio_engine"])
def load_process(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadProcess]:
    """Each engine, in a process with a low limit of open files."""
    process = LoadProcess.start(tmp_path_factory.mktemp("progress"), request.param, most_files=MOST_FILES)
    yield process
    process.close()


def reported(
    process: LoadProcess, url: str, *streams: Stream
) -> tuple[list[dict[str, Any]], dict[str, Any], records.Rows]:
    """Progress reports of a job, its answer and its records."""
    out = process.submit(url, *streams, news_s=0.1)
    progress = []
    while "done" not in (answer := process.answer()):
        progress.append(answer["news"])
    return progress, answer, records.read_requests(out)


def leaving(requests: int, chats: Chats | None = None) -> Stream:
    """Requests whose clients abort after 0.1 s."""
    content = Content(abort_share=1.0, abort_after_s=0.1)
    return stream(requests, 100.0, content=content, timeout_s=15.0, chats=chats)


def hang(request: ReceivedRequest) -> Reply:
    return Reply(then="hang")


def test_progress_of_a_running_job(load_process: LoadProcess, server: RawServer) -> None:
    def reply(request: ReceivedRequest) -> Reply:
        if int(request.id[-1], 16) % 2:
            return RawServer.ok(request)
        return Reply(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")

    server.reply = reply
    progress, answer, rows = reported(load_process, server.url, stream(100, 100.0))
    assert len(progress) > 3
    for before, after in pairwise(progress):
        assert after["failed"] == before["failed"] + after["failed_now"]
        assert after["at_s"] > before["at_s"] and after["ended"] >= before["ended"] and after["sent"] >= after["ended"]
    last = progress[-1]
    # Requests may end in another order than they began.
    assert last["failed"] == pytest.approx(last["ended"] / 2, abs=10)
    assert 0 < last["ended"] <= 100 == answer["sent"] and last["dropped"] == 0
    good = [one for one in progress if one["p50_s"] is not None]
    assert good and all(0 < one["p50_s"] <= one["p99_s"] < 5.0 and one["per_s"] > 0 for one in good)
    assert len(rows) == 100


def test_no_progress_reports_unless_requested(load_process: LoadProcess, server: RawServer) -> None:
    answer, _ = load_process.run(server.url, stream(30, 100.0))
    assert answer["done"]


@pytest.mark.slow
def test_a_client_that_aborts_on_purpose_has_not_failed(load_process: LoadProcess, server: RawServer) -> None:
    server.reply = hang
    progress, answer, rows = reported(load_process, server.url, leaving(5), stream(5, 100.0, timeout_s=3.0))
    assert any(one["ended"] >= 5 for one in progress)
    assert all(one["failed"] <= max(0, one["ended"] - 5) for one in progress)
    assert (answer["sent"], answer["failed"]) == (10, 5)
    assert set(rows["failure"]) == {Failure.TIMEOUT}  # records keep the observed result


def test_a_virtual_user_that_aborts_on_purpose_has_not_failed(load_process: LoadProcess, server: RawServer) -> None:
    server.reply = hang
    progress, answer, rows = reported(load_process, server.url, leaving(4, chats=Chats(2, 0.0, 0.5)))
    assert set(rows["failure"]) == {Failure.TIMEOUT}
    assert answer["sent"] == len(rows) > 2
    assert answer["failed"] == 0 and {one["failed"] for one in progress} == {0}


def test_unnamed_backends_are_named_by_their_answers(load_process: LoadProcess, server: RawServer) -> None:
    out = load_process.submit(server.url, stream(3), leaving(2), backends=())
    assert load_process.answer()["done"]
    about = records.read_about(out)
    assert about["backends"] == ["gpu-1"]
    rows = records.read_requests(out)
    assert set(rows[rows["stream"] == 0]["answered_by"]) == {0}
    assert len(about["leaving"]) == 2


def test_beyond_the_cap_arrivals_are_dropped_and_recorded(load_process: LoadProcess, server: RawServer) -> None:
    opened = threading.Event()

    def reply(request: ReceivedRequest) -> Reply:
        assert opened.wait(PATIENCE_S)
        return RawServer.ok(request)

    server.reply = reply
    cap = MOST_FILES - SPARE_FILES
    out = load_process.submit(server.url, stream(50, 1000.0, timeout_s=60.0), news_s=0.1)
    while load_process.answer()["news"]["dropped"] < 50 - cap:
        assert len(server.requests) <= cap
    opened.set()
    until_s = time.monotonic() + PATIENCE_S
    while "done" not in (answer := load_process.answer()):
        assert answer["news"]["sent"] == cap
        assert time.monotonic() < until_s, "the job waits for dropped arrivals"
    rows = records.read_requests(out)
    assert (answer["sent"], answer["dropped"], answer["requests"]) == (cap, 50 - cap, 50)
    assert list(rows["failure"]) == [Failure.NONE] * cap + [Failure.NOT_SENT] * (50 - cap)
    answer, rows = load_process.run(server.url, stream(50, 1000.0))  # the next job has the whole cap again
    assert failures(rows) == {Failure.NONE}
    assert answer["dropped"] == 0
