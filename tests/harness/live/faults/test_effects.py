"""Every kind of step has the effects of the table in a live history; the simulator is tested with the same table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest

from harness.evidence.history import History
from harness.live.session import LiveSession
from harness.scenario.faults import Step
from tests.harness.fault_effects import CASES, IDS, Effect, Trial
from tests.harness.fault_evidence import UNTIL_S

SEED = 11
"""A seed for which every backend owns four keys or more."""
TRIES = 3
NOISY_S = 0.02
RESTARTED_BY_S = UNTIL_S + 0.5
"""Heals later than this leave too little of a run: the machine took long to start a process."""


class Plays:
    """The runs of the trials; a noisy run is repeated."""

    def __init__(self, session: LiveSession) -> None:
        self._session = session
        self._runs: dict[Trial, History] = {}

    def lacking(self, trial: Trial, effect: Effect) -> list[str]:
        """Missing effects of a trial's run, repeated while effects are missing and the run was noisy."""
        for _ in range(TRIES):
            if trial not in self._runs:
                self._runs[trial] = self._session.play(trial.target, trial.scenario(), SEED)
            lacks = trial.lacking(self._runs[trial], effect)
            if not lacks or not is_noisy(self._runs[trial]):
                return lacks
            del self._runs[trial]
        pytest.skip(f"not decided, the machine was too noisy {TRIES} times: {lacks}")


def is_noisy(history: History) -> bool:
    """Whether the machine, not a fault, may be why a run lacks an effect."""
    return bool(history.slack_s.max() > NOISY_S) or any(step.healed_s > RESTARTED_BY_S for step in history.steps)


@pytest.fixture(scope="module")
def plays() -> Iterator[Plays]:
    with LiveSession() as session:
        yield Plays(session)


def test_every_kind_is_in_the_table() -> None:
    assert {effect.kind for _, effect in CASES} == set(get_args(Step))


@pytest.mark.slow
@pytest.mark.parametrize(("trial", "effect"), CASES, ids=IDS)
def test_it_shows_and_heals(plays: Plays, trial: Trial, effect: Effect) -> None:
    assert plays.lacking(trial, effect) == []
