"""A shell process and raw backends, for several files of tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.harness.live.helpers import Behave, RawBackend, ShellProcess

Serve = Callable[[Behave], RawBackend]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShellProcess]:
    shell = ShellProcess(tmp_path_factory.mktemp("shell"))
    shell.await_listening()
    yield shell
    assert shell.child.status is None, shell.child.ending()
    shell.child.stop()


@pytest.fixture
def shell(process: ShellProcess) -> ShellProcess:
    """The shell of all tests, without backends."""
    process.use()
    return process


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts raw backends; all are closed in the end."""
    started: list[RawBackend] = []

    def start(behave: Behave) -> RawBackend:
        started.append(RawBackend(behave))
        return started[-1]

    yield start
    for backend in started:
        backend.close()
