"""Levels: weights in tenths for the ring, without flapping; only the backend's own keys move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.balancer.picking.ring import HashRing
from harness.balancer.picking.weight_quantiser import WeightQuantiser

DETERMINISTIC = settings(derandomize=True, deadline=None, database=None, max_examples=200)
ROUNDING = 1e-9


def followed(weights: Sequence[float], hysteresis: float = 0.02) -> list[float]:
    """The level of `a` after each of these weights; checks that changes, and only they, are reported."""
    levels = WeightQuantiser(hysteresis)
    observed: list[float] = []
    for weight in weights:
        changed = levels.update("a", weight)
        assert changed == (not observed or levels.level("a") != observed[-1])
        observed.append(levels.level("a"))
    return observed


def test_the_nearest_tenth_at_first() -> None:
    assert [followed([weight])[0] for weight in (0.0, 0.54, 0.56, 0.6, 0.97, 1.0)] == [0.0, 0.5, 0.6, 0.6, 1.0, 1.0]


def test_followed_only_beyond_the_edge_by_the_margin() -> None:
    assert followed([0.6, 0.56, 0.54, 0.535, 0.525, 0.545, 0.565, 0.575]) == [0.6, 0.6, 0.6, 0.6, 0.5, 0.5, 0.5, 0.6]


def test_trembling_at_an_edge_moves_nothing() -> None:
    assert set(followed([0.6] + [0.54, 0.56] * 50)) == {0.6}
    assert len(set(followed([0.6] + [0.54, 0.56] * 50, hysteresis=0.0))) == 2


def test_a_great_change_is_followed_at_once() -> None:
    assert followed([1.0, 0.6, 0.31, 1.0]) == [1.0, 0.6, 0.3, 1.0]


def test_weight_0_is_level_0_at_once_and_no_other_weight_is() -> None:
    """S11: hysteresis keeps no points for a backend that is out. D1: no positive weight is rounded to 0."""
    assert followed([0.1, 0.0, 0.001, 0.0]) == [0.1, 0.0, 0.1, 0.0]


def test_backends_have_levels_of_their_own() -> None:
    levels = WeightQuantiser()
    assert [levels.update("a", 1.0), levels.update("b", 0.3), levels.update("a", 1.0)] == [True, True, False]
    assert (levels.level("a"), levels.level("b")) == (1.0, 0.3)


def test_who_returns_starts_anew_and_who_stays_does_not() -> None:
    """S8: after a return the nearest tenth counts, not the previous level."""
    levels = WeightQuantiser()
    for name in "ab":
        levels.update(name, 0.6)
    levels.keep_only(frozenset("b"))
    with pytest.raises(KeyError):
        levels.level("a")
    assert levels.update("a", 0.54)
    assert not levels.update("b", 0.54)
    assert (levels.level("a"), levels.level("b")) == (0.5, 0.6)


@DETERMINISTIC
@given(
    hysteresis=st.floats(0.001, 0.049),
    low=st.floats(0.001, 1.2),
    positions=st.lists(st.floats(0, 1), min_size=1, max_size=40),
)
def test_within_twice_the_hysteresis_a_level_changes_at_most_once(
    hysteresis: float, low: float, positions: list[float]
) -> None:
    width = 2 * hysteresis - ROUNDING
    observed = followed([low + position * width for position in positions], hysteresis)
    assert sum(before != after for before, after in pairwise(observed)) <= 1


@DETERMINISTIC
@given(hysteresis=st.floats(0, 0.049), weights=st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_a_level_is_never_further_off_than_half_a_tenth_and_the_margin(hysteresis: float, weights: list[float]) -> None:
    for weight, level in zip(weights, followed(weights, hysteresis), strict=True):
        assert abs(level - weight) <= max(0.05 + hysteresis + ROUNDING, 0.1 if 0 < weight < 0.1 else 0.0)
        assert (level == 0) == (weight == 0)


def test_on_the_ring_only_its_own_keys_move_and_the_kept_part_follows_the_points_kept() -> None:
    names = [f"gpu-{number}" for number in range(4)]
    keys = [f"model-{number}" for number in range(20_000)]
    levels, ring = WeightQuantiser(), HashRing(150)

    def owners(weight: float) -> list[str]:
        for name in names:
            levels.update(name, weight if name == "gpu-0" else 1.0)
        ring.set_weights({name: levels.level(name) for name in names})
        indices, members = ring.owners(keys)
        return [members[index] for index in indices]

    before, after, back = owners(1.0), owners(0.6), owners(1.0)
    moved = {was for was, now in zip(before, after, strict=True) if was != now}
    assert moved == {"gpu-0"}
    assert after.count("gpu-0") / before.count("gpu-0") == pytest.approx(0.6, abs=0.08)
    assert back == before


@pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf])
def test_weights_that_make_no_sense(weight: float) -> None:
    with pytest.raises(ValueError, match="of a: expected 0 or more"):
        WeightQuantiser().update("a", weight)


@pytest.mark.parametrize("hysteresis", [-0.01, 0.05, math.nan])
def test_a_hysteresis_that_makes_no_sense(hysteresis: float) -> None:
    with pytest.raises(ValueError, match="expected from 0 to below"):
        WeightQuantiser(hysteresis)
