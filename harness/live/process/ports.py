"""A block of ports for a run, derived from its seed, below the range that the kernel gives to clients.

Several balancers hash address and port, so a repeat of a run must see the same ports to see the same ring. Where a
port of the block is taken the next block is used; the record says which one it was.

Ports are free until their listeners are up, so a second run of the same seed that starts at the same time would take
the same ones. Therefore a run holds its block from the start: it binds a port of the block that nothing else needs. The
kernel lets go of it when the process dies, it counts for all users alike, and no lock file is left behind.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from harness.scenario.model import HarnessError

FIRST_PORT = 20_000
BLOCK = 64
BLOCKS = 190
MOST_BACKENDS = 28
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class PortBlock:
    """Ports of one run: four of its own, then one per fault proxy, then one per backend; the last is its lock."""

    base: int

    @property
    def balancer(self) -> int:
        """Where the balancer listens."""
        return self.base

    @property
    def admin(self) -> int:
        """The balancer's admin interface."""
        return self.base + 1

    @property
    def fault_control(self) -> int:
        """Control API of the fault proxy."""
        return self.base + 2

    @property
    def fleet_control(self) -> int:
        """Control API of the mock fleet."""
        return self.base + 3

    def proxy(self, backend: int) -> int:
        """What the balancer is told of backend number `backend`."""
        return self.base + 4 + backend

    def backend(self, backend: int) -> int:
        """Where backend number `backend` really listens."""
        return self.base + 4 + MOST_BACKENDS + backend

    @property
    def lock(self) -> int:
        """What is bound, and never listened at, by the run that holds the block."""
        return self.base + BLOCK - 1


def is_free(port: int, host: str = HOST) -> bool:
    """Whether nothing listens on `port` (connections that linger in TIME_WAIT do not count)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def bound(port: int, host: str = HOST) -> socket.socket | None:
    """A socket bound to `port`, which nobody else can bind while it is open; None if somebody has done so."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        holder.bind((host, port))
    except OSError:
        holder.close()
        return None
    return holder


@contextmanager
def port_block(seed: int, backends: int) -> Iterator[PortBlock]:
    """Hold the first block from the seed's own on that nobody holds and whose ports are all free.

    HarnessError if there is none.
    """
    if backends > MOST_BACKENDS:
        raise HarnessError(f"{backends} backends: a live run has ports for {MOST_BACKENDS}")
    own = int.from_bytes(hashlib.sha256(f"ports/{seed}".encode()).digest()[:4], "big") % BLOCKS
    for step in range(BLOCKS):
        block = PortBlock(FIRST_PORT + (own + step) % BLOCKS * BLOCK)
        wanted = [block.balancer, block.admin, block.fault_control, block.fleet_control]
        wanted += [block.proxy(number) for number in range(backends)]
        wanted += [block.backend(number) for number in range(backends)]
        holder = bound(block.lock)
        if holder is None:
            continue
        with holder:
            if all(is_free(port) for port in wanted):
                yield block
                return
    last = FIRST_PORT + BLOCKS * BLOCK
    raise HarnessError(f"no {BLOCK} free ports in a row between {FIRST_PORT} and {last} on {HOST}; free some")
