"""Session affinity: sticky, except on overloaded or departed backends, and without flapping."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.balancer.picking.session_affinity import AffinitySettings, SessionAffinity

ORDER = ("a", "b", "c")
SETTINGS = AffinitySettings(
    load_factor=1.5, least_cap=10.0, return_share=0.5, stay_s=5.0, expiry_s=100.0, sessions=1000
)
DETERMINISTIC = settings(derandomize=True, deadline=None, database=None, max_examples=100)


class Bench:
    """Session affinity among backends whose loads and eligibility a test sets; the mean is over the eligible ones."""

    def __init__(self, chosen: AffinitySettings = SETTINGS, order: Sequence[str] = ORDER) -> None:
        self.affinity = SessionAffinity(chosen)
        self.order = order
        self.loads = dict.fromkeys(order, 0.0)
        self.out: set[str] = set()
        self.now_s = 0.0

    def ask(self, session: str = "s", **loads: float) -> str | None:
        self.loads.update(loads)
        eligible = [name for name in self.order if name not in self.out]
        mean = sum(self.loads[name] for name in eligible) / len(eligible) if eligible else 0.0
        return self.affinity.choose(
            session, iter(self.order), eligible.__contains__, self.loads.__getitem__, mean, self.now_s
        )


def test_the_first_request_goes_to_the_first_in_ring_order() -> None:
    assert Bench().ask() == "a"


def test_a_session_stays_though_the_ring_order_changes() -> None:
    bench = Bench()
    assert bench.ask() == "a"
    bench.order = ("b", "a", "c")
    assert bench.ask() == "a"
    assert bench.ask("other") == "b"


def test_a_session_stays_where_it_was_placed_first_even_if_that_was_a_spill() -> None:
    bench = Bench()
    assert bench.ask(a=10) == "b"
    assert bench.ask(a=0) == "b"


def test_below_the_least_cap_no_session_is_moved_whatever_the_mean() -> None:
    bench = Bench()
    bench.ask()
    assert bench.ask(a=9.9, b=0, c=0) == "a"


def test_an_overloaded_home_is_left_and_the_move_is_remembered() -> None:
    bench = Bench()
    bench.ask()
    assert bench.ask(a=10) == "b"
    bench.now_s = 50.0
    assert bench.ask(a=5) == "b", "between the two thresholds it stays where it is"
    assert bench.ask(a=4.9) == "a"


def test_the_cap_follows_the_mean() -> None:
    bench = Bench()
    bench.ask()
    assert bench.ask(a=29, b=10, c=19.1) == "a"  # mean 19.37, cap 29.05
    assert bench.ask(a=30, b=10, c=19.1) == "b"


def test_a_moved_session_stays_a_while_though_home_is_idle_at_once() -> None:
    bench = Bench()
    bench.ask()
    bench.ask(a=10)
    bench.now_s = 4.9
    assert bench.ask(a=0) == "b"
    bench.now_s = 5.0
    assert bench.ask() == "a"


def test_a_moved_session_goes_home_early_rather_than_to_a_third() -> None:
    bench = Bench()
    bench.ask()
    bench.ask(a=10)
    bench.order = ("c", "b", "a")
    assert bench.ask(a=0, b=10) == "a"


def test_a_moved_session_moves_on_if_its_refuge_is_overloaded_too() -> None:
    bench = Bench(AffinitySettings(1.0, 10.0, 0.5))
    bench.ask()
    assert bench.ask(a=12) == "b"
    assert bench.ask(b=12) == "c"
    assert bench.ask(c=12) == "c", "if all are overloaded, no session moves"
    assert bench.ask(b=4) == "b"


def test_if_all_are_overloaded_a_new_session_goes_to_the_least_loaded() -> None:
    bench = Bench(AffinitySettings(1.0, 10.0, 0.5))
    assert bench.ask("first", a=30, b=30, c=30) == "a"
    assert bench.ask("second", a=30, b=40, c=29) == "c"


def test_a_load_that_is_no_number_is_not_idle() -> None:
    bench = Bench()
    assert (
        bench.affinity.choose("s", "abc", lambda name: True, {"a": math.nan, "b": 1, "c": 1}.__getitem__, 1, 0) == "b"
    )


@DETERMINISTIC
@given(loads=st.lists(st.floats(5.0, 20.0), min_size=2, max_size=60))
def test_between_the_thresholds_nothing_flaps(loads: list[float]) -> None:
    """The home's load varies, never below the lower threshold: the session moves once at most."""
    bench = Bench(AffinitySettings(1.0, 10.0, 0.5, stay_s=0.0))
    bench.ask()
    places = []
    for load in loads:
        bench.now_s += 1.0
        places.append(bench.ask(a=load, b=1.0, c=1.0))
    assert sum(before != after for before, after in pairwise(["a", *places])) <= 1


