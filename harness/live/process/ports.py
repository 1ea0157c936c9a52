"""A block of ports for a run, derived from its seed, below the kernel's range of client ports.

Several balancers hash address and port, so a repeated run needs the same ports to get the same ring. If a port of the
block is in use, the next block is taken; the record names the block.

Ports are free until their listeners start, so two simultaneous runs of the same seed would choose the same ones.
Therefore a run locks its block from the start by binding an otherwise unused port of it. The kernel releases that port
when the process dies, the lock works across users, and no lock file remains.
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
    """Ports of one run: four for its servers, then one per fault proxy, then one per backend; the last is the lock."""

    base: int

    @property
    def balancer(self) -> int:
        """The balancer's port for clients."""
        return self.base

    @property
    def admin(self) -> int:
        """Port of the balancer's admin interface."""
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
        """Port of the fault proxy for backend number `backend`; the balancer gets this one."""
        return self.base + 4 + backend

    def backend(self, backend: int) -> int:
        """Port on which backend number `backend` itself listens."""
        return self.base + 4 + MOST_BACKENDS + backend

    @property
    def lock(self) -> int:
        """Port that the run holding the block binds without listening."""
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
    """A socket bound to `port`, exclusive while it is open; None if the port is bound already."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        holder.bind((host, port))
    except OSError:
        holder.close()
        return None
    return holder


@contextmanager
def port_block(seed: int, backends: int) -> Iterator[PortBlock]:
    """Hold the first unlocked block whose ports are all free, starting at the seed's own.

    HarnessError if there is none.
    """
    if backends > MOST_BACKENDS:
        raise HarnessError(f"{backends} backends: a live run has ports for {MOST_BACKENDS}")
    own = int.from_bytes(hashlib.sha256(f"ports/{seed}".encode()).digest()[:4], "big") % BLOCKS
    for step in range(BLOCKS):
        block = PortBlock(FIRST_PORT + (own + step) % BLOCKS * BLOCK)
        needed = [block.balancer, block.admin, block.fault_control, block.fleet_control]
        needed += [block.proxy(number) for number in range(backends)]
        needed += [block.backend(number) for number in range(backends)]
        holder = bound(block.lock)
        if holder is None:
            continue
        with holder:
            if all(is_free(port) for port in needed):
                yield block
                return
    last = FIRST_PORT + BLOCKS * BLOCK
    raise HarnessError(f"no {BLOCK} free ports in a row between {FIRST_PORT} and {last} on {HOST}; free some")
