"""The preflight: every backend must be reached through the balancer, and the surviving tags are determined."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.claims.features import Claims
from harness.live import preflight as module
from harness.live.balancer import Balancer
from harness.live.fleet import FleetProcess
from harness.live.preflight import preflight
from harness.live.process.ports import PortBlock, port_block
from harness.scenario.faults import FailingStatus
from harness.scenario.model import HarnessError, Load, ModelServer, TargetError
from harness.targets.base import ChangeStep, Deployment, Launch, LiveTarget
from tests.harness.live.helpers import HOST, Behave, Call, RawBackend, free_block, free_ports, until

NONCE = 0x5EED5
ALL = ("header:x-mock-tag", "header:x-request-id", "json:seed", "prompt-suffix")
BODY = ("json:seed", "prompt-suffix")
TAG_HEADERS = re.compile(r"(?im)^(x-mock-tag|x-request-id):[^\n]*\n")


class Running(LiveTarget):
    """A balancer that already runs at `url`, or is started with `words`."""

    name = "strange"
    claims = Claims()

    def __init__(self, port: int, *words: str) -> None:
        self.url = f"http://{HOST}:{port}"
        self._words = words

    def launch(self, deployment: Deployment) -> Launch:
        return Launch(files={}, start=self._words)

    def change(self, deployment: Deployment) -> tuple[ChangeStep, ...]:
        return ()


@pytest.fixture(scope="module")
def block() -> Iterator[PortBlock]:
    with port_block(os.getpid(), 2) as held:
        yield held


@pytest.fixture(scope="module")
def processes(block: PortBlock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetProcess]:
    fleet = FleetProcess(block, 2, ModelServer(), tmp_path_factory.mktemp("fleet"), processes=False)
    try:
        fleet.await_ready()
        yield fleet
    finally:
        fleet.stop()


@pytest.fixture
def fleet(processes: FleetProcess) -> FleetProcess:
    """Two backends as at the start of a run: no nonce, empty logs."""
    processes.reset(0)
    return processes


@pytest.fixture
def balance() -> Iterator[Callable[[Behave], int]]:
    """Starts a raw balancer; its port."""
    started: list[RawBackend] = []

    def start(behave: Behave) -> int:
        started.append(RawBackend(behave))
        return started[-1].port

    yield start
    for balancer in started:
        balancer.close()


def keep(call: Call) -> Call:
    return call


def no_headers(call: Call) -> Call:
    return replace(call, head=TAG_HEADERS.sub("", call.head))


def no_body(call: Call) -> Call:
    body = json.dumps({"model": "m", "prompt": "rewritten", "max_tokens": 1}).encode()
    head = re.sub(r"(?i)content-length: \d+", f"content-length: {len(body)}", call.head)
    return replace(call, head=head, body=body)


def nothing(call: Call) -> Call:
    return no_headers(no_body(call))


def another_run(call: Call) -> Call:
    """Simulate the load of another client."""
    changed = no_body(call)
    return replace(changed, head=re.sub(r"(?i)(x-mock-tag: )\w+", r"\g<1>0000000200001", changed.head))


def round_robin(ports: list[int], *changes: Callable[[Call], Call]) -> Behave:
    """Forwards round-robin; request number n is changed by `changes[n]`, cyclically."""
    turn = itertools.count()

    async def behave(call: Call) -> None:
        number = next(turn)
        changed = changes[number % len(changes)](call)
        reader, writer = await asyncio.open_connection(HOST, ports[number % len(ports)])
        head = re.sub(r"(?i)connection: [^\r]*\r\n", "", changed.head)
        writer.write(head.replace("\r\n", "\r\nConnection: close\r\n", 1).encode() + changed.body)
        await call.write(await reader.read())
        writer.close()
        call.writer.close()

    return behave


def ports_of(block: PortBlock) -> list[int]:
    return [block.backend(0), block.backend(1)]


def fly(port: int, fleet: FleetProcess, folder: Path, correlate: tuple[str, ...] = ALL, protocol: str = "http") -> bool:
    balancer = Balancer(Running(port), Deployment(folder, HOST, port, 0, ()))
    return preflight(balancer, fleet, ("gpu-0", "gpu-1"), Load(()), protocol, NONCE, correlate)


@pytest.mark.parametrize("protocol", ["http", "openai"])
def test_all_backends_seen_and_tags_survive(
    balance: Callable[[Behave], int], block: PortBlock, fleet: FleetProcess, tmp_path: Path, protocol: str
) -> None:
    assert fly(balance(round_robin(ports_of(block), keep)), fleet, tmp_path, protocol=protocol) is True


@pytest.mark.parametrize(
    ("change", "correlate", "correlated"),
    [
        (no_headers, ALL, True),
        (no_headers, BODY, True),
        (no_headers, ("json:seed",), True),
        (no_headers, ("prompt-suffix",), True),
        (no_headers, ("header:x-mock-tag", "header:x-request-id"), False),
        (no_body, ALL, True),
        (no_body, ("header:x-request-id",), True),
        (no_body, BODY, False),
        (keep, (), False),
        (nothing, ALL, False),
    ],
)
def test_what_survives_must_be_something_that_counts(
    balance: Callable[[Behave], int],
    block: PortBlock,
    fleet: FleetProcess,
    tmp_path: Path,
    change: Callable[[Call], Call],
    correlate: tuple[str, ...],
    correlated: bool,
) -> None:
    assert fly(balance(round_robin(ports_of(block), change)), fleet, tmp_path, correlate) is correlated


def test_one_backend_without_tags_is_enough_to_spoil_it(
    balance: Callable[[Behave], int], block: PortBlock, fleet: FleetProcess, tmp_path: Path
) -> None:
    assert fly(balance(round_robin(ports_of(block), keep, nothing)), fleet, tmp_path) is False


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READY_S", 0.5)


@pytest.mark.usefixtures("impatient")
def test_a_backend_that_is_never_asked_is_named(
    balance: Callable[[Behave], int], block: PortBlock, fleet: FleetProcess, tmp_path: Path
) -> None:
    port = balance(round_robin([block.backend(1)], keep))
    with pytest.raises(TargetError, match=r"^strange does not get ready: gpu-0 not reached through it after") as caught:
        fly(port, fleet, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("impatient")
def test_another_runs_requests_do_not_count(
    balance: Callable[[Behave], int], block: PortBlock, fleet: FleetProcess, tmp_path: Path
) -> None:
    port = balance(round_robin(ports_of(block), keep, another_run))
    with pytest.raises(
        TargetError, match=r"gpu-1 not reached through it after .* answered well; does its configuration name"
    ):
        fly(port, fleet, tmp_path)


@pytest.mark.usefixtures("impatient")
def test_answers_alone_do_not_count(balance: Callable[[Behave], int], fleet: FleetProcess, tmp_path: Path) -> None:
    async def busy(call: Call) -> None:
        await call.answer(status="503 Busy")

    with pytest.raises(TargetError, match=r"gpu-0, gpu-1 not reached .*; last answer: 503"):
        fly(balance(busy), fleet, tmp_path)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("change", [keep, nothing])
def test_a_backend_that_answers_errors_alone_is_not_seen(
    balance: Callable[[Behave], int],
    block: PortBlock,
    fleet: FleetProcess,
    tmp_path: Path,
    change: Callable[[Call], Call],
) -> None:
    fleet.set_fault(FailingStatus("gpu-1", 0.0, status=500))
    with pytest.raises(
        TargetError,
        match=r"get ready: gpu-1 not reached .* [1-9]\d* answered well; gpu-1 answered 500; last answer: 5",
    ):
        fly(balance(round_robin(ports_of(block), change)), fleet, tmp_path)


def test_a_backend_that_begins_with_errors_is_seen_in_the_end(
    balance: Callable[[Behave], int], block: PortBlock, fleet: FleetProcess, tmp_path: Path
) -> None:
    fleet.set_fault(FailingStatus("gpu-1", 0.0, status=503, first=30))
    assert fly(balance(round_robin(ports_of(block), keep)), fleet, tmp_path) is True


def test_rounds_that_bring_nothing_new_are_paused_between(
    balance: Callable[[Behave], int], fleet: FleetProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def busy(call: Call) -> None:
        await call.answer(status="503 Busy")

    pauses: list[float] = []
    sleep = time.sleep

    def note(seconds: float) -> None:
        pauses.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(module, "READY_S", 1.0)
    monkeypatch.setattr(time, "sleep", note)
    with pytest.raises(TargetError):
        fly(balance(busy), fleet, tmp_path)
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] < 0.01
    assert pauses[-1] == 0.05


ENDS = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("up", flush=True)
connection, _ = server.accept()
connection.recv(1)
sys.exit("out of ideas")
"""


