"""Shared by tests of whole processes: ports, fleets of `mockgpu serve`, and tagged requests."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.live.process.child import Child
from mockgpu.server.attempt_log import LogRow, RowKind, read_rows

HOST = "127.0.0.1"
NONCE = 77
FROM_PORT, TO_PORT = 10_000, 20_000
"""Below the kernel's range of client ports, and below the blocks of `harness.live.process.ports`."""


def free_ports(count: int) -> list[int]:
    """Ports without a listener."""
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        candidates = random.sample(range(FROM_PORT, TO_PORT), k=1_000)
        while len(ports) < count:
            port = candidates.pop()
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server((HOST, port)))
                ports.append(port)
        return ports


@contextlib.contextmanager
def child(log: Path, *words: str, pipes: bool = False) -> Iterator[Child]:
    """A running command with its output in `log`; it and its children are ended afterwards."""
    process = Child(words, log, pipes=pipes)
    try:
        yield process
    finally:
        process.stop(timeout_s=0.5)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Mock backends gpu-0, gpu-1, ... that listen on these ports, and their logs."""

    ports: list[int]
    control: int

    def urls(self) -> list[str]:
        """Their URLs, for routers."""
        return [f"http://{HOST}:{port}" for port in self.ports]

    def rows(self, backend: int) -> list[LogRow]:
        """The whole log of one backend."""
        with urllib.request.urlopen(f"http://{HOST}:{self.control}/fleet/gpu-{backend}/log", timeout=20) as answer:
            return read_rows(answer.read())

    def inferences(self, backend: int) -> list[LogRow]:
        """The rows of one backend's inference requests of this run."""
        return [row for row in self.rows(backend) if row.kind is RowKind.INFERENCE]


@contextlib.contextmanager
def fleet(folder: Path, backends: int, *options: str) -> Iterator[Fleet]:
    """`mockgpu serve` with these options, ready for requests."""
    ports = free_ports(backends)
    words = [sys.executable, "-m", "mockgpu", "serve", "--ports", ",".join(map(str, ports)), "--nonce", str(NONCE)]
    log = folder / "fleet.log"
    with child(log, *words, *options, pipes=True) as process:
        word, _, data = process.stdout.readline().decode().partition(" ")
        assert word == "ready", log.read_text()
        yield Fleet(ports, json.loads(data)["control_port"])
