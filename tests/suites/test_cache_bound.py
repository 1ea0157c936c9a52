"""A conforming ring misses the bound of cache.affinity.hit-rate for at most one of 10,000 seeds.

A seed determines only the names of the models and the arrivals. A ring that gives no GPU more models than fit needs
one cold load for each model. The other seeds are replayed without a simulator: a GPU's memory keeps the most recently
used models. Full simulations verify the replay.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from harness.balancer.picking.ring import HashRing
from harness.claims.features import Limits
from harness.judge import Judge
from harness.property.verdict import Outcome
from harness.scenario.arrivals import draw, key_name
from harness.scenario.model import World
from harness.sim.baselines import baseline_target
from harness.sim.world import play
from harness.targets.reference import ReferenceTarget
from suites.cache import AT_MOST, FITTING, MODELS_PER_BACKEND, affinity_hit_rate, more_models_than_fit_one
from suites.scenarios import DISTURBING

SEEDS = 10_000
SIMULATED = 30
CLAIMS = ReferenceTarget().claims
SCENARIO = replace(more_models_than_fit_one(CLAIMS), off=frozenset(cls.table for cls in (*DISTURBING, Limits)))
MODELS = MODELS_PER_BACKEND * SCENARIO.backends


@cache
def ring() -> HashRing:
    """The ring of the fleet."""
    hash_ring = HashRing(150)
    hash_ring.set_members(SCENARIO.backend_ids)
    return hash_ring


def owners(seed: int) -> list[str]:
    """The owner in the ring of each model of this seed."""
    return [str(ring().owner(key_name(seed, key))) for key in range(MODELS)]


@cache
def overfull() -> tuple[int, ...]:
    """Seeds with a GPU that owns more models than fit."""
    return tuple(seed for seed in range(SEEDS) if max(Counter(owners(seed)).values()) > FITTING)


def loads(gpus: Sequence[str | int], models: Sequence[int]) -> int:
    """Cold loads of requests for `models` at `gpus`, if each GPU keeps its `FITTING` most recently used models."""
    memory: dict[str | int, OrderedDict[int, None]] = {}
    count = 0
    for gpu, model in zip(gpus, models, strict=True):
        resident = memory.setdefault(gpu, OrderedDict())
        count += model not in resident
        resident[model] = None
        resident.move_to_end(model)
        if len(resident) > FITTING:
            resident.popitem(last=False)
    return count


def replayed(seed: int) -> tuple[int, int]:
    """Cold loads of the ring and of round robin, replayed."""
    models = [arrival.key for arrival in draw(SCENARIO.load, seed)]
    gpus = owners(seed)
    in_turn = [position % SCENARIO.backends for position in range(len(models))]
    return loads([gpus[model] for model in models], models), loads(in_turn, models)


def simulated(seed: int) -> tuple[int, int]:
    """Cold loads of the reference and of round robin, simulated."""
    runs = [play(target, SCENARIO, seed) for target in (ReferenceTarget(), baseline_target("round_robin", CLAIMS))]
    return runs[0].cold_loads(), runs[1].cold_loads()


def test_the_ring_misses_the_bound_in_at_most_one_of_ten_thousand_seeds() -> None:
    assert 0 < len(overfull()) < 0.02 * SEEDS, "too many seeds, or none, depend on the replay"
    figures = {seed: replayed(seed) for seed in (*range(SIMULATED), *overfull())}
    missed = [seed for seed, (count, round_robin) in figures.items() if count > AT_MOST * round_robin]
    assert len(missed) <= 1
    for seed in set(range(SIMULATED)) - set(overfull()):
        assert figures[seed][0] == MODELS
    assert min(round_robin for _, round_robin in figures.values()) > 4 * MODELS


@pytest.mark.slow
def test_full_simulations_pass() -> None:
    for seed in range(SIMULATED):
        record = Judge(ReferenceTarget(), seed, {World.SIM: play}).judge(affinity_hit_rate, World.SIM)
        assert record.outcome is Outcome.PASS, f"seed {seed}: {record.reason}"


@pytest.mark.parametrize("position", [0, 1, 2])
def test_full_simulations_agree_with_the_replay(position: int) -> None:
    """Seeds with an overfull GPU. A few loads differ, because a model that is in use or loading cannot be evicted."""
    seed = overfull()[position]
    for found, expected in zip(simulated(seed), replayed(seed), strict=True):
        assert found == pytest.approx(expected, rel=0.1)
