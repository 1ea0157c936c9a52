"""The load process of the live world: readiness, jobs, and the report of its end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL

import pytest

from harness.evidence.records import read_requests
from harness.live.load.load_process import LoadProcess
from harness.load.job import LoadJob
from harness.scenario.model import Failure, HarnessError, Keys, Load, Method, Stream
from tests.harness.live.helpers import HOST, PATIENCE_S, RawBackend, fine, until


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadProcess]:
    process = LoadProcess(tmp_path_factory.mktemp("load"))
    process.await_ready()
    yield process
    process.stop()
    assert not process.alive


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LoadProcess]:
    """A load process that a test may kill."""
    process = LoadProcess(tmp_path)
    process.await_ready()
    yield process
    process.stop()


@pytest.fixture
def backend() -> Iterator[RawBackend]:
    started = RawBackend(fine)
    yield started
    started.close()


def job(backend: RawBackend, out: Path, requests: int = 20, rate_per_s: float = 200.0) -> LoadJob:
    stream = Stream("load", 0.0, rate_per_s, requests, keys=Keys(5, "sweep"), methods=(Method.GET,), timeout_s=5.0)
    url, start_s = f"http://{HOST}:{backend.port}", time.monotonic() + 0.1
    return LoadJob(Load((stream,)), 1, 0x5EED, url, start_s, ("gpu-0",), str(out))


def test_one_job_after_another(shared: LoadProcess, backend: RawBackend, tmp_path: Path) -> None:
    shared.await_ready()  # again: at once
    for turn in (1, 2):
        out = tmp_path / f"{turn}.bin"
        shared.begin(job(backend, out), tmp_path / "job.json")
        answer = shared.answer(PATIENCE_S)
        assert answer is not None
        assert answer["done"]
        assert len(read_requests(out)) == 20
        assert len(backend.calls) == 20 * turn
    assert shared.alive


def test_no_answer_within_patience(shared: LoadProcess) -> None:
    began_s = time.monotonic()
    assert shared.answer(0.1) is None
    assert time.monotonic() - began_s >= 0.1
    assert shared.answer(0.0) is None


def test_a_job_that_cannot_be_played_is_an_error_and_the_next_one_works(
    shared: LoadProcess, backend: RawBackend, tmp_path: Path
) -> None:
    wrong = job(backend, tmp_path / "missing" / "out.bin")
    shared.begin(wrong, tmp_path / "job.json")
    with pytest.raises(HarnessError, match=r"^the load process: FileNotFoundError") as caught:
        shared.answer(PATIENCE_S)
    assert "\n" not in str(caught.value)
    shared.begin(job(backend, tmp_path / "out.bin"), tmp_path / "job.json")
    answer = shared.answer(PATIENCE_S)
    assert answer is not None
    assert answer["done"]


def test_abandoned_it_reports_what_was_not_sent(shared: LoadProcess, backend: RawBackend, tmp_path: Path) -> None:
    shared.begin(job(backend, tmp_path / "out.bin", requests=6000, rate_per_s=100.0), tmp_path / "job.json")
    until(lambda: len(backend.calls) > 5)
    shared.abandon()
    answer = shared.answer(PATIENCE_S)
    assert answer is not None
    assert answer["done"]
    failures = read_requests(tmp_path / "out.bin")["failure"]
    assert len(failures) == 6000
    assert failures[0] == Failure.NONE
    assert failures[-1] == Failure.NOT_SENT


@pytest.mark.parametrize("patience_s", [PATIENCE_S, 0.0])
def test_killed_in_the_middle_it_says_how(
    own: LoadProcess, backend: RawBackend, tmp_path: Path, patience_s: float
) -> None:
    own.begin(job(backend, tmp_path / "out.bin", requests=6000, rate_per_s=100.0), tmp_path / "job.json")
    until(lambda: len(backend.calls) > 5)
    assert own.alive
    os.kill(own._child.pid, SIGKILL)
    until(lambda: not own.alive)
    for _ in range(2):
        with pytest.raises(HarnessError, match=r"^the load process ended: signal SIGKILL; last line: "):
            own.answer(patience_s)


def test_dead_before_the_job_it_says_how_and_can_be_stopped(
    own: LoadProcess, backend: RawBackend, tmp_path: Path
) -> None:
    os.kill(own._child.pid, SIGKILL)
    until(lambda: not own.alive)  # with all its threads: one that still ends may hold the pipe open
    with pytest.raises(HarnessError, match=r"^the load process ended: signal SIGKILL"):
        own.begin(job(backend, tmp_path / "out.bin"), tmp_path / "job.json")
    own.stop()