@DETERMINISTIC
@given(loads=st.lists(st.floats(0.0, 20.0), min_size=2, max_size=60), gap_s=st.sampled_from([0.1, 1.0, 2.0]))
def test_a_session_returns_at_most_once_per_stay(loads: list[float], gap_s: float) -> None:
    bench = Bench(AffinitySettings(1.0, 10.0, 0.5, stay_s=5.0))
    bench.ask()
    returns: list[float] = []
    place = "a"
    for load in loads:
        bench.now_s += gap_s
        chosen = bench.ask(a=load, b=1.0, c=1.0)
        if (place, chosen) == ("b", "a"):
            returns.append(bench.now_s)
        place = str(chosen)
    assert all(later - earlier >= 5.0 - 1e-9 for earlier, later in pairwise(returns))


class TestEligibility:
    """N1: affinity to a backend that cannot serve falls back and is reassigned."""

    def test_a_home_that_is_out_is_replaced_and_the_new_home_kept(self) -> None:
        bench = Bench()
        bench.ask()
        bench.out = {"a"}
        assert bench.ask() == "b"
        bench.out = set()
        bench.now_s = 60.0
        assert bench.ask() == "b", "its cache is there now"

    def test_the_refuge_becomes_home_when_the_home_goes_out(self) -> None:
        bench = Bench()
        bench.ask()
        bench.ask(a=10)
        bench.out = {"a"}
        assert bench.ask() == "b"
        bench.out = set()
        bench.now_s = 60.0
        assert bench.ask(a=0) == "b"

    def test_a_refuge_that_goes_out_sends_the_session_home_or_on(self) -> None:
        bench = Bench()
        bench.ask()
        bench.ask(a=10)
        bench.out = {"b"}
        assert bench.ask() == "c"
        bench.out = {"b", "c"}
        assert bench.ask() == "a"

    def test_none_is_eligible(self) -> None:
        bench = Bench()
        bench.out = set(ORDER)
        assert bench.ask() is None
        assert len(bench.affinity) == 0

    def test_only_eligible_backends_enter_the_comparison_of_loads(self) -> None:
        """N3: loads 5 and 5, and 0 at an ineligible backend: the sticky key stays."""
        bench = Bench(AffinitySettings(load_factor=1.2, least_cap=0.5, return_share=0.9))
        bench.out = {"c"}
        bench.ask(a=5, b=5, c=0)
        assert [bench.ask() for _ in range(20)] == ["a"] * 20


class TestForgetting:
    """N5: affinity ends with the cache that it preserves, and its memory is bounded."""

    def test_a_backend_that_restarted_holds_nobody(self) -> None:
        bench = Bench()
        bench.ask()
        bench.order = ("b", "a", "c")
        bench.affinity.forget("a")
        assert len(bench.affinity) == 0
        assert bench.ask() == "b"

    def test_who_is_away_from_it_makes_the_refuge_a_home(self) -> None:
        bench = Bench()
        bench.ask()
        bench.ask(a=10)
        bench.affinity.forget("a")
        bench.now_s = 60.0
        assert bench.ask(a=0) == "b"

    def test_who_took_refuge_there_goes_home(self) -> None:
        bench = Bench()
        bench.ask()
        bench.ask(a=10)
        bench.affinity.forget("b")
        assert bench.ask(a=0) == "a"

    def test_one_that_returns_is_not_overloaded_from_before(self) -> None:
        bench = Bench()
        bench.ask(a=10)
        bench.affinity.forget("a")
        assert bench.ask("new", a=6) == "a"

    def test_expiry_counts_from_the_last_request(self) -> None:
        bench = Bench()
        bench.ask()
        bench.order = ("b", "a", "c")
        bench.now_s = 99.0
        assert bench.ask() == "a"
        bench.now_s = 198.9
        assert bench.ask() == "a"
        bench.now_s = 299.0
        assert bench.ask() == "b"

    def test_the_least_recently_used_goes_first(self) -> None:
        bench = Bench(AffinitySettings(sessions=2))
        bench.ask("s")
        bench.ask("t")
        bench.ask("s")
        bench.ask("u")
        bench.order = ("b", "a", "c")
        assert len(bench.affinity) == 2
        assert bench.ask("s") == "a"
        assert bench.ask("t") == "b"


@pytest.mark.parametrize(
    "wrong",
    [
        {"load_factor": 0.9},
        {"least_cap": -1},
        {"return_share": 0},
        {"return_share": 1.1},
        {"stay_s": -1},
        {"expiry_s": 0},
        {"sessions": 0},
    ],
)
def test_settings_that_make_no_sense(wrong: Mapping[str, float]) -> None:
    make: Callable[..., AffinitySettings] = AffinitySettings
    with pytest.raises(ValueError, match="expected"):
        make(**wrong)
