"""The hash ring: a function of the member set alone, few moved keys, and shares as predicted by theory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.balancer.picking.ring import HashRing

KEYS = [f"model-{number}" for number in range(60)]
NAMES = [f"gpu-{number}" for number in range(6)]
MEMBERS = st.sets(st.sampled_from(NAMES))
DETERMINISTIC = settings(derandomize=True, deadline=None, database=None, max_examples=60)


def ring_of(*members: str, virtual_nodes: int = 10) -> HashRing:
    ring = HashRing(virtual_nodes)
    ring.set_members(members)
    return ring


def mapping(ring: HashRing) -> dict[str, str | None]:
    return {key: ring.owner(key) for key in KEYS}


@pytest.fixture(params=["sound hash", "few points", "one point"])
def collisions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring's own hash, and hashes so poor that points of different members, and keys, collide."""
    places: int | None = {"sound hash": None, "few points": 7, "one point": 1}[request.param]
    genuine: Callable[[bytes], int] = xxhash.xxh64_intdigest
    if places is not None:
        monkeypatch.setattr("harness.balancer.picking.ring.xxhash.xxh64_intdigest", lambda data: genuine(data) % places)


def test_an_empty_ring_owns_nothing() -> None:
    ring = HashRing()
    assert ring.members == frozenset()
    assert ring.owner("m") is None
    assert list(ring.nearest("m", 3)) == []


@pytest.mark.parametrize("virtual_nodes", [0, -1])
def test_a_member_needs_a_point(virtual_nodes: int) -> None:
    with pytest.raises(ValueError, match="expected 1 or more"):
        HashRing(virtual_nodes)


@pytest.mark.usefixtures("collisions")
class TestSets:
    """With any hash."""

    @DETERMINISTIC
    @given(history=st.lists(MEMBERS, max_size=4), last=MEMBERS, order=st.randoms(use_true_random=False))
    def test_only_the_set_counts(self, history: list[set[str]], last: set[str], order: Random) -> None:
        used = HashRing(10)
        for members in history:
            used.set_members(members)
        shuffled = sorted(last)
        order.shuffle(shuffled)
        used.set_members(shuffled)
        assert used.members == last
        assert mapping(used) == mapping(ring_of(*sorted(last)))

    @DETERMINISTIC
    @given(members=MEMBERS.filter(bool), data=st.data())
    def test_a_leave_moves_only_the_leavers_keys(self, members: set[str], data: st.DataObject) -> None:
        leaver = data.draw(st.sampled_from(sorted(members)))
        ring = ring_of(*members)
        before = mapping(ring)
        ring.set_members(members - {leaver})
        after = mapping(ring)
        assert {key for key in KEYS if before[key] != after[key]} == {key for key in KEYS if before[key] == leaver}
        ring.set_members(members)
        assert mapping(ring) == before

    @DETERMINISTIC
    @given(members=MEMBERS, count=st.integers(0, 8), key=st.sampled_from(KEYS))
    def test_nearest_are_the_owners_as_members_leave(self, members: set[str], count: int, key: str) -> None:
        left = set(members)
        expected: list[str | None] = []
        while left and len(expected) < count:
            expected.append(ring_of(*left).owner(key))
            left -= {str(expected[-1])}
        assert list(ring_of(*members).nearest(key, count)) == expected

    @DETERMINISTIC
    @given(members=MEMBERS, eligible=MEMBERS, key=st.sampled_from(KEYS))
    def test_who_is_not_eligible_is_skipped(self, members: set[str], eligible: set[str], key: str) -> None:
        chosen = ring_of(*members).owner(key, eligible.__contains__)
        assert chosen == ring_of(*(members & eligible)).owner(key)


def test_colliding_points_go_to_the_first_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.balancer.picking.ring.xxhash.xxh64_intdigest", lambda data: 5)
    assert list(ring_of("b", "c", "a").nearest("m", 3)) == ["a", "b", "c"]


def test_a_key_on_a_point_belongs_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {b"a#0": 10, b"b#0": 20, b"before": 9, b"on": 10, b"after": 11, b"last": 21}
    monkeypatch.setattr("harness.balancer.picking.ring.xxhash.xxh64_intdigest", places.__getitem__)
    ring = ring_of("a", "b", virtual_nodes=1)
    assert [ring.owner(key) for key in ("before", "on", "after", "last")] == ["a", "a", "b", "a"]


def test_owners_are_the_same_in_every_release() -> None:
    ring = ring_of("gpu-0", "gpu-1", "gpu-2", "gpu-3", virtual_nodes=150)
    assert "".join(str(ring.owner(f"model-{number}"))[-1] for number in range(12)) == "311201102230"


@pytest.mark.parametrize(("members", "low", "high"), [(3, 0.743, 1.275), (4, 0.729, 1.298), (8, 0.704, 1.348)])
def test_shares_are_balanced_for_150_virtual_nodes(members: int, low: float, high: float) -> None:
    """Least and largest share over the mean: 1e-4 quantiles of Dirichlet shares, for keys without number."""
    ring = ring_of(*(f"gpu-{number}" for number in range(members)), virtual_nodes=150)
    keys = 100_000
    counts = Counter(ring.owner(f"key-{number}") for number in range(keys))
    mean = keys / members
    assert low < min(counts.values()) / mean < max(counts.values()) / mean < high


def test_one_virtual_node_is_not_balanced() -> None:
    counts = Counter(ring_of(*NAMES, virtual_nodes=1).owner(f"key-{number}") for number in range(3000))
    assert max(counts.values()) > 2 * 3000 / len(NAMES)
