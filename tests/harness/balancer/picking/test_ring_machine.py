"""The ring under joins, departures and weight changes in any order, compared with a new ring each time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from harness.balancer.picking.ring import HashRing

NAMES = [f"gpu-{number}" for number in range(6)]
KEYS = [f"model-{number}" for number in range(40)]
NODES = 12
WEIGHT = st.sampled_from([0.0, 0.1, 0.5, 1.0, 1.7])


class Changes(RuleBasedStateMachine):
    """One change at a time, each of which may move only the changed member's keys."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = HashRing(NODES)
        self.weights: dict[str, float] = {}

    def change(self, name: str, weight: float | None) -> None:
        """Set a member's weight, or (None) remove it, and check which keys moved."""
        before = {key: self.ring.owner(key) for key in KEYS}
        lighter = weight is None or weight <= self.weights.get(name, 0.0)
        if weight is None:
            del self.weights[name]
        else:
            self.weights[name] = weight
        self.ring.set_weights(self.weights)
        for key, owner in before.items():
            now = self.ring.owner(key)
            assert now == owner or (owner if lighter else now) == name

    @precondition(lambda self: len(self.weights) < len(NAMES))
    @rule(data=st.data(), weight=WEIGHT)
    def one_joins(self, data: st.DataObject, weight: float) -> None:
        self.change(data.draw(st.sampled_from([name for name in NAMES if name not in self.weights])), weight)

    @precondition(lambda self: self.weights)
    @rule(data=st.data())
    def one_leaves(self, data: st.DataObject) -> None:
        self.change(data.draw(st.sampled_from(sorted(self.weights))), None)

    @precondition(lambda self: self.weights)
    @rule(data=st.data(), weight=WEIGHT)
    def one_changes(self, data: st.DataObject, weight: float) -> None:
        self.change(data.draw(st.sampled_from(sorted(self.weights))), weight)

    @rule()
    def all_leave(self) -> None:
        self.weights = {}
        self.ring.set_weights({})

    @invariant()
    def the_past_leaves_no_trace(self) -> None:
        anew = HashRing(NODES)
        anew.set_weights(dict(reversed(self.weights.items())))
        assert self.ring.members == self.weights.keys()
        assert [self.ring.owner(key) for key in KEYS] == [anew.owner(key) for key in KEYS]

    @invariant()
    def all_ways_of_asking_agree(self) -> None:
        with_points = {name for name, weight in self.weights.items() if round(NODES * weight)}
        places, names = self.ring.owners(KEYS)
        for key, place in zip(KEYS, places.tolist(), strict=True):
            order = list(self.ring.nearest(key, len(NAMES)))
            assert len(order) == len(set(order)) and set(order) == with_points
            assert self.ring.owner(key) == (order[0] if order else None) == (names[place] if place >= 0 else None)
            others = order[1:]
            assert self.ring.owner(key, others.__contains__) == next(iter(others), None)


TestChanges = Changes.TestCase
TestChanges.settings = settings(derandomize=True, deadline=None, database=None, max_examples=40, stateful_step_count=25)
