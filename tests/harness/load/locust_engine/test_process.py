"""The Locust process as its parent uses it, against servers that count the requests that arrive."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from harness.evidence import records
from harness.scenario.model import Chats, Connections, Echo, Failure, Keys, Kind, Method
from tests.harness.live.helpers import until
from tests.harness.load.conftest import (
    BOTH,
    NONCE,
    PATIENCE_S,
    ROOT,
    LoadProcess,
    RawServer,
    ReceivedRequest,
    Reply,
    assert_never_early,
    failures,
    stream,
)
from tests.harness.load.endings import ENDINGS, Ending, assert_recorded_once
from tests.processes import runs

# --- records -------------------------------------------------------------------------------------


def test_records_agree_with_the_server(load_process: LoadProcess, server: RawServer) -> None:
    answer, rows = load_process.run(server.url, stream(20, keys=Keys(5, "sweep")))
    assert answer["requests"] == answer["sent"] == len(rows) == len(server.requests) == 20
    assert answer["failed"] == 0
    assert failures(rows) == {Failure.NONE}
    assert set(rows["status"]) == {200}
    assert set(rows["echo"]) == {Echo.OWN}
    assert set(rows["answered_by"]) == {1}
    assert set(rows["bytes"]) == {len(b'{"id": "sy-0123456789abc"}')}
    assert list(rows["number"]) == list(range(20))
    assert list(rows["key"][:6]) == [0, 1, 2, 3, 4, 0]
    assert list(rows["method"][:2]) == [Method.GET, Method.POST]
    assert (rows["first_byte_s"] >= rows["sent_s"]).all()
    assert (rows["end_s"] >= rows["first_byte_s"]).all()
    assert_never_early(rows)
    assert {request.id for request in server.requests} == {f"sy-{NONCE << 21 | number:013x}" for number in range(20)}


def test_reused_marks_all_but_the_first_request_of_a_connection(load_process: LoadProcess, server: RawServer) -> None:
    _, rows = load_process.run(server.url, stream(20))
    nth = {request.id: request.nth for request in server.requests}
    assert [bool(nth[f"sy-{NONCE << 21 | number:013x}"]) for number in range(20)] == [bool(r) for r in rows["reused"]]
    assert len(server.connections) < 20


def test_foreign_and_missing_tags_and_unknown_backends(load_process: LoadProcess, server: RawServer) -> None:
    bodies = {0: b'{"id": "sy-00000000000ff"}', 1: b'{"id": "sy-none"}'}

    def reply(request: ReceivedRequest) -> Reply:
        body = bodies[int(request.id[-1], 16)]
        return Reply(b"HTTP/1.1 503 Busy\r\nX-Backend-Id: gpu-9\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    server.reply = reply
    answer, rows = load_process.run(server.url, stream(2))
    assert list(rows["echo"]) == [Echo.OTHER, Echo.NONE]
    assert set(rows["answered_by"]) == {-1}
    assert set(rows["status"]) == {503}
    assert failures(rows) == {Failure.NONE}
    assert answer["failed"] == 2


def test_an_update_and_its_kind(load_process: LoadProcess, server: RawServer) -> None:
    _, rows = load_process.run(server.url, stream(3, kind=Kind.UPDATE, methods=(Method.POST,)))
    assert set(rows["kind"]) == {Kind.UPDATE}
    assert {request.head.split("\r\n")[0] for request in server.requests} == {"POST /v1/updates HTTP/1.1"}


# --- failures, each sent exactly once ---------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS, ids=str)
def test_each_ending_is_recorded_and_sent_once(load_process: LoadProcess, server: RawServer, ending: Ending) -> None:
    rows = assert_recorded_once(load_process, server, ending, ending.result)
    if ending.result[0] is Failure.TIMEOUT:
        waited_s = rows["end_s"] - rows["sent_s"]
        assert (waited_s > 0.39).all()
    if ending.result[0] is Failure.REFUSED:
        assert not np.isnan(rows["sent_s"]).any()
        assert np.isnan(rows["first_byte_s"]).all()


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize("method", BOTH)
def test_a_close_on_a_used_connection_is_stale_and_not_sent_again(
    load_process: LoadProcess, server: RawServer, then: str, method: Method
) -> None:
    server.reply = lambda request: Reply(then=then) if request.nth else RawServer.ok(request)
    load = stream(6, 100.0, methods=(method,), connections=Connections.ONE)
    _, rows = load_process.run(server.url, load)
    assert list(rows["failure"]) == [Failure.NONE, Failure.STALE_CONNECTION] * 3
    assert list(rows["reused"]) == [0, 1] * 3
    assert len(server.requests) == 6


def test_a_closed_idle_connection_is_not_used_again(load_process: LoadProcess, server: RawServer) -> None:
    server.reply = lambda request: Reply(RawServer.ok(request).data, "close")
    _, rows = load_process.run(server.url, stream(3, 5.0))
    assert failures(rows) == {Failure.NONE}
    assert not rows["reused"].any()


# --- connections ------------------------------------------------------------------------------------------


def test_open_loop_has_no_cap(load_process: LoadProcess, server: RawServer) -> None:
    all_arrived = threading.Barrier(150)

    def reply(request: ReceivedRequest) -> Reply:
        all_arrived.wait(PATIENCE_S)  # no answer before all requests have arrived
        return RawServer.ok(request)

    server.reply = reply
    _, rows = load_process.run(server.url, stream(150, 1000.0, timeout_s=PATIENCE_S))
    assert failures(rows) == {Failure.NONE}


def test_one_connection_keeps_order(load_process: LoadProcess, server: RawServer) -> None:
    def reply(request: ReceivedRequest) -> Reply:
        time.sleep(0.02)
        return RawServer.ok(request)

    server.reply = reply
    answer, rows = load_process.run(server.url, stream(10, 1000.0, connections=Connections.ONE))
    assert [request.id for request in server.requests] == [f"sy-{NONCE << 21 | number:013x}" for number in range(10)]
    assert len(server.connections) == 1
    assert set(rows["connection"]) == {0}
    assert (rows["sent_s"][1:] >= rows["end_s"][:-1]).all()
    assert_never_early(rows)
    waited_s = (rows["sent_s"] - rows["intended_s"]).max()
    assert waited_s > 0.15
    assert answer["lateness_s"]["max"] < waited_s  # waiting for an answer is not generator delay


def test_fresh_connections_are_new(load_process: LoadProcess, server: RawServer) -> None:
    _, rows = load_process.run(server.url, stream(12, connections=Connections.FRESH))
    assert len(server.connections) == len(server.requests) == 12
    assert all(request.nth == 0 and "connection: close" in request.head.lower() for request in server.requests)
    assert not rows["reused"].any()
    assert failures(rows) == {Failure.NONE}


def test_descriptors_do_not_grow(load_process: LoadProcess, server: RawServer) -> None:
    process = psutil.Process(load_process.child.pid)

    def run() -> int:
        load_process.run(server.url, stream(100, 5000.0), stream(20, 1000.0, connections=Connections.ONE))
        return process.num_fds()

    first = run()
    assert first < 40
    for _ in range(4):
        run()
    until(lambda: process.num_fds() < first + 20)  # a run that left its connections open would add 100


@pytest.mark.slow
def test_at_2000_requests_a_second_none_is_lost(load_process: LoadProcess) -> None:
    script = Path(__file__).parents[1] / "lean_server.py"
    with subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as lean:
        assert lean.stdout
        url = f"http://127.0.0.1:{int(lean.stdout.readline())}"
        answer, rows = load_process.run(url, stream(4000, 2000.0, arrivals="poisson"), lead_s=0.3)
        lean.communicate()
    assert failures(rows) == {Failure.NONE}
    assert set(rows["echo"]) == {Echo.OWN}
    assert answer["sent"] == 4000
    assert_never_early(rows)


# --- jobs that end early or go wrong ----------------------------------------------------------------------


def test_stop_in_the_middle(load_process: LoadProcess, server: RawServer) -> None:
    server.reply = lambda request: Reply(then="hang") if request.id.endswith("1") else RawServer.ok(request)
    began_s = time.monotonic()
    out = load_process.submit(server.url, stream(200, 10.0))
    server.wait_for(4)  # so that the third is answered
    load_process.send({"stop": True})
    assert load_process.answer()["done"]
    assert time.monotonic() - began_s < 10.0
    rows = records.read_requests(out)
    assert len(rows) == 200
    assert list(rows["failure"][:3]) == [Failure.NONE, Failure.OTHER, Failure.NONE]
    unsent = rows[rows["failure"] == Failure.NOT_SENT]
    assert len(unsent) >= 150
    assert np.isnan(unsent["sent_s"]).all()
    assert not np.isnan(unsent["intended_s"]).any()


def test_a_stop_immediately_after_the_job_has_effect(load_process: LoadProcess, server: RawServer) -> None:
    load_process.send({"stop": True})  # nothing to stop, and no answer
    out = load_process.submit(server.url, stream(200, 10.0))
    load_process.send({"stop": True})
    assert load_process.answer()["done"]
    assert Failure.NOT_SENT in failures(records.read_requests(out))


def test_a_job_ends_by_itself(load_process: LoadProcess, server: RawServer) -> None:
    server.reply = lambda _: Reply(then="hang")
    load = stream(40, 1000.0, connections=Connections.ONE, timeout_s=0.3)
    began_s = time.monotonic()
    _, rows = load_process.run(server.url, load)
    assert 2.2 < time.monotonic() - began_s < 10.0
    assert failures(rows) >= {Failure.TIMEOUT, Failure.NOT_SENT}


def missing(_: LoadProcess, folder: Path) -> str:
    return str(folder / "nowhere.json")


def garbled(_: LoadProcess, folder: Path) -> str:
    (folder / "garbled.json").write_text('{"seed": 1,\n')
    return str(folder / "garbled.json")


@pytest.mark.parametrize("make", [missing, garbled])
def test_a_bad_job_file_is_one_line(
    load_process: LoadProcess, server: RawServer, tmp_path: Path, make: Callable[[LoadProcess, Path], str]
) -> None:
    load_process.send({"job": "bad", "file": make(load_process, tmp_path)})
    answer = load_process.answer()
    assert answer["job"] == "bad"
    assert "job" in answer["error"] and "\n" not in answer["error"]
    load_process.run(server.url, stream(2))


def test_an_impossible_job_sends_nothing(load_process: LoadProcess, server: RawServer) -> None:
    load_process.submit(server.url, stream(4), protocol="openai")
    assert "openai" in load_process.answer()["error"]
    load_process.submit("https://127.0.0.1:1", stream(4))
    assert "expected http://HOST:PORT" in load_process.answer()["error"]
    load_process.submit(server.url, stream(4), out="/nowhere/at/all")
    assert "/nowhere/at/all" in load_process.answer()["error"]
    assert len(server.requests) == 4


def test_a_line_that_is_no_job(load_process: LoadProcess) -> None:
    load_process.send(b"hello\n")
    assert "JSON object" in load_process.answer()["error"]
    load_process.send({"job": 3})
    assert "file" in load_process.answer()["error"]


# --- the process ------------------------------------------------------------------------------------------


def test_leaves_at_the_end_of_input(tmp_path: Path, server: RawServer) -> None:
    process = LoadProcess.start(tmp_path)
    out = process.submit(server.url, stream(200, 10.0))
    server.wait_for(1)
    assert process.child.stdin
    process.child.stdin.close()
    assert process.child.wait(PATIENCE_S) == 0
    assert len(records.read_requests(out)) == 200
    process.close()


def test_leaves_on_sigterm(tmp_path: Path) -> None:
    process = LoadProcess.start(tmp_path)
    process.child.send_signal(signal.SIGTERM)
    assert process.child.wait(PATIENCE_S) == 0
    process.close()


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-m", "harness.load.locust_engine", "--with-parent"], stdin=int(sys.argv[1]),
                         stdout=subprocess.PIPE)
print(child.stdout.readline().decode(), flush=True)
time.sleep(1000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_dies_with_its_parent() -> None:
    reading, writing = os.pipe()  # held open here, so that the end of input cannot be the cause
    command = [sys.executable, "-c", PARENT, str(reading)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, pass_fds=[reading]) as parent:
        assert parent.stdout
        pid = json.loads(parent.stdout.readline())["pid"]
        parent.kill()
    deadline_s = time.monotonic() + PATIENCE_S
    while runs(pid) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    os.close(reading)
    os.close(writing)
    assert not runs(pid)


# --- the closed loop --------------------------------------------------------------------------------------


def most_at_once(rows: records.Rows) -> int:
    """Maximum number of requests in flight at the same time."""
    changes = np.concatenate([np.ones(len(rows)), -np.ones(len(rows))])
    order = np.lexsort((changes, np.concatenate([rows["sent_s"], rows["end_s"]])))
    return int(np.cumsum(changes[order]).max())


def test_virtual_users_wait_think_and_back_off(load_process: LoadProcess, server: RawServer) -> None:
    users = Chats(count=4, think_s=0.01, duration_s=0.6)
    answer, rows = load_process.run(server.url, stream(20, chats=users))
    assert answer["requests"] == len(rows) == len(server.requests) > 20
    assert list(rows["number"]) == list(range(len(rows)))
    assert failures(rows) == {Failure.NONE}
    assert_never_early(rows)
    assert most_at_once(rows) <= 4
    assert rows["intended_s"].max() < 0.6
    server.reply = lambda request: Reply(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
    _, refused = load_process.run(server.url, stream(20, chats=Chats(count=4, think_s=0.0, duration_s=0.6)))
    assert 4 < len(refused) <= 4 * (1 + 0.6 / 0.05)


def test_virtual_users_are_divided_between_workers(load_process: LoadProcess, server: RawServer) -> None:
    closed_loop = stream(8, rate_per_s=40.0, chats=Chats(count=3, think_s=0.02, duration_s=0.3))
    parts = [load_process.run(server.url, closed_loop, worker=worker, workers=2)[1] for worker in (0, 1)]
    assert [most_at_once(rows) <= most for rows, most in zip(parts, (2, 1), strict=True)] == [True, True]
    assert [set(rows["number"] % 2) for rows in parts] == [{0}, {1}]


def test_virtual_users_and_an_open_loop_run_side_by_side(load_process: LoadProcess, server: RawServer) -> None:
    open_loop, closed_loop = stream(20), stream(8, name="closed", chats=Chats(count=2, think_s=0.02, duration_s=0.3))
    _, rows = load_process.run(server.url, open_loop, closed_loop)
    assert list(rows["stream"][:20]) == [0] * 20
    assert len(rows) > 22
    assert set(rows["stream"][20:]) == {1}
    assert rows["intended_s"][:20] == pytest.approx([number / 200.0 for number in range(20)])


def test_a_stop_ends_virtual_users_that_think(load_process: LoadProcess, server: RawServer) -> None:
    load_process.submit(server.url, stream(8, chats=Chats(count=2, think_s=60.0, duration_s=600.0)))
    load_process.send({"stop": True})
    assert load_process.answer()["done"]
