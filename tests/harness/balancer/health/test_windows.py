"""Sliding windows: expiry, rates, and the exact rank of a quantile."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.balancer.health.windows import LatencyWindow, OutcomeWindow, exact_ratio, rank

PINNED = settings(derandomize=True, deadline=None, database=None, max_examples=150)

GAPS_S = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]), max_size=40)
LATENCIES_S = st.sampled_from([0.0, 0.1, 0.2, 0.2, 0.7, 5.0])


# --- ranks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quantile", "calls", "share_above"),
    [
        (0.95, 20, 0.0476),
        (0.95, 50, 0.0392),
        (0.95, 100, 0.0495),
        (0.95, 200, 0.0498),
        (0.95, 500, 0.0499),
        (0.95, 1000, 0.0500),
        (0.96, 100, 0.0396),
        (0.96, 1000, 0.0400),
    ],
)
def test_the_share_above_is_that_of_the_published_table(quantile: float, calls: int, share_above: float) -> None:
    assert (calls + 1 - rank(quantile, calls)) / (calls + 1) == pytest.approx(share_above, abs=5e-5)


def test_a_hundred_calls_are_not_indexed_by_95() -> None:
    """ceil(.95 x 100) is 95, which 5.9 % exceed."""
    assert rank(0.95, 100) == 96


@PINNED
@given(st.integers(1, 99), st.integers(0, 3000))
def test_the_rank_is_the_smallest_that_keeps_the_share(percent: int, calls: int) -> None:
    quantile = percent / 100
    above = Fraction(100 - percent, 100)
    found = rank(quantile, calls)
    assert Fraction(calls + 1 - found, calls + 1) <= above < Fraction(calls + 2 - found, calls + 1)


def test_ranks_are_free_of_rounding() -> None:
    assert math.ceil(0.07 * 100) == 8  # 7 % in binary floating point
    assert rank(0.07, 99) == 7
    assert exact_ratio(0.1) == (1, 10)


def test_too_few_calls_for_a_quantile() -> None:
    assert [rank(0.95, calls) <= calls for calls in (0, 18, 19)] == [False, False, True]


# --- outcomes ---------------------------------------------------------------------------------------------


def test_no_rate_below_the_minimum() -> None:
    window = OutcomeWindow(span_s=10.0, minimum_calls=3)
    rates = []
    for bad in (True, True, False, False):
        window.record(bad, 0.0)
        rates.append(window.rate(0.0))
    assert rates == [None, None, 2 / 3, 0.5]


def test_a_call_is_out_when_it_is_as_old_as_the_window() -> None:
    window = OutcomeWindow(span_s=10.0)
    window.record(True, 1.0)
    window.record(False, 5.0)
    assert [window.rate(now_s) for now_s in (5.0, 10.9, 11.0, 14.9, 15.0)] == [0.5, 0.5, 0.0, 0.0, None]


def test_a_count_bounds_as_well() -> None:
    window = OutcomeWindow(calls=3, span_s=10.0)
    for bad in (True, True, False, False):
        window.record(bad, 0.0)
    assert (window.calls(0.0), window.bad(0.0)) == (3, 1)
    assert (window.calls(10.0), window.bad(10.0)) == (0, 0)


def test_a_window_without_time_never_ages() -> None:
    window = OutcomeWindow(calls=2)
    window.record(True, 0.0)
    assert window.rate(1e9) == 1.0


def test_old_successes_do_not_hide_an_outage() -> None:
    window = OutcomeWindow(span_s=10.0, minimum_calls=20)
    for number in range(2000):
        window.record(False, number / 1000)
    for number in range(20):
        window.record(True, 12.0 + number / 1000)
    assert window.rate(12.02) == 1.0


@PINNED
@given(GAPS_S, st.data(), st.sampled_from([None, 1, 4]), st.sampled_from([None, 2.0]))
def test_windows_hold_what_a_list_would(
    gaps_s: list[float], data: st.DataObject, calls: int | None, span_s: float | None
) -> None:
    if calls is None and span_s is None:
        calls = 7
    outcomes = OutcomeWindow(span_s=span_s, calls=calls)
    latencies = LatencyWindow(span_s=span_s, calls=calls)
    observed: list[tuple[float, bool, float]] = []
    now_s = 0.0
    for gap_s in gaps_s:
        now_s += gap_s
        inside = [entry for entry in observed if span_s is None or entry[0] > now_s - span_s][
            -(calls or len(observed)) :
        ]
        assert outcomes.calls(now_s) == latencies.calls(now_s) == len(inside)
        assert outcomes.bad(now_s) == sum(entry[1] for entry in inside)
        for quantile in (0.01, 0.5, 0.95):
            found = latencies.quantile_s(quantile, now_s)
            position = min(math.ceil(Fraction(str(quantile)) * (len(inside) + 1)), len(inside))
            assert found == (sorted(entry[2] for entry in inside)[position - 1] if inside else None)
        entry = (now_s, data.draw(st.booleans()), data.draw(LATENCIES_S))
        observed.append(entry)
        outcomes.record(entry[1], now_s)
        latencies.record(entry[2], now_s)


# --- latencies --------------------------------------------------------------------------------------------


def test_quantiles_are_of_the_window_and_not_of_the_last_call() -> None:
    window = LatencyWindow(calls=99)
    for number in range(200):
        window.record(number / 100, 0.0)
    window.record(0.0, 0.0)
    # The window has 1.02 to 1.99 and 0: the 99th smallest of 99.
    assert window.quantile_s(0.99, 0.0) == 1.99
    assert window.quantile_s(0.5, 0.0) == 1.50


def test_no_quantile_below_the_minimum_and_the_largest_where_the_rank_is_beyond() -> None:
    window = LatencyWindow(span_s=10.0, minimum_calls=2)
    window.record(1.0, 0.0)
    assert window.quantile_s(0.99, 0.0) is None
    window.record(3.0, 1.0)
    assert window.quantile_s(0.99, 1.0) == 3.0
    assert window.quantile_s(0.99, 10.0) is None


def test_cleared_windows_are_empty() -> None:
    outcomes, latencies = OutcomeWindow(calls=5), LatencyWindow(calls=5)
    outcomes.record(True, 0.0)
    latencies.record(1.0, 0.0)
    outcomes.clear()
    latencies.clear()
    assert (outcomes.calls(0.0), outcomes.bad(0.0), latencies.calls(0.0)) == (0, 0, 0)
    latencies.record(2.0, 0.0)
    assert latencies.quantile_s(0.5, 0.0) == 2.0


@pytest.mark.parametrize("latency_s", [-0.1, float("nan")])
def test_latencies_that_are_none(latency_s: float) -> None:
    with pytest.raises(ValueError, match="expected 0 or more"):
        LatencyWindow(calls=5).record(latency_s, 0.0)


@pytest.mark.parametrize("window", [OutcomeWindow, LatencyWindow])
@pytest.mark.parametrize(
    ("span_s", "calls", "minimum_calls", "message"),
    [
        (None, None, 1, "needs a bound"),
        (0.0, None, 1, "span_s 0.0"),
        (None, 0, 1, "calls 0"),
        (1.0, None, 0, "minimum_calls 0"),
        (None, 5, 6, "no more than calls"),
    ],
)
def test_windows_that_make_no_sense(
    window: type[OutcomeWindow] | type[LatencyWindow],
    span_s: float | None,
    calls: int | None,
    minimum_calls: int,
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        window(span_s=span_s, calls=calls, minimum_calls=minimum_calls)
