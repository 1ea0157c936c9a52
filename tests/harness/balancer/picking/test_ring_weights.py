"""Weights on the ring: shares follow them, only the weighted member's own keys move, history leaves no trace."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.balancer.picking.ring import HashRing

KEYS = [f"model-{number}" for number in range(80)]
NAMES = [f"gpu-{number}" for number in range(5)]
WEIGHTS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([0.0, 0.04, 0.3, 0.6, 1.0, 1.7]), max_size=5)
DETERMINISTIC = settings(derandomize=True, deadline=None, database=None, max_examples=60)


def weighted(weights: Mapping[str, float], virtual_nodes: int = 10) -> HashRing:
    ring = HashRing(virtual_nodes)
    ring.set_weights(weights)
    return ring


def mapping(ring: HashRing) -> dict[str, str | None]:
    return {key: ring.owner(key) for key in KEYS}


@pytest.fixture(params=["sound hash", "few points", "one point"])
def collisions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring's own hash, and hashes so poor that points of different members collide."""
    places: int | None = {"sound hash": None, "few points": 7, "one point": 1}[request.param]
    genuine: Callable[[bytes], int] = xxhash.xxh64_intdigest
    if places is not None:
        monkeypatch.setattr("harness.balancer.picking.ring.xxhash.xxh64_intdigest", lambda data: genuine(data) % places)


@pytest.mark.usefixtures("collisions")
class TestWhateverTheHash:
    """Also where points collide (A3) and where one member's weight changed often before (A9)."""

    @DETERMINISTIC
    @given(history=st.lists(WEIGHTS, max_size=5), last=WEIGHTS)
    def test_only_the_weights_count_and_not_what_they_were(
        self, history: list[dict[str, float]], last: dict[str, float]
    ) -> None:
        used = HashRing(10)
        for weights in history:
            used.set_weights(weights)
        used.set_weights(last)
        fresh = weighted(last)
        assert used.members == fresh.members == set(last)
        assert [list(used.nearest(key, 5)) for key in KEYS] == [list(fresh.nearest(key, 5)) for key in KEYS]

    @DETERMINISTIC
    @given(weights=WEIGHTS.filter(bool), low=st.floats(0, 2), high=st.floats(0, 2), data=st.data())
    def test_a_weight_change_moves_only_that_members_own_keys(
        self, weights: dict[str, float], low: float, high: float, data: st.DataObject
    ) -> None:
        changed = data.draw(st.sampled_from(sorted(weights)))
        low, high = sorted((low, high))
        ring = weighted({**weights, changed: high})
        before = mapping(ring)
        ring.set_weights({**weights, changed: low})
        after = mapping(ring)
        moved = {key for key in KEYS if before[key] != after[key]}
        assert all(before[key] == changed for key in moved), "a fall of weight moved a key of another member"
        ring.set_weights({**weights, changed: high})
        assert mapping(ring) == before

    @DETERMINISTIC
    @given(weights=WEIGHTS)
    def test_bulk_look_up_says_what_owner_says(self, weights: dict[str, float]) -> None:
        ring = weighted(weights)
        indices, names = ring.owners(KEYS)
        assert [names[index] if index >= 0 else None for index in indices.tolist()] == [ring.owner(key) for key in KEYS]
        assert names == tuple(sorted(weights))
        assert [next(ring.nearest(key, 1), None) for key in KEYS] == [ring.owner(key) for key in KEYS]

    @DETERMINISTIC
    @given(weights=WEIGHTS)
    def test_weight_zero_owns_nothing(self, weights: dict[str, float]) -> None:
        """B3: weight 0 gets nothing, even if no other member is eligible."""
        ring = weighted({**weights, "off": 0.0})
        assert all("off" not in ring.nearest(key, 9) for key in KEYS)
        assert ring.owner("m", lambda name: name == "off") is None
        positive = [name for name, weight in weights.items() if round(10 * weight) > 0]
        assert sorted(ring.nearest("m", 9)) == sorted(positive)


def test_equal_weights_are_the_ring_without_weights() -> None:
    ring = HashRing(10)
    ring.set_members(NAMES)
    assert mapping(ring) == mapping(weighted(dict.fromkeys(NAMES, 1.0)))


def test_a_member_that_comes_back_has_its_weight_and_not_the_default() -> None:
    """B2, B7: only the last weights count."""
    weights = {"heavy": 0.9, "light": 0.1}
    ring = weighted(weights, virtual_nodes=150)
    before = mapping(ring)
    ring.set_weights({"light": 0.1})
    ring.set_members(["heavy", "light"])
    assert mapping(ring) != before
    ring.set_weights(weights)
    assert mapping(ring) == before


def test_points_are_the_rounded_share_of_the_virtual_nodes() -> None:
    """Weight 0.6 of 150 virtual nodes: 90 points; with three of weight 1, their mean share over rings is 0.6/3.6."""
    shares = []
    for number in range(40):
        names = [f"ring-{number}-{index}" for index in range(4)]
        ring = weighted({**dict.fromkeys(names, 1.0), names[0]: 0.6}, virtual_nodes=150)
        assert len(ring._points) == 3 * 150 + 90
        indices, _ = ring.owners([f"key-{index}" for index in range(4000)])
        shares.append((indices == 0).mean())
    assert sum(shares) / 40 == pytest.approx(0.6 / 3.6, abs=0.01)  # standard error 0.0026


def test_survivors_keep_every_key_when_each_member_leaves_in_turn() -> None:
    """A1: over all members in turn every key moves exactly once."""
    names = [f"gpu-{number}" for number in range(10)]
    keys = [f"key-{number}" for number in range(20_000)]
    ring = HashRing()
    ring.set_members(names)
    before, order = ring.owners(keys)
    moves = Counter[str]()
    for leaver in names:
        ring.set_members([name for name in names if name != leaver])
        after, left = ring.owners(keys)
        moved = {key for key, old, new in zip(keys, before, after, strict=True) if order[old] != left[new]}
        assert moved == {key for key, old in zip(keys, before, strict=True) if order[old] == leaver}
        moves.update(moved)
    assert set(moves.values()) == {1} and len(moves) == len(keys)


@pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf])
def test_a_weight_that_is_none_is_refused_and_changes_nothing(weight: float) -> None:
    ring = weighted({"a": 1.0, "b": 1.0})
    with pytest.raises(ValueError, match="expected 0 or more"):
        ring.set_weights({"a": 1.0, "c": weight})
    assert ring.members == {"a", "b"}


def test_bulk_look_up_on_an_empty_ring() -> None:
    indices, names = HashRing().owners(["a", "b"])
    assert indices.tolist() == [-1, -1] and names == ()
    assert HashRing().owners([])[0].tolist() == []
