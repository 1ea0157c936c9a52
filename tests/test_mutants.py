"""Mutants: each is caught by the properties that it names, and by no other; every property catches one.

`wrongly_judged` takes the world, so that chosen mutants can be run in others as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from harness.judge import Judge
from harness.model import World
from harness.property import catalogue
from harness.sim.world import play
from harness.target import Target
from harness.targets.python import PythonTarget
from harness.targets.reference import ReferenceTarget
from harness.verdict import Outcome

SEED = 1
WORLDS = {World.SIM: play}
PROPERTIES = {item.name: item for item in catalogue()}

REPEAT = "affinity.repeat.same-backend"
ONLY_DEPARTED = "affinity.leave.only-departed-keys-move"
SHARE = "affinity.leave.share"
RETURN = "affinity.return.restores"
HIT_RATE = "cache.affinity.hit-rate"
FAILOVER = "health.failover.within-bound"
OWN_ANSWER = "integrity.answer-belongs-to-request"
EVEN = "spread.one-connection.even"

CONFORMING = "tests.mutants.policies:Conforming"

KILLS: dict[str, set[str]] = {
    "tests.mutants.policies:Modulo": {ONLY_DEPARTED, SHARE},
    "tests.mutants.policies:NeverEjects": {FAILOVER},
    "tests.mutants.policies:ListOrder": {ONLY_DEPARTED, SHARE, RETURN},
    "tests.mutants.policies:PicksAtRandom": {REPEAT, ONLY_DEPARTED, SHARE, RETURN, HIT_RATE, EVEN},
    "tests.mutants.policies:SticksToConnection": {EVEN},
    "tests.mutants.gateways:MixesAnswersUp": {OWN_ANSWER},
}
"""Mutant -> the properties that must fail on it. All others must pass: its fault does not touch them."""


def target_of(mutant: str) -> Target:
    """A mutant as a stranger's code."""
    return PythonTarget(f"python:{mutant}")


def outcomes(
    target: Target, names: Iterable[str] = PROPERTIES, world: World = World.SIM, seed: int = SEED
) -> dict[str, Outcome]:
    """What becomes of these properties on a target in a world of `WORLDS`."""
    judge = Judge(target, seed, WORLDS)
    return {name: judge.judge(PROPERTIES[name], world).outcome for name in names}


def wrongly_judged(mutant: str, world: World = World.SIM) -> dict[str, Outcome]:
    """The properties with another outcome than the table says; the same question in every world."""
    found = outcomes(target_of(mutant), world=world)
    due = {name: Outcome.FAIL if name in KILLS.get(mutant, set()) else Outcome.PASS for name in PROPERTIES}
    return {name: outcome for name, outcome in found.items() if outcome is not due[name]}


@pytest.mark.parametrize("mutant", KILLS)
def test_a_mutant_fails_where_it_must_and_only_there(mutant: str) -> None:
    assert wrongly_judged(mutant) == {}


@pytest.mark.parametrize("seed", range(1, 4))
def test_the_conforming_policy_passes(seed: int) -> None:
    assert set(outcomes(target_of(CONFORMING), seed=seed).values()) == {Outcome.PASS}


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_reference_passes(seed: int) -> None:
    assert set(outcomes(ReferenceTarget(), seed=seed).values()) == {Outcome.PASS}


def test_every_property_is_killed_by_a_mutant() -> None:
    assert set(PROPERTIES) == set().union(*KILLS.values())


def test_all_properties_are_judged_in_seconds() -> None:
    start_s = time.perf_counter()
    outcomes(ReferenceTarget(), seed=99)
    assert time.perf_counter() - start_s < 10.0
