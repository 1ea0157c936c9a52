"""Every call returns at once and the server continues, regardless of the behaviour of peers."""

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
    blocked = threading.Event()

    def flood(connected: socket.socket) -> None:
        connected.settimeout(0.2)
        while True:
            try:
                connected.send(bytes(65536))
            except TimeoutError:
                blocked.set()

    _, port = behind(flood)
    attributes = {name: value for name, value in VALUES.items() if name in TOXIC_TYPES[kind].attribute_names}
    with rig.connect(port) as silent:
        assert blocked.wait(rig.LONG_S), "the flood to fill every buffer"
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
        silent.settimeout(rig.LONG_S)
        assert rig.read_to_end(silent)[1] in ("EOF", "ECONNRESET")


@contextlib.contextmanager
def full_listener() -> Iterator[int]:
    """The port of a listener with a full queue: dialling it hangs."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        yield full.getsockname()[1]


@pytest.mark.parametrize("change", ["delete", "disable", "reset, then delete", "move"])
def test_no_change_waits_for_a_dial(behind: Behind, proxy: FaultProxy, server: ServerProcess, change: str) -> None:
    _, good_port = behind(rig.echo)
    with full_listener() as full_port, contextlib.ExitStack() as stack:
        created = proxy.create("hung", "127.0.0.1:0", f"127.0.0.1:{full_port}")
        port = int(created.listen.rpartition(":")[2])
        clients = [stack.enter_context(rig.connect(port)) for _ in range(20)]
        rig.wait_until(lambda: len(proxy.connections("hung")) == 20, "all connections to be accepted")
        start_s = time.monotonic()
        if change == "disable":
            proxy.disable("hung")
        elif change == "move":
            rig.ask(server.port, "POST", "/proxies/hung", b'{"upstream": "127.0.0.1:1"}')
        else:
            if change != "delete":
                proxy.reset()
            proxy.delete("hung")
        with rig.connect(good_port) as other:
            rig.round_trip_s(other)
        assert time.monotonic() - start_s < SOON_S
        assert {rig.read_to_end(client) for client in clients} == {(b"", "EOF")}


def test_deletion_under_load(behind: Behind, proxy: FaultProxy) -> None:
    """Clients get complete answers or an end, never bytes of others; each time the port is free again at once."""
    backend, port = behind(rig.echo)
    over = threading.Event()
    rounds = [0] * 8
    wrong_answers: list[bytes] = []

    def send_repeatedly(number: int) -> None:
        data = bytes([number]) * 20_000
        while not over.is_set():
            with contextlib.suppress(OSError), rig.connect(port) as client:
                while not over.is_set():
                    client.sendall(data)
                    answer = b""
                    while len(answer) < len(data) and (more := client.recv(65536)):
                        answer += more
                    if answer != data[: len(answer)]:
                        wrong_answers.append(answer)
                    if len(answer) < len(data):
                        break
                    rounds[number] += 1

    threads = [threading.Thread(target=send_repeatedly, args=(number,)) for number in range(len(rounds))]
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
    assert wrong_answers == []
    assert min(rounds) > 0
