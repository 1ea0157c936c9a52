"""The picking policies: shares, turns and smoothness, under any change of the candidates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.balancer.picking.policies import POLICIES, Ewma, EwmaSettings, Picker, Signals, make

NAMES = tuple(f"gpu-{number}" for number in range(10))
DETERMINISTIC = settings(derandomize=True, deadline=None, database=None, max_examples=60)


class Bench:
    """A policy whose signals are dictionaries."""

    def __init__(self, name: str, ewma: EwmaSettings | None = None, seed: int = 11) -> None:
        self.in_flight = Counter[str]()
        self.loads: dict[str, float] = {}
        self.weights: dict[str, float] = {}
        self.now_s = 0.0
        signals = Signals(
            in_flight=lambda backend: self.in_flight[backend],
            load=lambda backend, now_s: self.loads[backend] + now_s,
            weight=lambda backend: self.weights[backend],
        )
        self.policy: Picker = make(name, Random(seed), signals, ewma)

    def pick(self, candidates: Sequence[str]) -> str | None:
        return self.policy.pick(candidates, self.now_s)

    def counts(self, candidates: Sequence[str], picks: int) -> Counter[str | None]:
        return Counter(self.pick(candidates) for _ in range(picks))


@pytest.mark.parametrize("name", POLICIES)
class TestEveryPolicy:
    def bench(self, name: str) -> Bench:
        bench = Bench(name)
        bench.weights = dict.fromkeys(NAMES, 1.0)
        bench.loads = dict.fromkeys(NAMES, 0.0)
        return bench

    def test_none_of_none(self, name: str) -> None:
        assert self.bench(name).pick(()) is None

    def test_only_candidates_are_picked_also_those_discovered_later(self, name: str) -> None:
        """N6: a policy created with an empty list works with backends added later."""
        bench = self.bench(name)
        bench.pick(())
        assert set(bench.counts(NAMES[:2], 100)) == set(NAMES[:2])
        bench.policy.keep_only(frozenset(NAMES[1:3]))
        assert set(bench.counts(NAMES[1:3], 100)) == set(NAMES[1:3])

    def test_equal_candidates_share_equally(self, name: str) -> None:
        """C9: serial picks among ten equal backends; ties resolved to the first would send it all requests."""
        counts = self.bench(name).counts(NAMES, 2000)
        assert stats.chisquare([counts[backend] for backend in NAMES]).pvalue > 1e-4

    def test_the_same_seed_gives_the_same_picks(self, name: str) -> None:
        first, second = self.bench(name), self.bench(name)
        assert [first.pick(NAMES) for _ in range(50)] == [second.pick(NAMES) for _ in range(50)]

    def test_answers_are_taken_note_of(self, name: str) -> None:
        bench = self.bench(name)
        bench.policy.settle("gpu-0", 0.1, ok=True)
        bench.policy.settle("gpu-0", 0.1, ok=False)
        assert bench.pick(["gpu-0"]) == "gpu-0"


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(ValueError, match="policy 'fastest': expected one of round_robin, weighted_round_robin, random"):
        Bench("fastest")


class TestRoundRobin:
    def test_turns_are_full(self) -> None:
        bench = Bench("round_robin")
        for _ in range(5):
            assert [bench.pick(NAMES) for _ in NAMES] == list(NAMES)

    @DETERMINISTIC
    @given(orders=st.lists(st.permutations(NAMES[:5]), min_size=5, max_size=30))
    def test_turns_are_full_whatever_order_the_list_comes_in(self, orders: list[list[str]]) -> None:
        bench = Bench("round_robin")
        picks = [bench.pick(order) for order in orders]
        for start in range(0, len(picks) - 4, 5):
            assert sorted(map(str, picks[start : start + 5])) == sorted(NAMES[:5])

    def test_balance_survives_churn(self) -> None:
        """B4: one of ten flaps every five requests; an index that restarts would favour the first."""
        bench = Bench("round_robin")
        counts = Counter[str | None]()
        for number in range(1000):
            flapped = number // 5 % 2
            if number % 5 == 0:
                bench.policy.keep_only(frozenset(NAMES[flapped:]))
            counts[bench.pick(NAMES[flapped:])] += 1
        stable = [counts[name] for name in NAMES[1:]]
        assert max(stable) - min(stable) <= 1
        assert 0 < counts["gpu-0"] <= 105

    def test_one_that_was_out_does_not_make_up_for_it(self) -> None:
        bench = Bench("round_robin")
        bench.counts(NAMES[:3], 3)
        bench.counts(NAMES[1:3], 50)
        assert [bench.pick(NAMES[:3]) for _ in range(4)] == ["gpu-0", "gpu-1", "gpu-2", "gpu-0"]


class TestWeightedRoundRobin:
    def test_the_published_sequence(self) -> None:
        bench = Bench("weighted_round_robin")
        bench.weights = {"a": 5, "b": 1, "c": 1}
        assert "".join(str(bench.pick("abc")) for _ in range(14)) == "aabacaa" * 2

    def test_it_is_smooth(self) -> None:
        """B5: 11 to 3, and never more than four picks of the heavier in a row."""
        bench = Bench("weighted_round_robin")
        bench.weights = {"a": 11, "b": 3}
        picks = [bench.pick("ab") for _ in range(14 * 20)]
        assert max(len(list(run)) for name, run in groupby(picks) if name == "a") <= 4
        assert picks.count("b") == 3 * 20

    @DETERMINISTIC
    @given(weights=st.lists(st.sampled_from([0.0, 0.3, 0.6, 1.0, 5.0]), min_size=2, max_size=6))
    def test_counts_never_stray_from_the_shares(self, weights: list[float]) -> None:
        """Within one pick of the exact share at any time, from the start of a cycle (statistics: .78 for 5 5 5 3)."""
        bench = Bench("weighted_round_robin")
        names = NAMES[: len(weights)]
        bench.weights = dict(zip(names, weights, strict=True))
        counts = Counter[str | None]()
        for picks in range(1, 100):
            counts[bench.pick(names)] += 1
            if not sum(weights):
                continue
            strayed = [abs(counts[name] - picks * bench.weights[name] / sum(weights)) for name in names]
            assert max(strayed) < len(names) / 2 + 0.5

    def test_the_weight_of_now_counts(self) -> None:
        """B7, B2: a live change from equal to unequal weights; a returning backend has its own weight."""
        bench = Bench("weighted_round_robin")
        bench.weights = {"a": 5, "b": 5}
        bench.counts("ab", 100)
        bench.weights = {"a": 9, "b": 1}
        assert bench.counts("ab", 100)["a"] in (89, 90, 91)
        bench.counts("b", 30)
        bench.policy.keep_only(frozenset("b"))
        assert bench.counts("ab", 100)["a"] in (89, 90, 91)


@pytest.mark.parametrize("name", ["weighted_round_robin", "weighted_random"])
class TestWeights:
    @pytest.mark.parametrize("nothing", [0.0, -1.0, math.nan, math.inf])
    def test_zero_is_never_picked_nor_what_is_no_weight(self, name: str, nothing: float) -> None:
        """B3."""
        bench = Bench(name)
        bench.weights = {"a": 100, "b": 100, "c": nothing}
        assert set(bench.counts("abc", 2000)) == {"a", "b"}
        assert bench.pick("c") is None

    def test_shares_follow_weights(self, name: str) -> None:
        bench = Bench(name)
        bench.weights = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.6}
        counts = bench.counts("abcd", 3600)
        assert stats.chisquare([counts[backend] for backend in "abcd"], [1000, 1000, 1000, 600]).pvalue > 1e-4


def test_least_connections_always_picks_a_minimum() -> None:
    bench = Bench("least_connections")
    bench.in_flight.update({"a": 3, "b": 1, "c": 2, "d": 1})
    assert set(bench.counts("abcd", 100)) == {"b", "d"}


def test_two_choices_never_pick_the_most_loaded() -> None:
    """C1: it would win a quarter of the draws with replacement."""
    bench = Bench("two_choices")
    bench.loads = {"a": 20.0, "b": 0.0}
    assert bench.counts("ab", 1000) == {"b": 1000}


class TestEwma:
    def run(self, bench: Bench, answers: Callable[[str], tuple[float, bool]], names: str, requests: int) -> list[str]:
        """One request at a time, 10 ms apart from the end of the one before."""
        picks = []
        for _ in range(requests):
            chosen = bench.pick(names) or ""
            latency_s, ok = answers(chosen)
            bench.now_s += latency_s + 0.01
            bench.policy.settle(chosen, latency_s, ok)
            picks.append(chosen)
        return picks

    def test_the_faster_is_preferred(self) -> None:
        bench = Bench("ewma")
        picks = self.run(bench, lambda name: ({"a": 0.3, "b": 0.1, "c": 0.1}[name], True), "abc", 600)
        assert picks.count("a") < 60

    def test_errors_never_look_fast(self) -> None:
        """C11: 500 in 1 ms against 200 in 100 ms; counted as latency, the failing backend would get over 80 %."""
        bench = Bench("ewma")
        picks = self.run(bench, lambda name: (0.001, False) if name == "a" else (0.1, True), "abc", 900)
        early, late = picks[:300].count("a"), picks[600:].count("a")
        assert early < 100 and late <= early and late < 10

    def test_what_is_in_flight_multiplies_the_cost(self) -> None:
        bench = Bench("ewma")
        bench.in_flight.update({"a": 2, "b": 1})
        assert bench.counts("ab", 50) == {"b": 50}
        bench.policy.settle("b", 0.3, ok=True)
        bench.policy.settle("a", 0.1, ok=True)
        assert bench.counts("ab", 50) == {"a": 50}

    def test_each_further_error_costs_twice_as_much_up_to_a_limit(self) -> None:
        policy = Bench("ewma", EwmaSettings(first_s=0.1, penalty_s=1.0, most_penalty_s=5.0)).policy
        assert isinstance(policy, Ewma)
        costs_s = []
        for _ in range(5):
            policy.settle("a", 0.001, ok=False)
            costs_s.append(policy.cost_s("a"))
        assert costs_s == pytest.approx([1.1, 2.1, 4.1, 5.1, 5.1]), "and the latency itself is not lowered"

    def test_slow_errors_are_slow_too(self) -> None:
        bench = Bench("ewma", EwmaSettings(penalty_s=0.001, most_penalty_s=0.001))
        bench.policy.settle("a", 5.0, ok=False)
        bench.policy.settle("b", 0.1, ok=True)
        assert bench.counts("ab", 50) == {"b": 50}

    def test_a_penalty_wears_off_and_the_backend_is_tried_again(self) -> None:
        bench = Bench("ewma", EwmaSettings(decay_s=5.0))
        failing = True
        answers = lambda name: (0.1, not (failing and name == "a"))  # noqa: E731
        self.run(bench, answers, "abc", 60)
        failing = False
        bench.now_s += 60.0
        assert self.run(bench, answers, "abc", 300).count("a") > 60

    def test_a_bad_spell_is_forgotten_in_time(self) -> None:
        bench = Bench("ewma", EwmaSettings(decay_s=5.0))
        self.run(bench, lambda name: (0.1, True), "abc", 60)
        bench.policy.settle("a", 30.0, ok=True)
        assert bench.counts("ab", 50) == {"b": 50}
        bench.now_s += 120.0
        assert self.run(bench, lambda name: (0.1, True), "abc", 300).count("a") > 60

    def test_a_newcomer_is_not_flooded(self) -> None:
        """Unknown is not fast, and a newcomer's requests in flight count from its first on."""
        bench = Bench("ewma")
        self.run(bench, lambda name: (0.5, True), "abc", 100)
        for _ in range(40):
            bench.in_flight[bench.pick("abcd") or ""] += 1
        assert bench.in_flight["d"] <= 12
        assert bench.in_flight["d"] >= 6, "nor is it avoided"

    def test_times_that_are_none_are_ignored(self) -> None:
        bench = Bench("ewma")
        for latency_s in (math.nan, math.inf, -1.0):
            bench.policy.settle("a", latency_s, ok=True)
        bench.policy.settle("b", 0.05, ok=True)
        assert bench.pick("ab") in ("a", "b")

    def test_who_left_is_forgotten(self) -> None:
        bench = Bench("ewma")
        bench.policy.settle("a", 50.0, ok=False)
        bench.policy.settle("b", 0.1, ok=True)
        bench.policy.keep_only(frozenset("b"))
        assert set(bench.counts("ab", 50)) == {"a", "b"}

    @pytest.mark.parametrize("name", ["decay_s", "first_s", "penalty_s", "most_penalty_s"])
    def test_settings_are_above_zero(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"{name} 0: expected above 0"):
            EwmaSettings(**{name: 0})
