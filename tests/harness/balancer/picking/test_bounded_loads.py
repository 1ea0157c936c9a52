"""Bounded loads: never over ceil(c m / n), always room somewhere, return to the owner without any state."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.balancer.picking.bounded_loads import BoundedLoads
from harness.balancer.picking.ring import HashRing

DETERMINISTIC = settings(derandomize=True, deadline=None, database=None, max_examples=100)
HUNDREDTHS = st.integers(100, 300)


@pytest.mark.parametrize(
    ("factor", "total", "backends", "cap"),
    [
        (1.25, 1, 4, 1),  # the first request always has room
        (1.25, 8, 4, 3),  # one and a half times the mean: rounding up matters at small loads
        (1.25, 400, 4, 125),
        (1.0, 8, 4, 2),
        (1.1, 10, 1, 11),  # in binary, 1.1 times 10 is above 11
        (1.1, 100, 11, 10),
    ],
)
def test_the_cap_is_the_ceiling(factor: float, total: int, backends: int, cap: int) -> None:
    assert BoundedLoads(factor).cap(total, backends) == cap


@DETERMINISTIC
@given(hundredths=HUNDREDTHS, total=st.integers(0, 10**6), backends=st.integers(1, 1000))
def test_the_cap_is_exact(hundredths: int, total: int, backends: int) -> None:
    exact = math.ceil(Fraction(hundredths, 100) * total / backends)
    assert BoundedLoads(hundredths / 100).cap(total, backends) == exact


@pytest.mark.parametrize("factor", [0.99, 0.0, -1.0, math.nan, math.inf])
def test_a_factor_below_one_leaves_no_room(factor: float) -> None:
    with pytest.raises(ValueError, match="expected 1 or more"):
        BoundedLoads(factor)


@DETERMINISTIC
@given(
    hundredths=HUNDREDTHS,
    backends=st.integers(1, 6),
    keys=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60),
)
def test_no_backend_is_ever_given_more_than_its_bound(
    hundredths: int, backends: int, keys: list[tuple[int, bool]]
) -> None:
    """Requests of few keys arrive, or the oldest ends: the chosen backend is within the bound at that instant."""
    bounded = BoundedLoads(hundredths / 100)
    ring = HashRing(5)
    ring.set_members(f"gpu-{number}" for number in range(backends))
    running: list[str] = []
    only_arrivals = True
    for key, arrives in keys:
        if not arrives and running:
            running.pop(0)
            only_arrivals = False
            continue
        loads = Counter(running)
        total = len(running) + 1
        in_ring_order = ring.nearest(f"model-{key}", backends)
        chosen = bounded.choose(in_ring_order, loads.__getitem__, total, backends)
        assert chosen is not None, "with all backends as candidates there is always room"
        running.append(chosen)
        bound = math.ceil(Fraction(hundredths, 100) * total / backends)
        assert loads[chosen] + 1 <= bound
        if only_arrivals:  # no request ended, so the current bound holds for all
            assert max(Counter(running).values()) <= bound


def test_one_hot_key_is_spread_and_its_home_is_filled_first() -> None:
    bounded = BoundedLoads(1.25)
    loads = Counter[str]()
    order = ["home", "second", "third", "fourth"]
    for total in range(1, 101):
        chosen = bounded.choose(order, loads.__getitem__, total, 4)
        assert chosen is not None
        loads[chosen] += 1
    assert loads == {"home": 32, "second": 31, "third": 31, "fourth": 6}


def test_all_caps_are_used_before_anyone_is_turned_away() -> None:
    """A8: ten backends of cap 10 take 100 requests of one key, instead of 10 and 90 rejections."""
    bounded = BoundedLoads(1.0)
    loads = Counter[str]()
    order = [f"gpu-{number}" for number in range(10)]
    for _ in range(100):
        chosen = bounded.choose(order, loads.__getitem__, 100, 10)
        assert chosen is not None
        loads[chosen] += 1
    assert set(loads.values()) == {10}


def test_it_goes_home_as_soon_as_home_has_room() -> None:
    bounded = BoundedLoads(1.25)
    loads = Counter({"home": 3, "next": 0})
    assert bounded.choose(["home", "next"], loads.__getitem__, 4, 2) == "next"
    loads["home"] -= 1
    assert bounded.choose(["home", "next"], loads.__getitem__, 3, 2) == "next"
    loads["home"] -= 1
    assert bounded.choose(["home", "next"], loads.__getitem__, 2, 2) == "home"


def test_candidates_are_asked_for_only_as_far_as_needed() -> None:
    def order() -> Iterator[str]:
        yield "home"
        raise AssertionError("the home has room")

    assert BoundedLoads(1.25).choose(order(), lambda name: 0, 1, 4) == "home"


def test_none_without_candidates_or_with_full_ones() -> None:
    bounded = BoundedLoads(1.0)
    assert bounded.choose([], lambda name: 0, 1, 0) is None
    assert bounded.choose(["a", "b"], lambda name: 5, 8, 4) is None
