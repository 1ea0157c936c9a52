"""A bug of a mock server yields a harness error for every property, never a verdict on the balancer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from harness.evidence.history import History
from harness.judge import Judge
from harness.live import fleet as module
from harness.live.process.child import Child
from harness.live.session import LiveSession
from harness.property.declare import declare
from harness.property.findings import Findings, held
from harness.property.verdict import Outcome, Record
from harness.scenario.model import World
from harness.targets.reference import ReferenceTarget
from tests.harness.live.helpers import traffic

BUGGY = """
import mockgpu.api.completions
def broken(*words):
    raise RuntimeError("planted")
mockgpu.api.completions.{function} = broken
from mockgpu.cli import main
main()
"""


@pytest.fixture(scope="module")
def session() -> Iterator[LiveSession]:
    with LiveSession() as opened:
        yield opened


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a method in `mockgpu.api.completions` raise in every fleet of this test."""

    def break_function(function: str) -> None:
        def start(words: Sequence[str], log: Path, environment: Mapping[str, str]) -> Child:
            python, dash_m, name, *rest = words
            assert (dash_m, name) == ("-m", "mockgpu")
            return Child([python, "-c", BUGGY.format(function=function), *rest], log, environment)

        monkeypatch.setattr(module, "Child", start)

    return break_function


def judged(session: LiveSession) -> Record:
    @declare("live.short.attempted", scenario=lambda claims: traffic(0.4))
    def attempted(history: History, claims: object) -> Findings:
        """A check that ignores the answers of attempts."""
        yield held(len(history.attempts) > 0, at_s=0.0, observed=len(history.attempts), bound=1)

    return Judge(ReferenceTarget(), 11, {World.LIVE: session.play}).judge(attempted, World.LIVE)


def test_without_the_bug_it_passes(session: LiveSession) -> None:
    assert judged(session).outcome is Outcome.PASS


def test_a_bug_that_shows_in_the_run_only(session: LiveSession, plant: Callable[[str], None]) -> None:
    plant("AnswerByGet.parse")  # the preflight sends POST alone
    record = judged(session)
    assert record.outcome is Outcome.ERROR
    assert record.reason.startswith("the mock gpu-0 itself failed at "), record.reason
    assert record.reason.endswith(" log entries: RuntimeError: planted")


def test_a_bug_that_shows_at_once_is_not_a_balancer_that_does_not_get_ready(
    session: LiveSession, plant: Callable[[str], None]
) -> None:
    plant("Completions.parse")
    record = judged(session)
    assert record.outcome is Outcome.ERROR
    assert record.reason.endswith(": RuntimeError: planted"), record.reason
