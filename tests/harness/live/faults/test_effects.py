"""Every kind of step has the effects of the table in a live history; the simulator is tested with the same table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest

from harness.evidence.history import History
from harness.live.session import LiveSession
from harness.scenario.faults import Step
from tests.harness.fault_effects import CASES, IDS, Effect, Trial

SEED = 11
"""A seed for which every backend owns four keys or more."""
TRIES = 3
NOISY_S = 0.02


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
            if not lacks or self._runs[trial].slack_s.max() <= NOISY_S:
                return lacks
            del self._runs[trial]
        return lacks


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
