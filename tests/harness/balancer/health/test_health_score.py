"""Health score: the exact formula; a weight, not a gate; and weight 0 for backends known to be out."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.balancer.health.health_score import Components, HealthScore, HealthSettings, free_share, shares
from harness.balancer.health.windows import LatencyWindow

DETERMINISTIC = settings(derandomize=True, deadline=None, database=None, max_examples=100)
ALL_GOOD = Components(1.0, 1.0, 1.0, 1.0)
SETTINGS = HealthSettings(window_s=10.0, minimum_calls=10, baseline_p99_s=0.1)
FLEET_BASELINE = replace(SETTINGS, baseline_p99_s=None)


def scored(*backends: str, numbers: HealthSettings = SETTINGS) -> HealthScore:
    health = HealthScore(numbers)
    health.keep_only(frozenset(backends))
    return health


def settle(health: HealthScore, name: str, good: int, bad: int = 0, latency_s: float = 0.1, now_s: float = 0.0) -> None:
    for ok, count in ((True, good), (False, bad)):
        for _ in range(count):
            health.settle(name, ok, latency_s, now_s)


# --- the formula -------------------------------------------------------------------------------------------


def test_what_is_unknown_is_good() -> None:
    health = scored("a")
    assert health.components("a", 0.0) == ALL_GOOD
    assert health.score("a", 0.0) == 1.0


def test_all_four_components_by_their_weights() -> None:
    health = scored("a")
    settle(health, "a", good=15, bad=5, latency_s=0.4)  # a quarter of the calls fails; four times the baseline
    health.report("a", 80_000, 60_000, 20_000, 0.0)  # 20 GB free and 20 evictable of 80
    health.connections("a", 350)  # half of the 500 that lower the score
    assert health.components("a", 0.0) == Components(0.75, 0.25, 0.5, 0.5)
    assert health.score("a", 0.0) == pytest.approx(0.4 * 0.75 + 0.3 * 0.25 + 0.2 * 0.5 + 0.1 * 0.5)


def test_weights_are_settings() -> None:
    health = scored("a", numbers=replace(SETTINGS, errors=1.0, latency=0.0, memory=0.0, connections=0.0))
    settle(health, "a", good=6, bad=4, latency_s=9.0)
    assert health.score("a", 0.0) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("count", "component"), [(0, 1.0), (100, 1.0), (101, 0.998), (350, 0.5), (599, 0.002), (600, 0.0), (5000, 0.0)]
)
def test_connections_are_free_up_to_100_and_linear_over_the_next_500(count: int, component: float) -> None:
    health = scored("a")
    health.connections("a", count)
    assert health.components("a", 0.0).connections == pytest.approx(component)


@pytest.mark.parametrize(("calls", "component"), [(9, 1.0), (10, 0.0)])
def test_fewer_than_the_minimum_of_calls_say_nothing(calls: int, component: float) -> None:
    health = scored("a")
    settle(health, "a", good=0, bad=calls)
    assert health.components("a", 0.0).errors == component


def test_latency_waits_for_the_minimum_of_good_answers() -> None:
    health = scored("a")
    settle(health, "a", good=9, bad=9, latency_s=5.0)
    assert health.components("a", 0.0) == Components(0.5, 1.0, 1.0, 1.0)
    settle(health, "a", good=1, latency_s=5.0)
    assert health.components("a", 0.0).latency == pytest.approx(0.02)


def test_calls_and_reports_leave_the_window() -> None:
    health = scored("a")
    settle(health, "a", good=5, bad=5, latency_s=1.0, now_s=1.0)
    settle(health, "a", good=10, latency_s=1.0, now_s=2.0)
    health.report("a", 100, 100, 0, 1.0)
    assert health.components("a", 10.9).errors == 0.75
    assert health.components("a", 10.9).memory == 0.0
    assert health.components("a", 11.0) == Components(1.0, 0.1, 1.0, 1.0)
    assert health.components("a", 12.0) == ALL_GOOD


# --- latency -----------------------------------------------------------------------------------------------


def test_p99_is_a_quantile_of_requests_and_not_the_last_latency() -> None:
    """S7: 2 slow calls of 100 determine the p99, whatever came last."""
    health = scored("a")
    settle(health, "a", good=2, latency_s=1.0)
    settle(health, "a", good=98, latency_s=0.01)
    assert health.components("a", 0.0).latency == pytest.approx(0.1)
    other = scored("a")
    settle(other, "a", good=199, latency_s=0.01)
    settle(other, "a", good=1, latency_s=1.0)
    assert other.components("a", 0.0).latency == 1.0


def test_the_baseline_is_the_median_p99_of_those_with_enough_calls() -> None:
    health = scored("a", "b", "c", "new", numbers=FLEET_BASELINE)
    for name, latency_s in (("a", 0.1), ("b", 0.2), ("c", 0.8)):
        settle(health, name, good=20, latency_s=latency_s)
    settle(health, "new", good=9, latency_s=60.0)
    observed = {name: health.components(name, 0.0).latency for name in ("a", "b", "c", "new")}
    assert observed == pytest.approx({"a": 1.0, "b": 1.0, "c": 0.25, "new": 1.0})


def test_the_baseline_follows_calls_members_and_time() -> None:
    health = scored("a", "b", "c", numbers=FLEET_BASELINE)
    for name, latency_s in (("a", 0.1), ("b", 0.2), ("c", 0.4)):
        settle(health, name, good=20, latency_s=latency_s)
    assert health.components("c", 0.0).latency == pytest.approx(0.5)
    health.keep_only(frozenset("bc"))
    assert health.components("c", 0.0).latency == pytest.approx(0.75)  # the median of .2 and .4
    settle(health, "b", good=1, latency_s=0.4)
    assert health.components("c", 0.09).latency == pytest.approx(0.75), "recomputed every tenth of a second"
    assert health.components("c", 0.1).latency == 1.0
    settle(health, "c", good=20, latency_s=0.8, now_s=5.0)
    assert health.components("c", 9.9).latency == pytest.approx(0.75)
    assert health.components("c", 10.0).latency == 1.0  # b's calls expired: only c's are left


def test_the_fleet_is_looked_at_every_tenth_of_a_second_and_not_for_every_score(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"gpu-{number}" for number in range(30)]
    health = scored(*names, numbers=FLEET_BASELINE)
    queried_s: list[float] = []

    def counting(window: LatencyWindow, quantile: float, now_s: float) -> float | None:
        queried_s.append(now_s)
        return quantile_s(window, quantile, now_s)

    quantile_s = LatencyWindow.quantile_s
    for name in names:
        settle(health, name, good=20)
    monkeypatch.setattr(LatencyWindow, "quantile_s", counting)
    scores = 200
    for number in range(scores):  # over two tenths of a second
        health.settle("gpu-3", True, 0.1, number / 1000)
        health.score("gpu-3", number / 1000)
    assert len(queried_s) == scores + 2 * len(names)


def test_fast_errors_are_not_speed() -> None:
    """C11: a backend that fails in a millisecond does not count as fast, nor does it make the others slow."""
    health = scored("sick", "b", "c", numbers=FLEET_BASELINE)
    settle(health, "sick", good=0, bad=100, latency_s=0.001)
    for name in ("b", "c"):
        settle(health, name, good=100, latency_s=0.1)
    assert health.score("b", 0.0) == health.score("c", 0.0) == 1.0
    assert shares({name: health.score(name, 0.0) for name in ("sick", "b", "c")})["sick"] < 1 / 3


# --- memory ------------------------------------------------------------------------------------------------


def test_a_warm_backend_is_as_healthy_as_a_cold_one() -> None:
    """S12: evictable weights count as free."""
    health = scored("warm", "cold", "pinned")
    health.report("warm", 80_000, 76_000, 70_000, 0.0)
    health.report("cold", 80_000, 6_000, 0, 0.0)
    health.report("pinned", 80_000, 76_000, 0, 0.0)
    assert health.score("warm", 0.0) == health.score("cold", 0.0)
    assert health.components("pinned", 0.0).memory == pytest.approx(0.05)


GARBAGE = [
    (0.0, 0.0, 0.0),
    (-80.0, 1.0, 0.0),
    (80.0, -1.0, 0.0),
    (80.0, 1.0, -1.0),
    (math.nan, 1.0, 0.0),
    (80.0, math.nan, 0.0),
    (80.0, 1.0, math.inf),
]


@pytest.mark.parametrize("figures", GARBAGE)
def test_a_garbage_report_is_no_report(figures: tuple[float, float, float]) -> None:
    health = scored("a")
    health.report("a", 100, 90, 0, 0.0)
    health.report("a", *figures, 0.0)
    assert free_share(*figures) is None
    assert health.components("a", 0.0).memory == 1.0


@pytest.mark.parametrize(
    ("figures", "free"), [((100, 120, 0), 0.0), ((100, 120, 30), 0.1), ((100, 90, 95), 1.0), ((100, 100, 0), 0.0)]
)
def test_more_used_than_there_is_means_full(figures: tuple[float, float, float], free: float) -> None:
    assert free_share(*figures) == pytest.approx(free)


# --- weight and share --------------------------------------------------------------------------------------


def test_by_the_sum_alone_failing_everything_scores_six_tenths_and_so_it_is_not_alone() -> None:
    """S11: the weight is 0 for a backend known to be out, whatever its score."""
    health = scored("a")
    settle(health, "a", good=0, bad=50)
    assert health.score("a", 0.0) == pytest.approx(0.6)
    assert health.weight("a", 0.0, ready=True, breaker_open=False, check_failed=False) == health.score("a", 0.0)


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("breaker_open", [True, False])
@pytest.mark.parametrize("check_failed", [True, False])
def test_one_reason_is_enough_for_weight_0(ready: bool, breaker_open: bool, check_failed: bool) -> None:
    weight = scored("a").weight("a", 0.0, ready=ready, breaker_open=breaker_open, check_failed=check_failed)
    assert weight == (1.0 if ready and not breaker_open and not check_failed else 0.0)


def test_share_follows_the_score() -> None:
    """S6: a weight, not a gate: 0.6 beside 1, 1, 1 gets a sixth rather than a quarter."""
    health = scored("a", "b", "c", "d")
    settle(health, "d", good=0, bad=50)
    observed = shares({name: health.score(name, 0.0) for name in "abcd"})
    assert observed == pytest.approx({"a": 1 / 3.6, "b": 1 / 3.6, "c": 1 / 3.6, "d": 0.6 / 3.6})


def test_shares_where_some_or_all_weigh_nothing() -> None:
    assert shares({"a": 0.5, "b": 0.0}) == {"a": 1.0, "b": 0.0}
    assert shares({"a": 0.0, "b": 0.0}) == {"a": 0.0, "b": 0.0}
    assert shares({}) == {}


@pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf])
def test_shares_of_weights_that_make_no_sense(weight: float) -> None:
    with pytest.raises(ValueError, match="of b: expected 0 or more"):
        shares({"a": 1.0, "b": weight})


# --- members -----------------------------------------------------------------------------------------------


def test_who_returns_starts_clean_and_who_stays_does_not() -> None:
    """S8, E4: a departure drops the state of that backend only."""
    health = scored("a", "b")
    for name in "ab":
        settle(health, name, good=10, bad=10, latency_s=1.0)
        health.report(name, 100, 100, 0, 0.0)
        health.connections(name, 600)
    health.keep_only(frozenset("b"))
    health.keep_only(frozenset("ab"))
    assert health.components("a", 0.0) == ALL_GOOD
    assert health.components("b", 0.0) == Components(0.5, 0.1, 0.0, 0.0)


def test_late_words_about_those_who_left_leave_no_trace() -> None:
    """S8: a call that ends after its backend left is not kept for its return."""
    health = scored("a", "b")
    health.keep_only(frozenset("b"))
    settle(health, "a", good=0, bad=50)
    health.report("a", 100, 100, 0, 0.0)
    health.connections("a", 600)
    with pytest.raises(KeyError):
        health.score("a", 0.0)
    health.keep_only(frozenset("ab"))
    assert health.components("a", 0.0) == ALL_GOOD


# --- for all numbers ---------------------------------------------------------------------------------------

LATENCIES = st.floats(0, 1e6)
MEMORY = st.floats(allow_nan=True, allow_infinity=True)


@DETERMINISTIC
@given(
    calls=st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), LATENCIES, st.floats(0, 2)), max_size=60),
    report=st.tuples(MEMORY, MEMORY, MEMORY),
    connections=st.integers(0, 10_000),
    claimed=st.booleans(),
)
def test_a_score_is_from_0_to_1(
    calls: list[tuple[str, bool, float, float]],
    report: tuple[float, float, float],
    connections: int,
    claimed: bool,
) -> None:
    health = scored(*"abc", numbers=replace(SETTINGS, minimum_calls=2, baseline_p99_s=0.1 if claimed else None))
    now_s = 0.0
    for name, ok, latency_s, gap_s in calls:
        now_s += gap_s
        health.settle(name, ok, latency_s, now_s)
    health.report("a", *report, now_s)
    health.connections("a", connections)
    for name in "abc":
        parts = health.components(name, now_s)
        for part in (parts.errors, parts.latency, parts.memory, parts.connections, health.score(name, now_s)):
            assert 0 <= part <= 1


@dataclass(frozen=True, slots=True)
class State:
    """The components of a backend beside another one whose p99 is 0.2 s."""

    bad: int
    latency_s: float
    used_mb: float
    evictable_mb: float
    connections: int

    def score(self, numbers: HealthSettings) -> float:
        health = scored("a", "b", numbers=numbers)
        settle(health, "a", good=30, bad=self.bad, latency_s=self.latency_s)
        settle(health, "b", good=30, latency_s=0.2)
        health.report("a", 1000, self.used_mb, self.evictable_mb, 0.0)
        health.connections("a", self.connections)
        return health.score("a", 0.0)


STATES = st.builds(State, st.integers(0, 40), LATENCIES, st.floats(0, 1000), st.floats(0, 1000), st.integers(0, 700))


@DETERMINISTIC
@given(one=STATES, other=STATES, numbers=st.sampled_from([SETTINGS, FLEET_BASELINE]))
def test_nothing_that_gets_worse_raises_the_score(one: State, other: State, numbers: HealthSettings) -> None:
    """In each figure, the others being equal: more evictable memory is better, more of any other is worse."""
    for field in fields(State):
        changed = replace(one, **{field.name: getattr(other, field.name)})
        low, high = sorted((one, changed), key=lambda state: float(getattr(state, field.name)))
        if field.name == "evictable_mb":
            low, high = high, low
        assert high.score(numbers) <= low.score(numbers)


@DETERMINISTIC
@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1)))
def test_shares_are_in_proportion_and_sum_to_1(weights: dict[str, float]) -> None:
    observed = shares(weights)
    assert math.fsum(observed.values()) == pytest.approx(1.0 if any(weights.values()) else 0.0)
    total = math.fsum(weights.values())
    assert all(observed[name] * total == pytest.approx(weight) for name, weight in weights.items())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"errors": 0.5}, "a sum of 1"),
        ({"errors": 0.9, "latency": -0.2}, "0 or more each"),
        ({"connection_span": 0}, "connection_span 0"),
        ({"free_connections": -1}, "free_connections -1"),
        ({"window_s": 0.0}, "window_s 0.0"),
        ({"window_s": math.nan}, "window_s nan"),
        ({"minimum_calls": 0}, "minimum_calls 0"),
        ({"minimum_calls": 2000}, "minimum_calls 2000"),
        ({"baseline_p99_s": 0.0}, "baseline_p99_s 0.0"),
    ],
)
def test_numbers_that_make_no_sense(changed: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SETTINGS, **changed)  # type: ignore[arg-type]
