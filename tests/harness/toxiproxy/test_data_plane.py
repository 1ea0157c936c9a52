"""Faults over real sockets, with the server in its own process. Times have exact lower and generous upper bounds."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from random import Random

import pytest

from harness.toxiproxy.client import FaultProxy, LoggedConnection
from tests.harness.toxiproxy import rig
from tests.harness.toxiproxy.rig import Backend

Behind = Callable[[Callable[[socket.socket], object]], tuple[Backend, int]]
SOON_S = 3.0  # "at once", on a busy machine


def log_of(proxy: FaultProxy) -> list[LoggedConnection]:
    """The log, once all its connections have ended."""
    rig.wait_until(lambda: all(entry.ended for entry in proxy.connections()), "all connections to end")
    return proxy.connections()


def upload_and_close(port: int, data: bytes) -> None:
    with rig.connect(port) as client:
        client.sendall(data)


# Without toxics.


def test_data_passes_both_ways_unchanged(behind: Behind, proxy: FaultProxy) -> None:
    _, port = behind(rig.echo)
    data = Random(1).randbytes(3_000_000)
    with rig.connect(port) as client:
        sender = threading.Thread(target=client.sendall, args=(data,))
        sender.start()
        assert rig.read_exactly(client, len(data)) == data
        sender.join()
    (entry,) = log_of(proxy)
    assert (entry.proxy, entry.bytes_up, entry.bytes_down, entry.ended) == ("p", len(data), len(data), "client")
    assert entry.closed_s is not None
    assert entry.opened_s < entry.closed_s <= time.monotonic()


def test_a_backend_that_speaks_first_is_heard(behind: Behind) -> None:
    def greet(connected: socket.socket) -> str:
        connected.sendall(b"hello")
        return rig.echo(connected)

    _, port = behind(greet)
    with rig.connect(port) as client:
        assert rig.read_exactly(client, 5) == b"hello"


def test_everything_sent_before_a_close_arrives(behind: Behind, proxy: FaultProxy) -> None:
    _, port = behind(rig.answer_with(b"y" * 2_000_000))
    with rig.connect(port) as client:
        client.sendall(b"x")
        assert rig.read_to_end(client) == (b"y" * 2_000_000, "EOF")
    assert [entry.ended for entry in log_of(proxy)] == ["upstream"]


def test_half_close_is_not_preserved(behind: Behind) -> None:
    backend, port = behind(rig.collect)
    with rig.connect(port) as client:
        client.sendall(b"request")
        client.shutdown(socket.SHUT_WR)
        assert rig.read_to_end(client) == (b"", "EOF")
    rig.wait_until(lambda: backend.endings == [b"request"], "the backend to see the end")


def test_a_reset_arrives_as_an_end(behind: Behind) -> None:
    backend, port = behind(rig.collect)
    with rig.connect(port) as client:
        client.sendall(b"x")
        rig.wait_until(lambda: backend.accepted == 1, "the backend to accept")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    rig.wait_until(lambda: backend.endings != [], "the backend to see the end")
    assert backend.endings in ([b"x"], [b""])


def test_a_refused_dial_looks_like_accept_then_close(proxy: FaultProxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        upstream = f"127.0.0.1:{unused.getsockname()[1]}"
    port = int(proxy.create("p", "", upstream).listen.rpartition(":")[2])
    with rig.connect(port) as client:
        assert rig.read_to_end(client)[1] in ("EOF", "ECONNRESET")
    (entry,) = log_of(proxy)
    assert (entry.ended, entry.bytes_up) == ("dial_failed", 0)


# Disable.


def test_disable_refuses_frees_the_port_and_enable_takes_it_again(behind: Behind, proxy: FaultProxy) -> None:
    backend, port = behind(rig.echo)
    with rig.connect(port) as client:
        rig.round_trip_s(client)
        proxy.disable("p")
        with pytest.raises(ConnectionRefusedError):
            rig.connect(port)
        assert rig.read_to_end(client) == (b"", "EOF")
    rig.wait_until(lambda: backend.endings == ["EOF"], "the backend to see the end")
    with socket.create_server(("127.0.0.1", port)):  # sets SO_REUSEADDR
        pass
    proxy.enable("p")
    with rig.connect(port) as client:
        rig.round_trip_s(client)
    assert [entry.ended for entry in log_of(proxy)] == ["disabled", "client"]


def test_disable_loses_what_is_inside_a_toxic_and_keeps_the_toxic(behind: Behind, proxy: FaultProxy) -> None:
    backend, port = behind(rig.collect)
    proxy.add_toxic("p", "latency", {"latency": 60_000}, stream="upstream")
    with rig.connect(port) as client:
        client.sendall(b"lost")
        rig.wait_until(lambda: backend.accepted == 1, "the backend to accept")
        proxy.disable("p")
    proxy.enable("p")
    rig.wait_until(lambda: backend.endings == [b""], "the backend to see the end")
    assert [toxic.name for toxic in proxy.toxics("p")] == ["latency_upstream"]


def test_a_hung_dial_holds_up_nothing(proxy: FaultProxy) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        port = int(proxy.create("p", "", f"127.0.0.1:{full.getsockname()[1]}").listen.rpartition(":")[2])
        with rig.connect(port) as client, rig.connect(port) as other:
            client.sendall(b"hello")
            rig.wait_until(lambda: len(proxy.connections()) == 2, "both connections to be accepted")
            start_s = time.monotonic()
            proxy.add_toxic("p", "latency", {"latency": 1})
            proxy.disable("p")
            assert time.monotonic() - start_s < SOON_S
            assert rig.read_to_end(client)[1] in ("EOF", "ECONNRESET")
            assert rig.read_to_end(other)[1] == "EOF"
        for filler in fillers:
            filler.close()
    assert [entry.ended for entry in log_of(proxy)] == ["disabled", "disabled"]


# Latency.


@pytest.mark.parametrize("stream", ["upstream", "downstream"])
def test_latency_is_never_early(behind: Behind, proxy: FaultProxy, stream: str) -> None:
    _, port = behind(rig.echo)
    proxy.add_toxic("p", "latency", {"latency": 20}, stream=stream)
    start_s = time.monotonic()
    with rig.connect(port) as client:
        assert time.monotonic() - start_s < SOON_S  # connecting is not delayed
        times_s = sorted(rig.round_trip_s(client) for _ in range(15))
    assert times_s[0] >= 0.020
    assert times_s[7] < 0.020 + 0.1


def test_latency_is_a_delay_and_not_a_rate(behind: Behind, proxy: FaultProxy) -> None:
    _, port = behind(rig.answer_with(b"z" * 5_000_000))
    proxy.add_toxic("p", "latency", {"latency": 100})
    with rig.connect(port) as client:
        start_s = time.monotonic()
        client.sendall(b"x")
        assert rig.read_to_end(client) == (b"z" * 5_000_000, "EOF")
    assert 0.1 <= time.monotonic() - start_s < SOON_S


def test_latency_can_be_added_and_removed_on_an_open_connection(behind: Behind, proxy: FaultProxy) -> None:
    _, port = behind(rig.echo)
    with rig.connect(port) as client:
        rig.round_trip_s(client)
        toxic = proxy.add_toxic("p", "latency", {"latency": 80})
        assert rig.round_trip_s(client) >= 0.080
        proxy.update_toxic("p", toxic.name, {"latency": 60_000})
        client.sendall(b"held")
        proxy.update_toxic("p", toxic.name, {"latency": 0})
        assert rig.read_exactly(client, 4) == b"held"
        proxy.remove_toxic("p", toxic.name)
        assert rig.round_trip_s(client) < SOON_S


# Timeout.


def test_timeout_drops_and_then_closes_both_sides(behind: Behind, proxy: FaultProxy) -> None:
    backend, port = behind(rig.echo)
    proxy.add_toxic("p", "timeout", {"timeout": 100})
    with rig.connect(port) as client:
        start_s = time.monotonic()
        client.sendall(b"x")
        assert rig.read_to_end(client) == (b"", "EOF")
        assert time.monotonic() - start_s >= 0.1
    rig.wait_until(lambda: backend.endings == ["EOF"], "the backend to see the end")
    (entry,) = log_of(proxy)
    assert (entry.bytes_up, entry.bytes_down, entry.ended) == (1, 0, "toxic")


def test_timeout_0_is_a_black_hole_until_it_is_removed(behind: Behind, proxy: FaultProxy) -> None:
    backend, port = behind(rig.collect)
    toxic = proxy.add_toxic("p", "timeout", {"timeout": 0}, stream="upstream")
    with rig.connect(port) as client:
        client.sendall(b"x" * 100_000)
        client.settimeout(0.2)
        assert rig.read_to_end(client) == (b"", "timeout")
        client.settimeout(rig.LONG_S)
        proxy.remove_toxic("p", toxic.name)
        assert rig.read_to_end(client) == (b"", "EOF")
    rig.wait_until(lambda: backend.endings == [b""], "the backend to see the end and no data")


def test_reset_removes_a_timeout_and_closes_what_it_held(behind: Behind, proxy: FaultProxy) -> None:
    _, port = behind(rig.echo)
    proxy.add_toxic("p", "timeout", {"timeout": 0})
    with rig.connect(port) as client:
        client.sendall(b"x")
        rig.wait_until(lambda: [entry.bytes_up for entry in proxy.connections()] == [1], "the data to pass")
        proxy.disable("p")
        proxy.reset()
        assert proxy.proxy("p").enabled
        assert proxy.toxics("p") == []
        assert rig.read_to_end(client) == (b"", "EOF")


# Reset peer.


@pytest.mark.parametrize("stream", ["upstream", "downstream"])
def test_reset_peer_resets_both_sides(behind: Behind, proxy: FaultProxy, stream: str) -> None:
    backend, port = behind(rig.echo)
    proxy.add_toxic("p", "reset_peer", {"timeout": 50}, stream=stream)
    with rig.connect(port) as client:
        start_s = time.monotonic()
        client.sendall(b"x")
        assert rig.read_to_end(client) == (b"", "ECONNRESET")
        assert time.monotonic() - start_s >= 0.05
    rig.wait_until(lambda: backend.endings == ["ECONNRESET"], "the backend to be reset")
    assert [entry.ended for entry in log_of(proxy)] == ["reset"]


def test_reset_peer_on_a_live_connection_is_an_ordinary_end(behind: Behind, proxy: FaultProxy) -> None:
    backend, port = behind(rig.echo)
    with rig.connect(port) as client:
        rig.round_trip_s(client)
        proxy.add_toxic("p", "reset_peer", {"timeout": 0})
        client.sendall(b"x")
        assert rig.read_to_end(client) == (b"", "EOF")
    rig.wait_until(lambda: backend.endings == ["EOF"], "the backend to see the end")


def test_reset_peer_does_not_close_an_idle_connection(behind: Behind, proxy: FaultProxy) -> None:
    _, port = behind(rig.echo)
    proxy.add_toxic("p", "reset_peer", {"timeout": 0})
    with rig.connect(port) as client:
        client.settimeout(0.2)
        assert rig.read_to_end(client) == (b"", "timeout")


# Bandwidth, slow close, slicer, limit data.


def test_bandwidth_keeps_to_its_rate(behind: Behind, proxy: FaultProxy) -> None:
    _, port = behind(rig.answer_with(b"z" * 200_000))
    proxy.add_toxic("p", "bandwidth", {"rate": 1000})
    with rig.connect(port) as client:
        client.sendall(b"x")
        start_s = time.monotonic()
        assert rig.read_to_end(client) == (b"z" * 200_000, "EOF")
        assert 0.19 <= time.monotonic() - start_s < 0.2 + SOON_S


def test_slow_close_delays_the_end(behind: Behind, proxy: FaultProxy) -> None:
    _, port = behind(rig.answer_with(b"data"))
    proxy.add_toxic("p", "slow_close", {"delay": 150})
    with rig.connect(port) as client:
        start_s = time.monotonic()
        client.sendall(b"x")
        assert rig.read_to_end(client) == (b"data", "EOF")
        assert time.monotonic() - start_s >= 0.15


def test_slicer_cuts_and_loses_nothing(behind: Behind, proxy: FaultProxy) -> None:
    data = Random(2).randbytes(5000)
    backend, port = behind(rig.collect)
    proxy.add_toxic("p", "slicer", {"average_size": 500, "size_variation": 100, "delay": 5000}, stream="upstream")
    start_s = time.monotonic()
    upload_and_close(port, data)
    rig.wait_until(lambda: backend.endings == [data], "the data to arrive")
    assert time.monotonic() - start_s >= 8 * 0.005


def test_limit_data_passes_exactly_its_number_of_bytes(behind: Behind, proxy: FaultProxy) -> None:
    _, port = behind(rig.answer_with(b"z" * 1_000_000))
    proxy.add_toxic("p", "limit_data", {"bytes": 100_000})
    with rig.connect(port) as client:
        client.sendall(b"x")
        data, ending = rig.read_to_end(client)
        assert (len(data), ending) == (100_000, "EOF")
    (entry,) = log_of(proxy)
    assert (entry.bytes_down, entry.ended) == (100_000, "toxic")


# Changes while the peer does not read, and on many connections.


def test_no_call_waits_for_a_peer_that_does_not_read(behind: Behind, proxy: FaultProxy) -> None:
    size_bytes = 60_000_000
    stuck = threading.Event()

    def flood(connected: socket.socket) -> str:
        rest = memoryview(bytes(size_bytes))
        connected.settimeout(0.2)
        while rest:
            try:
                rest = rest[connected.send(rest[:65536]) :]
            except TimeoutError:
                stuck.set()
        return "sent"

    _, port = behind(flood)
    with rig.connect(port) as client:
        assert stuck.wait(rig.LONG_S), "the flood to fill every buffer"
        start_s = time.monotonic()
        toxic = proxy.add_toxic("p", "latency", {"latency": 10})
        proxy.update_toxic("p", toxic.name, {"latency": 5})
        proxy.add_toxic("p", "slicer", {"average_size": 20_000})
        proxy.remove_toxic("p", toxic.name)
        proxy.remove_toxic("p", "slicer_downstream")
        assert time.monotonic() - start_s < SOON_S
        received_bytes = 0
        while more := client.recv(1 << 20):
            received_bytes += len(more)
        assert received_bytes == size_bytes


def test_what_a_removed_toxic_held_is_written_before_the_close(behind: Behind, proxy: FaultProxy) -> None:
    data = b"z" * 16_000_000
    backend, port = behind(rig.answer_with(data))
    toxic = proxy.add_toxic("p", "latency", {"latency": 60_000})
    with rig.connect(port) as client:
        client.sendall(b"x")
        rig.wait_until(lambda: backend.endings == ["closed"], "the backend to send all")
        proxy.remove_toxic("p", toxic.name)  # more than the kernel takes while the client does not read
        assert rig.read_to_end(client) == (data, "EOF")


def test_a_change_reaches_many_live_connections(behind: Behind, proxy: FaultProxy) -> None:
    _, port = behind(rig.echo)
    clients = [rig.connect(port) for _ in range(100)]
    for client in clients:
        rig.round_trip_s(client)
    start_s = time.monotonic()
    proxy.add_toxic("p", "limit_data", {"bytes": 2})
    assert time.monotonic() - start_s < SOON_S
    for client in clients:
        client.sendall(b"xyz")
    for client in clients:
        assert rig.read_to_end(client) == (b"xy", "EOF")
        client.close()
    proxy.disable("p")
    assert [entry.ended for entry in log_of(proxy)] == ["toxic"] * 100


def test_delete_drops_the_connections_and_stops_listening(behind: Behind, proxy: FaultProxy) -> None:
    _, port = behind(rig.echo)
    with rig.connect(port) as client:
        rig.round_trip_s(client)
        proxy.delete("p")
        assert rig.read_to_end(client) == (b"", "EOF")
    with pytest.raises(ConnectionRefusedError):
        rig.connect(port)
