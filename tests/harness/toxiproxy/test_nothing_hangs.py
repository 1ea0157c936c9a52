"""Whatever peers do, every call returns at once and the server goes on."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from harness.toxiproxy.client import FaultProxy
from harness.toxiproxy.toxics import TOXIC_TYPES
from tests.harness.toxiproxy import rig
from tests.harness.toxiproxy.rig import Backend, ServerProcess

Behind = Callable[[Callable[[socket.socket], object]], tuple[Backend, int]]
SOON_S = 3.0  # "at once", on a busy machine
VALUES = {"average_size": 1000, "rate": 1, "bytes": 1 << 40, "latency": 10, "timeout": 60_000, "delay": 10}


@pytest.mark.parametrize("kind", TOXIC_TYPES)
def test_no_change_waits_for_a_reader(behind: Behind, proxy: FaultProxy, kind: str) -> None:
    stuck = threading.Event()

    def flood(connected: socket.socket) -> None:
        connected.settimeout(0.2)
        while True:
            try:
                connected.send(bytes(65536))
            except TimeoutError:
                stuck.set()

    _, port = behind(flood)
    attributes = {name: value for name, value in VALUES.items() if name in TOXIC_TYPES[kind].attribute_names}
    with rig.connect(port) as reads_nothing:
        assert stuck.wait(rig.LONG_S), "the flood to fill every buffer"
        start_s = time.monotonic()
        toxic = proxy.add_toxic("p", kind, attributes)
        proxy.update_toxic("p", toxic.name, attributes)
        proxy.add_toxic("p", "noop", {}, toxic_name="another")
        proxy.remove_toxic("p", toxic.name)
        proxy.reset()
        with rig.connect(port) as another:
            assert another.recv(1) == b"\0"
        proxy.disable("p")
        proxy.enable("p")
        proxy.delete("p")
        assert time.monotonic() - start_s < SOON_S
        reads_nothing.settimeout(rig.LONG_S)
        assert rig.read_to_end(reads_nothing)[1] in ("EOF", "ECONNRESET")


@contextlib.contextmanager
def full_listener() -> Iterator[int]:
    """The port of a listener whose queue is full: to dial it hangs."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        yield full.getsockname()[1]


@pytest.mark.parametrize("way_out", ["delete", "disable", "reset, then delete", "move"])
def test_no_change_waits_for_a_dial(behind: Behind, proxy: FaultProxy, server: ServerProcess, way_out: str) -> None:
    _, good_port = behind(rig.echo)
    with full_listener() as full_port, contextlib.ExitStack() as stack:
        created = proxy.create("hung", "127.0.0.1:0", f"127.0.0.1:{full_port}")
        port = int(created.listen.rpartition(":")[2])
        clients = [stack.enter_context(rig.connect(port)) for _ in range(20)]
        rig.wait_until(lambda: len(proxy.connections("hung")) == 20, "all connections to be accepted")
        start_s = time.monotonic()
        if way_out == "disable":
            proxy.disable("hung")
        elif way_out == "move":
            rig.ask(server.port, "POST", "/proxies/hung", b'{"upstream": "127.0.0.1:1"}')
        else:
            if way_out != "delete":
                proxy.reset()
            proxy.delete("hung")
        with rig.connect(good_port) as other:
            rig.round_trip_s(other)
        assert time.monotonic() - start_s < SOON_S
        assert {rig.read_to_end(client) for client in clients} == {(b"", "EOF")}


def test_deletion_under_load(behind: Behind, proxy: FaultProxy) -> None:
    """Clients get whole answers or an end, never another's bytes, and the port is free again at once each time."""
    backend, port = behind(rig.echo)
    over = threading.Event()
    rounds = [0] * 8
    wrong: list[bytes] = []

    def hammer(number: int) -> None:
        data = bytes([number]) * 20_000
        while not over.is_set():
            with contextlib.suppress(OSError), rig.connect(port) as client:
                while not over.is_set():
                    client.sendall(data)
                    answer = b""
                    while len(answer) < len(data) and (more := client.recv(65536)):
                        answer += more
                    if answer != data[: len(answer)]:
                        wrong.append(answer)
                    if len(answer) < len(data):
                        break
                    rounds[number] += 1

    threads = [threading.Thread(target=hammer, args=(number,)) for number in range(len(rounds))]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            before = sum(rounds)
            rig.wait_until(lambda before=before: sum(rounds) >= before + 20, "traffic")  # type: ignore[misc]
            proxy.delete("p")
            assert all(entry.ended for entry in proxy.connections("p"))
            proxy.create("p", f"127.0.0.1:{port}", f"127.0.0.1:{backend.port}")
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert min(rounds) > 0
