"""Figures of hand-made rows."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from harness.load.results.figures import SERIES, delay_too_large, figures_of, on_time, quantile_of
from harness.scenario.model import Failure
from tests.harness.load.rows import rows_of, unsent


def test_times_count_from_the_intended_time() -> None:
    figures = figures_of(rows_of([0.010, 0.020, 0.030]))
    assert figures.time("latency", "p50") == pytest.approx(0.020)
    assert figures.time("service", "p50") == pytest.approx(0.019)
    assert figures.time("ttft", "p50") == pytest.approx(0.010)
    assert figures.time("lateness", "max") == pytest.approx(0.001)
    assert figures.time("latency", "mean") == pytest.approx(0.020)
    assert figures.time("latency", "p95") == pytest.approx(0.029)


def test_quantiles_are_those_of_numpy() -> None:
    latency_s = np.random.default_rng(1).exponential(0.1, 5000)
    figures = figures_of(rows_of(latency_s))
    for what, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)):
        assert figures.time("latency", what) == pytest.approx(np.quantile(latency_s, share))


def test_counts_errors_by_kind_and_leaves_them_out_of_times() -> None:
    rows = rows_of([0.01] * 8)
    rows["failure"][0] = Failure.TIMEOUT
    rows["status"][0], rows["end_s"][0] = 0, 99.0
    rows["status"][1:3] = 503
    rows["failure"][3] = Failure.STALE_CONNECTION
    rows["status"][3] = 0
    unsent(rows[6:])
    figures = figures_of(rows)
    assert (figures.planned, figures.sent, figures.good, figures.failed, figures.not_sent) == (8, 6, 2, 4, 2)
    assert figures.errors == {"status 503": 2, "timeout": 1, "stale connection": 1}
    assert figures.error_share == pytest.approx(4 / 6)
    assert figures.time("latency", "max") == pytest.approx(0.01)


def test_a_client_that_aborts_on_purpose_is_no_error() -> None:
    rows = rows_of([0.01] * 6)
    rows["failure"][:4] = Failure.TIMEOUT, Failure.TIMEOUT, Failure.RESET, Failure.TIMEOUT
    rows["status"][:4] = 0
    figures = figures_of(rows, frozenset({0, 2, 3, 5}))  # 1 does not abort on purpose, 2 was reset, 5 got its answer
    assert (figures.sent, figures.good, figures.failed, figures.given_up) == (6, 2, 2, 2)
    assert figures.errors == {"timeout": 1, "reset": 1}
    assert figures.error_share == pytest.approx(2 / 6)
    assert figures.summary()["given_up"] == 2


def test_rates() -> None:
    figures = figures_of(rows_of([0.5] * 101, rate_per_s=100.0))
    assert figures.sending_s == pytest.approx(1.001)
    assert figures.offered_per_s == pytest.approx(101 / 1.001)
    assert figures.span_s == pytest.approx(1.5)
    assert figures.throughput_per_s == pytest.approx(101 / 1.5)


def test_the_offered_rate_follows_from_send_times() -> None:
    rows = rows_of([3.0] * 101, rate_per_s=100.0)
    rows["sent_s"] = rows["intended_s"] * 2  # half as many per second as planned
    rows["sent_s"][0] = np.nan  # it failed before its first system call
    assert figures_of(rows).offered_per_s == pytest.approx(101 / 2.0)


def test_a_closed_loop_offers_no_rate() -> None:
    figures = figures_of(rows_of([0.5] * 101), closed=True)
    assert math.isnan(figures.offered_per_s) and figures.throughput_per_s == pytest.approx(101 / 1.5)
    assert figures.summary()["offered_per_s"] is None


def test_the_same_without_the_generator_delay() -> None:
    rows = rows_of([0.5] * 101)
    rows["sent_s"] = rows["intended_s"] + 0.4
    rows["connection"][7] = 0  # it waited for its connection: no generator delay
    unsent(rows[100:])
    early = figures_of(on_time(rows))
    assert early.time("latency", "p50") == early.time("service", "p50") == pytest.approx(0.1)
    assert early.time("ttft", "p50") == pytest.approx(0.25 - 0.4)
    assert early.time("latency", "max") == pytest.approx(0.5)
    assert early.time("lateness", "max") == pytest.approx(0.0) and early.not_sent == 1
    assert figures_of(rows).time("latency", "p50") == pytest.approx(0.5), "the rows must not change"


def test_a_generator_is_late_relative_to_the_latency() -> None:
    assert figures_of(rows_of([0.004] * 9)).generator_late, "1 ms of 4"
    assert not figures_of(rows_of([0.006] * 9)).generator_late, "1 ms of 6"
    assert not figures_of(unsent(rows_of([0.006] * 9))).generator_late
    assert figures_of(rows_of([0.004] * 9)).summary()["generator_late"] is True
    assert not delay_too_large(1.0, math.nan) and delay_too_large(0.21, 1.0) and not delay_too_large(0.19, 1.0)


def test_waiting_for_the_only_connection_is_no_generator_delay() -> None:
    rows = rows_of([0.5, 0.5])
    rows["connection"][1], rows["sent_s"][1] = 0, rows["intended_s"][1] + 0.3
    assert figures_of(rows).time("lateness", "max") == pytest.approx(0.001)


@pytest.mark.parametrize("rows", [rows_of([]), unsent(rows_of([0.01] * 3))])
def test_nothing_sent(rows: np.ndarray) -> None:
    figures = figures_of(rows)
    assert figures.sent == figures.good == 0
    assert math.isnan(figures.time("latency", "p99")) and math.isnan(figures.error_share)
    assert json.loads(json.dumps(figures.summary(), allow_nan=False))["latency_s"]["p99"] is None


def test_summary_is_json_of_everything_shown() -> None:
    summary = json.loads(json.dumps(figures_of(rows_of([0.01, 0.02])).summary(), allow_nan=False))
    assert summary["good"] == 2 and summary["error_share"] == 0.0
    assert {f"{series}_s" for series in SERIES} <= set(summary)
    assert summary["latency_s"]["max"] == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("what", "share"), [("p99", 0.99), ("p99.9", 0.999), ("p5", 0.05), ("p0", None), ("p100", None), ("max", None)]
)
def test_names_of_quantiles(what: str, share: float | None) -> None:
    assert quantile_of(what) == (None if share is None else pytest.approx(share))


def test_an_unknown_figure() -> None:
    with pytest.raises(KeyError, match="p99"):
        figures_of(rows_of([0.1])).time("latency", "median")
