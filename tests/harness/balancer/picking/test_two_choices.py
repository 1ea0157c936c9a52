"""The less loaded of two: never the single most loaded, random ties, all pairs equally likely."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.balancer.picking.two_choices import less_loaded_of_two

DETERMINISTIC = settings(derandomize=True, deadline=None, database=None)


def test_none_of_none() -> None:
    assert less_loaded_of_two([], lambda name: 0.0, Random(1)) is None


def test_the_only_one_whatever_its_load() -> None:
    assert less_loaded_of_two(["a"], lambda name: 99.0, Random(1)) == "a"


@DETERMINISTIC
@given(loads=st.lists(st.integers(0, 9), min_size=2, max_size=6, unique=True), seed=st.integers(0, 10_000))
def test_never_the_unique_worst(loads: list[int], seed: int) -> None:
    load = {f"gpu-{number}": float(value) for number, value in enumerate(loads)}
    generator = Random(seed)
    picked = {less_loaded_of_two(list(load), load.__getitem__, generator) for _ in range(20)}
    assert max(load, key=load.__getitem__) not in picked


def counts_of(load: dict[str, float], picks: int) -> Counter[str | None]:
    generator = Random(7)
    return Counter(less_loaded_of_two(list(load), load.__getitem__, generator) for _ in range(picks))


def test_ties_are_broken_evenly() -> None:
    counts = counts_of(dict.fromkeys("abcd", 3.0), 8000)
    assert stats.chisquare([counts[name] for name in "abcd"]).pvalue > 1e-4


def test_shares_by_rank_are_those_of_pairs() -> None:
    """Of four, the best is in three of the six pairs, the second wins two, the third one, the worst none."""
    counts = counts_of({"a": 2.0, "b": 1.0, "c": 4.0, "d": 3.0}, 6000)
    assert counts["c"] == 0
    assert stats.chisquare([counts[name] for name in "bad"], [3000, 2000, 1000]).pvalue > 1e-4
