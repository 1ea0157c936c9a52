"""`/metrics`: text form, counting rules, and the same series as a real server if one is installed."""

from __future__ import annotations

import http.client
import re
import socket
import threading
import time

import psutil
import pytest

from harness.toxiproxy.client import FaultProxy
from harness.toxiproxy.metrics import LinkLabels, ProxyMetrics, Traffic
from tests.harness.toxiproxy import rig
from tests.harness.toxiproxy.lab import close_with_reset
from tests.harness.toxiproxy.rig import BackendWith

UP = LinkLabels("upstream", "127.0.0.1:1", "p", "127.0.0.1:2")


def fetch(port: int, method: str = "GET", user_agent: str = "test/1") -> tuple[int, str, str]:
    """Fetch /metrics; returns status, media type and text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=rig.LONG_S)
    connection.request(method, "/metrics", headers={"User-Agent": user_agent})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers.get("Content-Type", "").partition(";")[0], text


def series(text: str) -> dict[str, float]:
    """Values by name with labels, of all lines except comments."""
    found = re.findall(r"^([^#\n]\S*(?:\{.*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def counted(port: int) -> dict[str, float]:
    """The proxy series of a server."""
    return {name: value for name, value in series(fetch(port)[2]).items() if name.startswith("toxiproxy_")}


def test_links_with_equal_labels_are_summed() -> None:
    traffic = Traffic()
    traffic.link_ended(UP, 5, 3)
    traffic.link_ended(UP, 2, 2)
    traffic.link_ended(UP._replace(direction="downstream"), 0, 0)
    labels = 'listener="127.0.0.1:1",proxy="p",upstream="127.0.0.1:2"}'
    assert series(ProxyMetrics(traffic, runtime=False).text()) == {
        f'toxiproxy_proxy_received_bytes_total{{direction="upstream",{labels}': 7,
        f'toxiproxy_proxy_received_bytes_total{{direction="downstream",{labels}': 0,
        f'toxiproxy_proxy_sent_bytes_total{{direction="upstream",{labels}': 5,
        f'toxiproxy_proxy_sent_bytes_total{{direction="downstream",{labels}': 0,
    }


def test_bytes_sent_to_a_broken_destination_do_not_count() -> None:
    traffic = Traffic()
    traffic.link_ended(UP, 5, None)
    text = ProxyMetrics(traffic, runtime=False).text()
    assert [name.partition("{")[0] for name in series(text)] == ["toxiproxy_proxy_received_bytes_total"]
    assert "sent" not in text


def test_labels_are_escaped() -> None:
    traffic = Traffic()
    traffic.link_ended(UP._replace(proxy='a"b\\c\nd'), 1, None)
    assert 'proxy="a\\"b\\\\c\\nd"' in ProxyMetrics(traffic, runtime=False).text()


def test_every_series_has_its_help_and_type() -> None:
    traffic = Traffic()
    traffic.link_ended(UP, 1, 1)
    text = ProxyMetrics(traffic, runtime=True).text()
    for name in {name.partition("{")[0] for name in series(text)}:
        assert text.count(f"# HELP {name} ") == 1
        assert re.search(f"^# TYPE {name} (counter|gauge)\n{name}", text, re.MULTILINE)


def test_the_process_is_shown_with_its_own_numbers() -> None:
    metrics = series(ProxyMetrics(None, runtime=True).text())
    assert not any(name.startswith("toxiproxy") for name in metrics)
    assert metrics["process_start_time_seconds"] == pytest.approx(psutil.Process().create_time(), abs=2.0)
    assert 0 < metrics["process_cpu_seconds_total"] <= time.process_time()
    with socket.socket(), socket.socket():
        if "process_open_fds" in metrics:
            later = series(ProxyMetrics(None, runtime=True).text())
            assert later["process_open_fds"] == metrics["process_open_fds"] + 2
            assert 0 < metrics["process_resident_memory_bytes"] < metrics["process_virtual_memory_bytes"]


@pytest.mark.parametrize("kind", rig.KINDS)
def test_without_the_option_there_is_no_such_path(kind: str) -> None:
    with rig.start_server(kind) as server:
        assert fetch(server.port)[0] == 404


@pytest.mark.parametrize("kind", rig.KINDS)
def test_a_link_counts_once_it_has_ended(backend_with: BackendWith, kind: str) -> None:
    backend = backend_with(rig.answer_with(b"answer"))
    with rig.start_server(kind, "-proxy-metrics") as server:
        proxy = FaultProxy("127.0.0.1", server.port)
        listen = proxy.create("p", "127.0.0.1:0", f"localhost:{backend.port}").listen
        proxy.add_toxic("p", "limit_data", {"bytes": 4})
        with rig.connect(int(listen.rpartition(":")[2])) as client:
            client.sendall(b"xyz")
            assert rig.read_to_end(client) == (b"answ", "EOF")
        rig.wait_until(lambda: len(counted(server.port)) == 4, "both links to be counted")
        labels = f'listener="{listen}",proxy="p",upstream="localhost:{backend.port}"}}'
        assert counted(server.port) == {
            f'toxiproxy_proxy_received_bytes_total{{direction="upstream",{labels}': 3,
            f'toxiproxy_proxy_received_bytes_total{{direction="downstream",{labels}': 6,
            f'toxiproxy_proxy_sent_bytes_total{{direction="upstream",{labels}': 3,
            f'toxiproxy_proxy_sent_bytes_total{{direction="downstream",{labels}': 4,
        }
        assert fetch(server.port, "POST")[:2] == (200, "text/plain")
        assert fetch(server.port, user_agent="Mozilla/5.0")[0] == 403


@pytest.mark.parametrize("kind", rig.KINDS)
@pytest.mark.parametrize("reads", [True, False])
def test_bytes_sent_to_a_resetting_client_count_only_if_it_accepted_them(
    backend_with: BackendWith, kind: str, reads: bool
) -> None:
    full = threading.Event()

    def serve(connected: socket.socket) -> None:
        connected.sendall(b"greeting")
        connected.settimeout(0.2)
        while not reads:
            try:
                connected.send(bytes(65536))
            except TimeoutError:
                full.set()
        connected.settimeout(None)
        connected.recv(1)

    backend = backend_with(serve)
    with rig.start_server(kind, "-proxy-metrics") as server:
        created = FaultProxy("127.0.0.1", server.port).create("p", "127.0.0.1:0", f"127.0.0.1:{backend.port}")
        client = rig.connect(int(created.listen.rpartition(":")[2]))
        assert rig.read_exactly(client, 8) == b"greeting"
        assert reads or full.wait(rig.LONG_S), "every buffer to be full"
        close_with_reset(client)
        # A real server does not count received bytes of such a link either; the embedded one does.
        links = 4 if reads else {"embedded": 3, "real": 2}[kind]
        rig.wait_until(lambda: len(counted(server.port)) == links, "the connection to be counted")
        sent = {name: value for name, value in counted(server.port).items() if "sent" in name and "downstream" in name}
    assert list(sent.values()) == ([8] if reads else [])


@pytest.mark.parametrize("kind", rig.KINDS)
def test_an_open_connection_does_not_count_yet(backend_with: BackendWith, kind: str) -> None:
    backend = backend_with(rig.echo)
    with rig.start_server(kind, "-proxy-metrics") as server:
        created = FaultProxy("127.0.0.1", server.port).create("p", "127.0.0.1:0", f"127.0.0.1:{backend.port}")
        with rig.connect(int(created.listen.rpartition(":")[2])) as client:
            rig.round_trip_s(client)
            assert counted(server.port) == {}


@pytest.mark.parametrize("kind", rig.KINDS)
def test_the_process_has_the_same_names(kind: str) -> None:
    with rig.start_server(kind, "-runtime-metrics") as server:
        metrics = series(fetch(server.port)[2])
    for name in ("process_cpu_seconds_total", "process_max_fds", "process_start_time_seconds"):
        assert name in metrics
    assert ("python_info" if kind == "embedded" else "go_info") in {name.partition("{")[0] for name in metrics}


def test_bytes_are_counted_under_the_upstream_they_were_sent_to(backend_with: BackendWith) -> None:
    backend = backend_with(rig.echo)
    with rig.ServerProcess("--proxy-metrics") as server:
        proxy = FaultProxy("127.0.0.1", server.port)
        listen = proxy.create("p", "127.0.0.1:0", f"127.0.0.1:{backend.port}").listen
        with rig.connect(int(listen.rpartition(":")[2])) as client:
            rig.round_trip_s(client)
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=rig.LONG_S)
            connection.request("POST", "/proxies/p", '{"upstream": "127.0.0.1:1"}')
            assert connection.getresponse().status == 200
            connection.close()
            totals = counted(server.port)
    assert {re.findall('upstream="(.*?)"', name)[0] for name in totals} == {f"127.0.0.1:{backend.port}"}
    assert set(totals.values()) == {4.0}
