"""Every kind of step has its effect of the table in a simulated history; the live world uses the same table."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import get_args

import pytest

from harness.evidence.history import History
from harness.scenario.faults import Step
from harness.sim.world import play
from tests.harness.fault_effects import CASES, IDS, TRIALS, Effect, Trial


@cache
def played(trial: Trial) -> History:
    """The run of a trial."""
    return play(trial.target, trial.scenario(), 1)


@cache
def still(trial: Trial) -> History:
    """The trial's run without its steps."""
    return play(trial.target, replace(trial.scenario(), timeline=()), 1)


def test_every_kind_is_in_the_table() -> None:
    assert {effect.kind for _, effect in CASES} == set(get_args(Step))
    assert all(len(trial.effects) == len({effect.kind for effect in trial.effects}) for trial in TRIALS)


@pytest.mark.parametrize(("trial", "effect"), CASES, ids=IDS)
def test_it_shows_and_heals(trial: Trial, effect: Effect) -> None:
    assert trial.lacking(played(trial), effect) == []


@pytest.mark.parametrize(("trial", "effect"), CASES, ids=IDS)
def test_it_does_not_show_without_it(trial: Trial, effect: Effect) -> None:
    """The table examines evidence: it fails for a run in which only the log of steps contains the fault."""
    assert bool(trial.lacking(replace(still(trial), steps=played(trial).steps), effect)) == effect.visible


def test_the_same_seed_gives_the_same_history() -> None:
    assert all(play(trial.target, trial.scenario(), 1).digest() == played(trial).digest() for trial in TRIALS)
