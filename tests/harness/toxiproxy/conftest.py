"""Fixtures: one server process for the folder, and no left-over proxies in any test."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from harness.toxiproxy.client import FaultProxy
from tests.harness.toxiproxy.rig import Backend, ServerProcess


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """A running fault proxy; it must log nothing and stop cleanly."""
    with ServerProcess("--seed", "1") as process:
        yield process


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[FaultProxy]:
    """A client of the fault proxy; proxies created by a test are deleted after it."""
    client = FaultProxy("127.0.0.1", server.port)
    client.clear_connections()
    yield client
    client.delete_all()


@pytest.fixture
def backend_with() -> Iterator[Callable[[Callable[[socket.socket], object]], Backend]]:
    """Factory of backends, which are closed after the test."""
    backends: list[Backend] = []

    def make(serve: Callable[[socket.socket], object]) -> Backend:
        backends.append(Backend(serve))
        return backends[-1]

    yield make
    for backend in backends:
        backend.close()


@pytest.fixture
def behind(
    proxy: FaultProxy, backend_with: Callable[[Callable[[socket.socket], object]], Backend]
) -> Callable[[Callable[[socket.socket], object]], tuple[Backend, int]]:
    """Factory of a backend behind a proxy named `p`; returns the backend and the port of the proxy."""

    def make(serve: Callable[[socket.socket], object]) -> tuple[Backend, int]:
        backend = backend_with(serve)
        created = proxy.create("p", "127.0.0.1:0", f"127.0.0.1:{backend.port}")
        return backend, int(created.listen.rpartition(":")[2])

    return make
