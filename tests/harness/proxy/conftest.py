"""A driver process and raw backends, shared by several test files."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.harness.live.helpers import Behave, DriverProcess, RawBackend

Serve = Callable[[Behave], RawBackend]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverProcess]:
    driver = DriverProcess(tmp_path_factory.mktemp("driver"))
    driver.await_listening()
    yield driver
    assert driver.child.status is None, driver.child.ending()
    driver.child.stop()


@pytest.fixture
def driver(process: DriverProcess) -> DriverProcess:
    """The shared driver process, without backends."""
    process.use()
    return process


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts raw backends and closes all at the end."""
    started: list[RawBackend] = []

    def start(behave: Behave) -> RawBackend:
        started.append(RawBackend(behave))
        return started[-1]

    yield start
    for backend in started:
        backend.close()