def test_one_that_ends_at_the_first_request_is_not_asked_for_long(fleet: FleetProcess, tmp_path: Path) -> None:
    port = free_ports(1)[0]
    balancer = Balancer(Running(port, sys.executable, "-c", ENDS, str(port)), Deployment(tmp_path, HOST, port, 0, ()))
    try:
        until(lambda: "up" in (tmp_path / "balancer.log").read_text())
        with pytest.raises(TargetError) as caught:
            preflight(balancer, fleet, ("gpu-0", "gpu-1"), Load(()), "http", NONCE, ALL)
    finally:
        balancer.stop()
    found = re.fullmatch(
        r"strange does not get ready: it ended after (\d+) requests; last failure: .*;"
        " exit status 1; last line: out of ideas",
        str(caught.value),
    )
    assert found, caught.value
    assert int(found[1]) < 1000, "as many as fit into the moment in which it ended"


@pytest.mark.usefixtures("impatient")
def test_nobody_there(fleet: FleetProcess, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"gpu-0, gpu-1 not reached .*; last failure: ConnectionRefusedError"):
        fly(free_ports(1)[0], fleet, tmp_path)


def test_a_dead_fleet_is_our_fault(balance: Callable[[Behave], int], tmp_path: Path) -> None:
    block = free_block(os.getpid() + 1, 1)
    fleet = FleetProcess(block, 1, ModelServer(), tmp_path, processes=False)
    fleet.await_ready()
    fleet.stop()
    with pytest.raises(HarnessError, match="the mock fleet ended: exit status 0"):
        fly(balance(round_robin([block.backend(0)], keep)), fleet, tmp_path)
