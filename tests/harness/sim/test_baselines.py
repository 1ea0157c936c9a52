"""The baseline policies that properties compare a balancer with."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from harness.claims.features import Affinity, Claims
from harness.gateway.protocol import Backend, NowFunction, Request
from harness.property.declare import catalogue
from harness.scenario.model import Keys, Kind, World
from harness.sim.baselines import BASELINES, RingBaseline, RoundRobinBaseline, baseline_target
from harness.sim.world import play
from tests.harness.sim.rig import scenario, stream

REQUEST = Request(id=0, connection=0, kind=Kind.INFERENCE, method="POST", model="m")


def named(*names: str) -> list[Backend]:
    """Backends by name."""
    return [Backend(name, name) for name in names]


def test_round_robin_takes_turns_whatever_the_key() -> None:
    policy = RoundRobinBaseline()
    assert policy.pick(REQUEST) is None
    policy.update_backends(named("a", "b", "c"))
    assert [policy.pick(REQUEST) for _ in range(4)] == ["a", "b", "c", "a"]
    policy.report_result("b", 1.0, "refused")
    assert [policy.pick(REQUEST) for _ in range(2)] == ["b", "c"]
    policy.update_backends(named("a", "b"))
    assert {policy.pick(REQUEST), policy.pick(REQUEST)} == {"a", "b"}


def test_a_ring_keeps_a_model_where_it_is_and_takes_turns_without_one() -> None:
    policy = RingBaseline()
    update = replace(REQUEST, kind=Kind.UPDATE, model="")
    assert policy.pick(REQUEST) is None and policy.pick(update) is None
    policy.update_backends(named("a", "b", "c"))
    owner = policy.pick(REQUEST)
    assert [policy.pick(REQUEST) for _ in range(3)] == [owner] * 3
    assert [policy.pick(update) for _ in range(4)] == ["a", "b", "c", "a"]
    assert {policy.pick(replace(REQUEST, model=f"m-{number}")) for number in range(50)} == {"a", "b", "c"}


def test_a_baseline_plays_the_same_arrivals() -> None:
    what = scenario(load=stream(keys=Keys(5), arrivals="poisson"), backends=3)
    target = baseline_target("round_robin", Claims((Affinity(),)))
    history = play(target, what, 3)
    assert np.bincount(history.first_backends()).tolist() == [67, 67, 66]
    assert history.requests["key"].tolist() == play(target, what, 3).requests["key"].tolist()
    assert Affinity in target.claims


def test_a_baseline_lives_in_the_simulator_only() -> None:
    target = baseline_target("round_robin", Claims())
    assert target.worlds == {World.SIM}
    assert hasattr(target.gateway(frozenset(), NowFunction(), Random(1)), "handle")


def test_unknown_baselines_are_named() -> None:
    with pytest.raises(KeyError, match=r"no baseline 'best'; there are \['ring', 'round_robin'\]"):
        baseline_target("best", Claims())


def test_every_baseline_that_a_property_declares_exists() -> None:
    assert {name for item in catalogue() for name in item.baselines} <= set(BASELINES)
