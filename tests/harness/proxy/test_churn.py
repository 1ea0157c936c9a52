"""10,000 joins and leaves, one by one, under constant traffic: no request is lost and no resource leaks."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.live.balancers import BalancerProcess, balancing, plain_backends
from tests.harness.live.helpers import HOST, PATIENCE_S, until

JOINS = 5_000
LEVEL_AFTER = 500
"""Joins, each with its leave, before the reference level of resources is taken."""

STAY = 5
"""Maximum number of joined backends that are members at a time."""

PORTS = 12
BATCH = 16
CLIENTS = 4
PAUSE_S = 0.01
MODELS = 2
WARM_REQUESTS = 5_000
"""Requests per model and backend that fill all latency windows, whose memory is then constant."""

LIMIT_S = 120.0


class Traffic:
    """Clients in threads, each with one connection and one request at a time; can be paused."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._go = threading.Event()
        self._over = threading.Event()
        self.statuses: Counter[str] = Counter()
        self._go.set()
        self.pause_s = 0.0
        self._resting = threading.Semaphore(0)
        self._threads = [threading.Thread(target=self._client, args=(number,)) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _client(self, number: int) -> None:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=PATIENCE_S)
        turn = 0
        while not self._over.is_set():
            if not self._go.is_set():
                self._resting.release()
                self._go.wait()
                continue
            turn += 1
            # Every second request is an update: updates reach new backends at once, without a model.
            path = "/v1/updates" if turn % 2 else "/short"
            try:
                connection.request(
                    "POST", path, b"{}", {"x-model-id": f"m-{turn // 2 % MODELS}", "x-request-id": f"{number}-{turn}"}
                )
                response = connection.getresponse()
                answer = json.loads(response.read())
                self.statuses[f"{response.status}" if answer == {"id": f"{number}-{turn}"} else "garbled"] += 1
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.statuses[type(error).__name__] += 1
                connection.close()
            time.sleep(self.pause_s)  # the pace of the load
        connection.close()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold all clients, with no request in flight."""
        self._go.clear()
        for _ in self._threads:
            assert self._resting.acquire(timeout=PATIENCE_S)
        yield
        self._go.set()

    def end(self) -> None:
        """Stop all clients."""
        self._over.set()
        self._go.set()
        for thread in self._threads:
            thread.join()


class Edits:
    """Edits on one kept connection to the admin interface, each a separate request, with up to `BATCH` in flight."""

    def __init__(self, port: int) -> None:
        self._connection = socket.create_connection((HOST, port), timeout=PATIENCE_S)
        self._answers = self._connection.makefile("rb")
        self._pending = b""
        self._expected: list[int] = []
        self.made = 0

    def join(self, name: str, url: str) -> None:
        """Send a join."""
        body = json.dumps({"id": name, "url": url}).encode()
        self._add(b"POST /backends HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body), 201)

    def leave(self, name: str) -> None:
        """Send a leave."""
        self._add(b"DELETE /backends/%s HTTP/1.1\r\nHost: x\r\n\r\n" % name.encode(), 200)

    def _add(self, request: bytes, expected: int) -> None:
        self._pending += request
        self._expected.append(expected)
        if len(self._expected) == BATCH:
            self.finish()

    def finish(self) -> None:
        """Return when all are answered with success."""
        self._connection.sendall(self._pending)
        for expected in self._expected:
            assert int(self._answers.readline().split()[1]) == expected
            lines = iter(lambda: self._answers.readline().strip().lower(), b"")
            length = next(int(line.split()[1]) for line in list(lines) if line.startswith(b"content-length:"))
            self._answers.read(length)
            self.made += 1
        self._pending, self._expected = b"", []

    def close(self) -> None:
        """Close the connection."""
        self._answers.close()
        self._connection.close()


def level(balancer: BalancerProcess) -> dict[str, float]:
    """Idle memory, descriptors and tasks: the minimum of several samples, as health checks come and go."""
    until(lambda: balancer.metrics()[("steelyard_requests_in_flight",)] == 0)
    looks = []
    for _ in range(5):
        metrics = balancer.metrics()
        names = (
            "process_resident_memory_bytes",
            "process_open_fds",
            "steelyard_tasks",
            "steelyard_backends_remembered",
        )
        looks.append([metrics[(name,)] for name in names])
        time.sleep(0.02)  # spaced, so that not all coincide with one health check
    return dict(zip(("rss", "descriptors", "tasks", "remembered"), map(min, zip(*looks, strict=True)), strict=True))


@pytest.mark.slow
def test_ten_thousand_joins_and_leaves(tmp_path: Path) -> None:
    with (
        plain_backends(tmp_path, 2, ports=PORTS) as backends,
        balancing(tmp_path, [f"base-{number}={item.url}" for number, item in enumerate(backends)]) as balancer,
    ):
        addresses = [f"http://{HOST}:{port}" for item in backends for port in item.ports[1:]]
        edits, traffic = Edits(balancer.admin_port), Traffic(balancer.port)
        levels, there = [], deque[str]()
        try:
            until(lambda: traffic.statuses["200"] > WARM_REQUESTS)
            traffic.pause_s = PAUSE_S
            began_s = time.monotonic()
            for number in range(JOINS):
                there.append(f"guest-{number}")
                edits.join(there[-1], addresses[number % len(addresses)])
                if len(there) > STAY:
                    edits.leave(there.popleft())
                if number + 1 in (LEVEL_AFTER, JOINS):
                    edits.finish()
                    with traffic.held():
                        levels.append(level(balancer))
            while there:
                edits.leave(there.popleft())
            edits.finish()
            took_s = time.monotonic() - began_s
        finally:
            traffic.end()
            edits.close()
        until(lambda: balancer.metrics()[("steelyard_backends_remembered",)] == 2)
        text = balancer.ask_raw("GET", "/metrics").body.decode()
        rows = balancer.ask("GET", "/backends")[1]
    assert edits.made == 2 * JOINS
    assert took_s < LIMIT_S
    assert list(traffic.statuses) == ["200"]
    assert "guest" not in text
    assert [row["id"] for row in rows] == ["base-0", "base-1"]
    first, last = levels
    # 5 % of the descriptors and tasks would be about one; one connection more or less is chance.
    few = {"rss": 0, "descriptors": 2, "tasks": 2}
    for name, spare in few.items():
        assert last[name] <= max(1.05 * first[name], first[name] + spare), (name, levels)
