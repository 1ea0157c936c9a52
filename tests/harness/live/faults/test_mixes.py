"""Overlapping faults have the effects of the table in a live history; the simulator is tested with the same table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from harness.evidence.history import History
from harness.evidence.run_events import RunEvent, StepEffective, StepHealed, events_of
from harness.live.session import LiveSession
from harness.scenario.faults import Down, Latency
from harness.scenario.model import ClaimsError
from harness.targets.reference import ReferenceTarget
from tests.harness.evidence.test_store import assert_equal
from tests.harness.fault_mixes import CASES, RUNS, lacking, scenario
from tests.harness.live.helpers import traffic

SEED = 11
"""A seed for which every backend owns four keys or more."""
TRIES = 3
NOISY_S = 0.02

EVENTS: list[RunEvent] = []
EVENTS_OF_RUNS: list[list[RunEvent]] = []
"""What a listener was told of the run being played, and of each of the histories."""


@pytest.fixture(scope="module")
def session() -> Iterator[LiveSession]:
    with LiveSession(listener=EVENTS.append) as opened:
        yield opened


@pytest.fixture(scope="module")
def histories(session: LiveSession) -> list[History]:
    """The runs, each repeated while effects are missing and the machine was noisy."""
    played = []
    for run, mixes in enumerate(RUNS):
        for _ in range(TRIES):
            EVENTS.clear()
            history = session.play(ReferenceTarget(), scenario(run), SEED)
            if history.slack_s.max() <= NOISY_S or not any(lacking(history, run, name) for name in mixes):
                break
        played.append(history)
        EVENTS_OF_RUNS.append(list(EVENTS))
    return played


@pytest.mark.slow
@pytest.mark.parametrize(("run", "name"), CASES)
def test_it_shows(histories: list[History], run: int, name: str) -> None:
    lacks = lacking(histories[run], run, name)
    if lacks and histories[run].slack_s.max() > NOISY_S:
        pytest.skip(f"not decided, the machine was too noisy {TRIES} times: {lacks}")
    assert lacks == []


def test_a_history_tells_which_fault_proxy_it_came_from(histories: list[History]) -> None:
    assert histories[0].facts["fault_proxy"]["kind"] == "embedded"
    assert histories[0].facts["fault_proxy"]["version"].count(".") == 2


def test_a_listener_is_told_what_the_history_says(histories: list[History]) -> None:
    for history, told in zip(histories, EVENTS_OF_RUNS, strict=True):
        expected = [
            replace(event, hits=None) if isinstance(event, StepEffective) else event for event in events_of(history)
        ]
        assert sorted(told, key=lambda event: event.at_s) == expected  # type: ignore[union-attr]
        assert any(isinstance(event, StepHealed) for event in told)


def test_a_live_history_is_equal_after_loading(histories: list[History], tmp_path: Path) -> None:
    for history in histories:
        history.save(tmp_path / "run.history")
        assert_equal(History.load(tmp_path / "run.history"), history)


def test_what_does_not_go_together_is_refused_before_anything_starts(
    session: LiveSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Mock()
    monkeypatch.setattr("harness.live.session.FleetProcess", fleet)
    with pytest.raises(ClaimsError, match=r"^scenario short: Latency of gpu-0 at 0\.3 s cannot begin during Down"):
        session.play(ReferenceTarget(), traffic(1.0, Down("gpu-0", 0.1), Latency("gpu-0", 0.3, 0.1)), SEED)
    assert not fleet.called
