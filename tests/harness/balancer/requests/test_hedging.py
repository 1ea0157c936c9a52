"""Hedging: the rank of the delay, the bucket that bounds the hedges, and conditions without hedges."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.balancer.requests.hedging import Hedger, HedgeSettings
from harness.scenario.model import Kind

PINNED = settings(derandomize=True, deadline=None, database=None, max_examples=150)


def hedger_of(**changes: float) -> Hedger:
    return Hedger(HedgeSettings(**changes))  # type: ignore[arg-type]


# --- the delay --------------------------------------------------------------------------------------------


def test_no_delay_while_too_little_is_known() -> None:
    hedger = hedger_of(minimum=20, window=100)
    assert hedger.delay_s("m") is None
    for number in range(19):
        hedger.record("m", number / 10)
    assert hedger.delay_s("m") is None
    hedger.record("m", 1.9)
    assert hedger.delay_s("m") == 1.9
    assert hedger.delay_s("other") is None


def test_the_delay_is_the_order_statistic_of_the_right_rank() -> None:
    """The 96th of a hundred latencies, not the 95th: ceil(.95 x 101)."""
    hedger = hedger_of(minimum=100, window=100)
    for number in range(100, 0, -1):
        hedger.record("m", number / 1000)
    assert hedger.delay_s("m") == 0.096


def test_no_more_than_a_twentieth_is_slower_than_the_delay() -> None:
    """With rank ceil(.95 W) it would be 5.94 % of 40,000, eight standard deviations away."""
    generator, hedger = Random(5), hedger_of(minimum=100, window=100)
    slower = 0
    for number in range(40_100):
        latency_s = generator.expovariate(10.0)
        delay_s = hedger.delay_s("m")
        assert (delay_s is None) == (number < 100)
        slower += delay_s is not None and latency_s > delay_s
        hedger.record("m", latency_s)
    assert slower / 40_000 == pytest.approx(5 / 101, abs=0.002)


def test_the_delay_follows_the_window_and_each_model_has_its_own() -> None:
    hedger = hedger_of(quantile=0.5, minimum=1, window=3)
    for latency_s in (9.0, 1.0, 2.0, 3.0):
        hedger.record("m", latency_s)
    hedger.record("n", 7.0)
    assert (hedger.delay_s("m"), hedger.delay_s("n")) == (2.0, 7.0)


def test_the_delay_is_never_below_its_floor() -> None:
    hedger = hedger_of(quantile=0.5, minimum=1, window=3, floor_delay_s=0.05)
    hedger.record("m", 0.001)
    hedger.record("n", 0.2)
    assert (hedger.delay_s("m"), hedger.delay_s("n")) == (0.05, 0.2)


def test_models_are_bounded_and_the_least_recently_used_goes_first() -> None:
    hedger = hedger_of(quantile=0.5, minimum=1, window=3, models=2)
    for model in ("a", "b", "a", "c"):
        hedger.record(model, 1.0)
    assert [hedger.delay_s(model) for model in "abc"] == [1.0, None, 1.0]
    hedger.forget("a")
    hedger.forget("never used")
    hedger.record("d", 1.0)
    assert [hedger.delay_s(model) for model in "acd"] == [None, 1.0, 1.0]


# --- the bucket -------------------------------------------------------------------------------------------


def test_the_bucket_starts_empty_and_pays_one_hedge_for_twenty_requests() -> None:
    hedger = hedger_of(share=0.05)
    granted = []
    for _ in range(60):
        hedger.request_arrived(0.0)
        granted.append(hedger.try_take())
    assert [number for number, taken in enumerate(granted, 1) if taken] == [20, 40, 60]


def test_time_alone_pays_nothing() -> None:
    hedger = hedger_of(share=0.05)
    hedger.request_arrived(0.0)
    hedger.request_arrived(1e6)
    assert not hedger.try_take()


def test_a_quiet_spell_saves_up_so_much_and_no_more() -> None:
    hedger = hedger_of(share=0.05, burst=3)
    for _ in range(10_000):
        hedger.request_arrived(0.0)
    assert [hedger.try_take() for _ in range(5)] == [True, True, True, False, False]


def test_what_was_not_sent_is_given_back() -> None:
    hedger = hedger_of(share=0.5, burst=1)
    hedger.request_arrived(0.0)
    hedger.request_arrived(0.0)
    assert hedger.try_take()
    hedger.give_back()
    hedger.give_back()  # never above the cap
    assert [hedger.try_take(), hedger.try_take()] == [True, False]


@PINNED
@given(
    st.sampled_from([0.01, 0.05, 0.1, 0.3]),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6), st.booleans()), max_size=20),
)
def test_hedges_stay_within_their_share_in_every_run(
    share: float, burst: int, spells: list[tuple[int, int, bool]]
) -> None:
    hedger = hedger_of(share=share, burst=burst)
    observed = [(0, 0)]  # requests and hedges so far
    for quiet, wanted, unsent in spells:
        for _ in range(quiet):
            hedger.request_arrived(0.0)
        requests, hedges = observed[-1][0] + quiet, observed[-1][1]
        observed.append((requests, hedges))
        for _ in range(wanted):
            if hedger.try_take():
                if unsent:
                    hedger.give_back()
                else:
                    hedges += 1
        observed.append((requests, hedges))
    percent = round(share * 100)
    assert all(100 * hedges <= percent * requests for requests, hedges in observed)
    for (requests, hedges), (later_requests, later_hedges) in itertools.combinations(observed, 2):
        assert 100 * (later_hedges - hedges) <= percent * (later_requests - requests) + 100 * burst


# --- eligibility ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"kind": Kind.UPDATE}, False),
        ({"first_byte": True}, False),
        ({"client_gone": True}, False),
        ({"primary_breaker": "open"}, False),
        ({"primary_breaker": "half-open"}, False),
        ({"other_breaker": "open"}, False),
        ({"other_breaker": "half-open"}, False),
        ({"primary_breaker": "open", "other_breaker": "open"}, False),
        ({"system_load": 0.8}, True),
        ({"system_load": 0.81}, False),
        ({"system_load": math.nan}, False),
    ],
)
def test_who_may_be_hedged(changes: dict[str, object], expected: bool) -> None:
    ordinary: dict[str, object] = {
        "kind": Kind.INFERENCE,
        "first_byte": False,
        "client_gone": False,
        "primary_breaker": "closed",
        "other_breaker": "closed",
        "system_load": 0.5,
    }
    hedger = hedger_of(load_threshold=0.8)
    assert hedger.allowed(**{**ordinary, **changes}) is expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantile": 1.0}, "quantile 1.0"),
        ({"share": 1.5}, "share 1.5"),
        ({"minimum": 18}, "minimum 18"),
        ({"minimum": 30, "window": 20}, "minimum 30"),
        ({"floor_delay_s": -1.0}, "floor_delay_s -1.0"),
        ({"burst": 0}, "burst 0"),
        ({"models": 0}, "models 0"),
    ],
)
def test_settings_that_make_no_sense(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hedger_of(**changes)
