"""Every mutant fails exactly the properties in its `kills`, and every property fails on some mutant.

`wrongly_judged` takes the world, so that selected mutants can be run in other worlds as well.
"""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Iterable

import pytest

import tests.mutants
from harness.judge import Judge
from harness.property.declare import catalogue
from harness.property.verdict import Outcome
from harness.scenario.model import World
from harness.sim.world import play
from harness.targets.base import Target
from harness.targets.python import PythonTarget
from harness.targets.reference import ReferenceTarget
from tests.mutants.sketch import SKETCH, Fault

pytestmark = pytest.mark.slow

SEED = 1
WORLDS = {World.SIM: play}
PROPERTIES = {item.name: item for item in catalogue()}

CONFORMING = (
    "tests.mutants.policies:Conforming",
    "tests.mutants.breakers:Conforming",
    "tests.mutants.rings:Bounding",
    "tests.mutants.retries:RetryingOutages",
    "tests.mutants.health_shares:Weighing",
    "tests.mutants.hedges:Hedging",
    "tests.mutants.health_checks:Checking",
    "tests.mutants.spreads:Spreading",
    "tests.mutants.limiters:Limiting",
    "tests.mutants.ejectors:Ejecting",
)
"""Base classes of the mutants, without a fault."""


def mutants() -> dict[str, type]:
    """Classes with `kills` of their own in tests.mutants, by the path in a `python:` target."""
    found: dict[str, type] = {}
    for info in pkgutil.iter_modules(tests.mutants.__path__, "tests.mutants."):
        for name, value in vars(importlib.import_module(info.name)).items():
            if isinstance(value, type) and value.__module__ == info.name and "kills" in vars(value):
                found[f"{info.name}:{name}"] = value
    return found


MUTANTS = mutants()


def names_in(mutant: str, attribute: str) -> set[str]:
    """Property names in a mutant's `kills`, `vacuous` or `undetermined`; empty if it has no such attribute."""
    return set(vars(MUTANTS[mutant]).get(attribute, ()))


def target_of(mutant: str) -> Target:
    """The mutant as a `python:` target."""
    return PythonTarget(f"python:{mutant}")


def outcomes(
    target: Target, names: Iterable[str] = PROPERTIES, world: World = World.SIM, seed: int = SEED
) -> dict[str, Outcome]:
    """Outcomes of these properties on a target in a world of `WORLDS`."""
    judge = Judge(target, seed, WORLDS)
    return {name: judge.judge(PROPERTIES[name], world).outcome for name in names}


def wrongly_judged(mutant: str, world: World = World.SIM) -> dict[str, Outcome]:
    """Properties with another outcome than the mutant's attributes demand, in a world of `WORLDS`."""
    found = outcomes(target_of(mutant), world=world)
    kills = names_in(mutant, "kills")
    expected = dict.fromkeys(PROPERTIES, Outcome.PASS)
    expected |= dict.fromkeys(kills, Outcome.FAIL) | dict.fromkeys(names_in(mutant, "vacuous"), Outcome.VACUOUS)
    judged = {name: outcome for name, outcome in found.items() if outcome is not Outcome.UNSUPPORTED or name in kills}
    judged = {name: outcome for name, outcome in judged.items() if name not in names_in(mutant, "undetermined")}
    return {name: outcome for name, outcome in judged.items() if outcome is not expected[name]}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_fails_where_it_must_and_only_there(mutant: str) -> None:
    assert wrongly_judged(mutant) == {}


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("target", CONFORMING)
def test_conforming_code_passes(target: str, seed: int) -> None:
    judged = set(outcomes(target_of(target), seed=seed).values()) - {Outcome.UNSUPPORTED}
    assert judged == {Outcome.PASS}


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_reference_passes(seed: int) -> None:
    assert set(outcomes(ReferenceTarget(), seed=seed).values()) == {Outcome.PASS}


def test_every_property_is_killed_by_a_mutant() -> None:
    assert set(PROPERTIES) == set().union(*(names_in(mutant, "kills") for mutant in MUTANTS))


def test_mutants_name_existing_properties() -> None:
    named = {name for mutant in MUTANTS for name in names_in(mutant, "vacuous") | names_in(mutant, "undetermined")}
    assert named <= set(PROPERTIES)


@pytest.mark.parametrize("fault", SKETCH, ids=lambda fault: fault.number)
def test_each_fault_of_the_sketch_is_a_mutant_that_a_property_kills(fault: Fault) -> None:
    assert fault.property in names_in(fault.mutant, "kills")


def test_all_properties_are_judged_in_seconds() -> None:
    start_s = time.process_time()
    outcomes(ReferenceTarget(), seed=99)
    assert time.process_time() - start_s < 15.0
