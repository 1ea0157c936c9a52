"""The driver's process: start, stop, and failures."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals

import pytest

from harness.live.process.http import accepts
from harness.proxy import serve
from tests.harness.live.helpers import HOST, PATIENCE_S, Call, DriverProcess, RawBackend, fine, free_ports, until
from tests.processes import listening

GATEWAYS = """
from harness.gateway.protocol import RequestArrived

class Raises:
    def handle(self, event, now_s):
        if isinstance(event, RequestArrived):
            raise KeyError("no such thing")
        return []

class Exits(Raises):
    def handle(self, event, now_s):
        return exit("enough") if isinstance(event, RequestArrived) else []

class PicksAnyone:
    def pick(self, request):
        return "anyone"

    def update_backends(self, backends):
        pass

    def report_result(self, backend_id, latency_s, error):
        pass

class NeverMade(Raises):
    def __init__(self):
        raise ValueError("cannot be made")
"""


@pytest.fixture
def backend() -> Iterator[RawBackend]:
    started = RawBackend(fine)
    yield started
    started.close()


@pytest.fixture
def gateways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the module `broken_gateways` importable in a test's child processes."""
    (tmp_path / "broken_gateways.py").write_text(GATEWAYS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def lines(driver: DriverProcess) -> list[str]:
    return driver.child.log.read_text().splitlines()


@pytest.mark.parametrize("number", [SIGTERM, SIGINT])
@pytest.mark.parametrize("size", [4, 300_000])
def test_what_is_in_flight_is_answered_before_the_end(
    tmp_path: Path, backend: RawBackend, number: Signals, size: int
) -> None:
    go_on = threading.Event()

    async def behave(call: Call) -> None:
        assert await asyncio.to_thread(go_on.wait, PATIENCE_S)
        await call.answer(b"x" * size)

    backend.behave = behave
    driver = DriverProcess(tmp_path)
    try:
        driver.await_listening()
        driver.use(a=backend.port)
        connection = driver.connect()
        connection.request("GET", "/")
        until(lambda: backend.calls)
        driver.child.signal(number)
        assert not driver.child.wait(0.1)
        go_on.set()
        response = connection.getresponse()
        assert (response.status, len(response.read())) == (200, size)
        assert driver.child.wait(PATIENCE_S)
        assert (driver.child.status, lines(driver)) == (0, [])
        connection.close()
    finally:
        driver.child.stop()


def test_idle_it_ends_at_once_with_clients_connected(tmp_path: Path, backend: RawBackend) -> None:
    driver = DriverProcess(tmp_path)
    try:
        driver.await_listening()
        driver.use(a=backend.port)
        connection = driver.connect()
        connection.request("GET", "/")
        connection.getresponse().read()
        driver.child.signal(SIGTERM)
        assert driver.child.wait(PATIENCE_S)
        assert (driver.child.status, lines(driver)) == (0, [])
        connection.close()
        assert not accepts(HOST, driver.port) and not accepts(HOST, driver.admin_port)
    finally:
        driver.child.stop()


@pytest.mark.usefixtures("gateways")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Raises", "KeyError: 'no such thing' (broken_gateways.py:7, on RequestArrived)"),
        ("Exits", "SystemExit: enough (broken_gateways.py:12, on RequestArrived)"),
        (
            "PicksAnyone",
            "WrongPickError: PicksAnyone.pick returned 'anyone', which is no member; members: none (on RequestArrived)",
        ),
    ],
)
def test_a_gateway_that_raises_ends_the_process(tmp_path: Path, name: str, message: str) -> None:
    driver = DriverProcess(tmp_path, f"python:broken_gateways:{name}")
    try:
        driver.await_listening()
        driver.use()
        with pytest.raises((http.client.HTTPException, OSError)):
            driver.call()
        assert driver.child.wait(PATIENCE_S)
        assert driver.child.ending() == f"exit status 3; last line: the gateway raised {message}"
    finally:
        driver.child.stop()


@pytest.mark.usefixtures("gateways")
@pytest.mark.parametrize(
    ("name", "message"), [("NeverMade", "ValueError: cannot be made"), ("Unknown", "has no class Unknown")]
)
def test_a_gateway_that_cannot_be_made(tmp_path: Path, name: str, message: str) -> None:
    driver = DriverProcess(tmp_path, f"python:broken_gateways:{name}")
    assert driver.child.wait(PATIENCE_S)
    assert driver.child.status == 2
    assert len(lines(driver)) == 1 and message in driver.child.last_line()
    driver.child.stop()


@pytest.mark.parametrize("index", [0, 1])
def test_a_taken_port_is_one_line(tmp_path: Path, index: int) -> None:
    with socket.create_server((HOST, 0)) as holder:
        ports = free_ports(2)
        ports[index] = holder.getsockname()[1]
        driver = DriverProcess(tmp_path, ports=(ports[0], ports[1]))
        assert driver.child.wait(PATIENCE_S)
        assert driver.child.status == 2
        (line,) = lines(driver)
        assert line.startswith(f"cannot listen on {HOST}: ")
        assert "in use" in line
        assert [str(port) in line for port in ports] == [index == 0, index == 1]
        driver.child.stop()


def test_its_file_may_come_later(tmp_path: Path) -> None:
    config = {
        "spec": "python:no.such.module:Gateway",
        "host": HOST,
        "port": 0,
        "admin_port": None,
        "health_path": "/health",
    }
    (tmp_path / "part").write_text(json.dumps(config | {"key_carrier": "header:x", "seed": 1, "backends": []}))
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(serve.main, str(tmp_path / "late.json"), waits=True)
        with pytest.raises(TimeoutError):
            ended.result(0.1)
        (tmp_path / "part").rename(tmp_path / "late.json")
        assert ended.result(PATIENCE_S) == 2
    with pytest.raises(FileNotFoundError):
        serve.main(str(tmp_path / "never.json"))


def test_it_listens_on_loopback_only(tmp_path: Path) -> None:
    driver = DriverProcess(tmp_path)
    try:
        driver.await_listening()
        assert listening(driver.child.pid) == {(HOST, driver.port), (HOST, driver.admin_port)}
    finally:
        driver.child.stop()
