"""Draining: no new requests, running ones may end until the deadline, and drained is not idle."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from harness.balancer.health.draining import Draining

NAMES = ("a", "b", "c")


def test_what_is_in_flight_ends_and_then_it_is_drained_once() -> None:
    draining = Draining(10.0)
    assert not draining.start("a", 2, now_s=0.0)
    assert draining.draining("a") and not draining.draining("b")
    assert not draining.ended("a")
    assert draining.ended("a")
    assert not draining.ended("a")


def test_drained_is_not_idle() -> None:
    """K6: with nothing in flight it would be the least loaded; it gets no requests until it is back."""
    draining = Draining(10.0)
    assert draining.start("a", 0, now_s=0.0)
    assert draining.draining("a")
    assert not draining.ended("a"), "nothing was in flight"
    draining.keep_only(frozenset("a"))
    assert draining.draining("a")
    draining.keep_only(frozenset("b"))
    assert not draining.draining("a")


def test_the_deadline_bounds_a_drain_and_is_told_once() -> None:
    """K5: one endless stream."""
    draining = Draining(10.0)
    draining.start("a", 1, now_s=5.0)
    assert draining.next_s() == 15.0
    assert draining.expired(14.9) == ()
    assert draining.expired(15.0) == ("a",)
    assert draining.expired(16.0) == () and draining.next_s() is None
    assert draining.draining("a")
    assert draining.ended("a"), "the attempt that was cut still ends"


def test_telling_it_again_gives_it_no_more_time() -> None:
    draining = Draining(10.0)
    draining.start("a", 1, now_s=0.0)
    assert not draining.start("a", 7, now_s=9.0)
    assert draining.expired(10.0) == ("a",)
    assert draining.ended("a")


def test_drained_in_time_is_never_cut() -> None:
    draining = Draining(10.0)
    draining.start("a", 1, now_s=0.0)
    draining.ended("a")
    assert draining.next_s() is None
    assert draining.expired(99.0) == ()


def test_one_that_returns_is_simply_back() -> None:
    draining = Draining(10.0)
    draining.start("a", 2, now_s=0.0)
    draining.returned("a")
    assert not draining.draining("a") and draining.next_s() is None
    assert not draining.ended("a"), "old attempts count like any others"
    assert draining.expired(99.0) == ()
    draining.start("a", 1, now_s=100.0)
    assert draining.next_s() == 110.0


def test_the_others_keep_their_state() -> None:
    draining = Draining(10.0)
    draining.start("a", 1, now_s=0.0)
    draining.start("b", 1, now_s=3.0)
    draining.returned("a")
    assert draining.next_s() == 13.0


def test_who_left_is_forgotten_when_drained() -> None:
    draining = Draining(10.0)
    draining.start("a", 1, now_s=0.0)
    draining.start("b", 0, now_s=0.0)
    draining.start("c", 0, now_s=0.0)
    draining.keep_only(frozenset("c"))
    assert [name for name in NAMES if draining.draining(name)] == ["a", "c"]
    assert draining.ended("a")
    draining.keep_only(frozenset("c"))
    assert not draining.draining("a")


@pytest.mark.parametrize("deadline_s", [0.0, -1.0, math.nan])
def test_a_drain_needs_time(deadline_s: float) -> None:
    with pytest.raises(ValueError, match="expected above 0"):
        Draining(deadline_s)


class Machine(RuleBasedStateMachine):
    """Requests, drains and returns in any order, compared with independent counts."""

    def __init__(self) -> None:
        super().__init__()
        self.draining = Draining(5.0)
        self.now_s = 0.0
        self.in_flight = dict.fromkeys(NAMES, 0)
        self.since_s: dict[str, float] = {}
        self.reported: set[str] = set()

    @rule(name=st.sampled_from(NAMES))
    def send(self, name: str) -> None:
        if not self.draining.draining(name):
            self.in_flight[name] += 1

    @precondition(lambda self: any(self.in_flight.values()))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([name for name in NAMES if self.in_flight[name]]))
        self.in_flight[name] -= 1
        assert self.draining.ended(name) == (name in self.since_s and not self.in_flight[name])

    @rule(name=st.sampled_from(NAMES))
    def start(self, name: str) -> None:
        self.since_s.setdefault(name, self.now_s)
        assert self.draining.start(name, self.in_flight[name], self.now_s) == (not self.in_flight[name])

    @rule(name=st.sampled_from(NAMES))
    def back(self, name: str) -> None:
        self.since_s.pop(name, None)
        self.reported.discard(name)
        self.draining.returned(name)

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        due = {name for name, since_s in self.since_s.items() if self.now_s - since_s >= 5.0 and self.in_flight[name]}
        assert set(self.draining.expired(self.now_s)) == due - self.reported
        self.reported |= due

    @invariant()
    def who_drains_gets_nothing(self) -> None:
        assert {name for name in NAMES if self.draining.draining(name)} == set(self.since_s)
        due_s = [
            self.since_s[name] + 5.0 for name in self.since_s if self.in_flight[name] and name not in self.reported
        ]
        assert self.draining.next_s() == min(due_s, default=None)


TestMachine = Machine.TestCase
TestMachine.settings = settings(derandomize=True, deadline=None, database=None, max_examples=50, stateful_step_count=40)
