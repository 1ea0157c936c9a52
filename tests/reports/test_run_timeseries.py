"""Time series of a hand-written history: requests sent and lost per interval, shares of backends, annotations."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from harness.evidence.history import History, StepSeen
from harness.scenario.faults import FailingStatus, Kill, Leave, Reset
from harness.scenario.model import Load, Scenario, Stream
from reports.run_timeseries import plan_of, run_timeseries
from tests.suites.histories import history_of, lost

STEPS = (Kill("gpu-1", 1.0, 0.5), Leave("gpu-0", 1.6))
SCENARIO = Scenario("x", 2, Load((Stream("traffic", 0.0, 100.0, 200),)), timeline=STEPS)


def run() -> History:
    """Backends alternate; from the kill on, for a second, only gpu-0."""
    return history_of(SCENARIO, lambda arrival: arrival.number % 2 if arrival.at_s < 1.0 else 0)


def test_rows_add_up() -> None:
    timeseries = run_timeseries(lost(run(), range(30, 40)))
    rows = timeseries["intervals"]
    assert [row["start_s"] for row in rows] == [0.25 * number for number in range(8)]
    assert [row["sent"] for row in rows] == [25] * 8
    assert [row["lost"] for row in rows] == [0, 10, 0, 0, 0, 0, 0, 0]
    assert rows[0]["shares"] == [0.52, 0.48] and rows[-1]["shares"] == [1.0, 0.0]
    assert {(row["p50_ms"], row["p99_ms"]) for row in rows} == {(10.0, 10.0)}
    assert timeseries["backends"] == ["gpu-0", "gpu-1"]


def test_marks_say_when_it_took_effect_and_when_it_was_over() -> None:
    observed = (StepSeen("Kill", 1, 1.0, 1.1, 1.8), StepSeen("Leave", 0, 1.6, 1.65))
    timeseries = run_timeseries(replace(run(), steps=observed))
    assert timeseries["marks"] == [[1.1, "kill gpu-1"], [1.65, "leave gpu-0"], [1.8, "kill gpu-1 over"]]
    idle = (StepSeen("Kill", 1, 1.0, float("nan")),)
    assert run_timeseries(replace(run(), steps=idle))["marks"] == [[1.0, "kill gpu-1 (no effect)"]]


@pytest.mark.parametrize(
    ("hits", "message"), [(0, "slow gpu-1 (no request affected)"), (3, "slow gpu-1"), (None, "slow gpu-1")]
)
def test_marks_say_which_fault_met_nothing(hits: int | None, message: str) -> None:
    observed = (StepSeen("Slow", 1, 1.0, 1.1, 1.8, hits),)
    assert run_timeseries(replace(run(), steps=observed))["marks"] == [[1.1, message], [1.8, "slow gpu-1 over"]]


def test_marks_are_of_the_steps_that_were_seen() -> None:
    """In order of time, whatever the order in the scenario, and also if a step was never carried out."""
    leave = StepSeen("Leave", 0, 1.6, 1.65)
    backwards = replace(SCENARIO, timeline=STEPS[::-1])
    timeseries = run_timeseries(replace(run(), scenario=backwards, steps=(StepSeen("Kill", 1, 1.0, 1.1), leave)))
    assert timeseries["marks"] == [[1.1, "kill gpu-1"], [1.65, "leave gpu-0"]]
    assert run_timeseries(replace(run(), steps=(leave,)))["marks"] == [[1.65, "leave gpu-0"]]


def test_nothing_sent_and_nothing_answered() -> None:
    rows = run_timeseries(lost(run(), range(200)))["intervals"]
    assert all(row["lost"] == 25 and row["p50_ms"] is None for row in rows)
    unsent = run()
    unsent.requests["sent_s"] = float("nan")
    assert [row["sent"] for row in run_timeseries(unsent)["intervals"]] == [25] * 8


def test_long_runs_have_few_rows() -> None:
    stream = Stream("traffic", 0.0, 1.0, 300)
    rows = run_timeseries(history_of(replace(SCENARIO, load=Load((stream,))), lambda arrival: 0))["intervals"]
    assert len(rows) <= 20 and sum(row["sent"] for row in rows) == 300


def test_it_is_plain_json() -> None:
    timeseries = run_timeseries(run())
    assert json.loads(json.dumps(timeseries)) == timeseries


def test_a_plan_is_in_order_of_time_and_names_what_is_not_ordinary() -> None:
    steps = (Reset("gpu-1", 2.0), FailingStatus("gpu-0", 1.0, 503, share=0.25, for_s=0.5), Kill("gpu-0", 1.6, 0.25))
    assert plan_of(steps) == [
        ("1.00 s", "0.50 s", "failing status (status 503, share 0.25)", "gpu-0"),
        ("1.60 s", "0.25 s", "kill", "gpu-0"),
        ("2.00 s", "", "reset", "gpu-1"),
    ]
