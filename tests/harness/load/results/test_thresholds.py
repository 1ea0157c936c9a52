"""Conditions as users write them: their meaning, and the errors for invalid ones."""

from __future__ import annotations

import numpy as np
import pytest

from harness.load.results.figures import Figures, figures_of, on_time
from harness.load.results.thresholds import threshold_of
from harness.scenario.model import ClaimsError
from tests.harness.load.rows import rows_of, unsent


@pytest.fixture(scope="module")
def figures() -> Figures:
    """100 requests of 10 to 1000 ms; two failed, and two more were never sent."""
    rows = rows_of(np.append(np.arange(1, 101) * 0.01, [0.01, 0.01]))
    rows["status"][98:100] = 500
    unsent(rows[100:])
    return figures_of(rows)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("p99 > 500ms", True),
        ("p99 > 0.5s", True),
        ("p99>500000us", True),
        ("p99 <= 500 ms", False),
        ("latency p50 < 600ms", True),
        ("service p50 < 490ms", False),
        ("ttft p50 < 300ms", True),
        ("generator-delay max > 2ms", False),
        ("Generator-Delay p99.9 >= 0.9ms", True),
        ("lateness p99.9 >= 0.9ms", True),
        ("mean < 1s", True),
        ("errors > 1%", True),
        ("errors > 2%", False),
        ("errors >= 2%", True),
        ("not-sent > 1.9%", True),
        ("not-sent > 2%", False),
        ("throughput < 150/s", True),
        ("Throughput > 150 /s", False),
    ],
)
def test_meaning_of_conditions(figures: Figures, text: str, holds: bool) -> None:
    assert threshold_of(text).holds(figures) is holds


def test_the_former_name_of_a_series_is_shown_with_the_new_one() -> None:
    assert threshold_of(" lateness p99 > 5ms").text == "generator-delay p99 > 5ms"
    assert threshold_of("generator-delay p99 > 5ms").text == "generator-delay p99 > 5ms"


@pytest.mark.parametrize("text", ["p99 > 500ms", "p99 < 500ms", "errors > 1%", "throughput < 5/s"])
def test_without_requests_a_condition_is_undecidable_and_fails(text: str) -> None:
    nothing = figures_of(rows_of([]))
    assert threshold_of(text).holds(nothing) is None
    assert threshold_of(text).fails(nothing)


def test_a_load_fails_where_the_condition_is_true(figures: Figures) -> None:
    assert threshold_of("p99 > 500ms").fails(figures)
    assert not threshold_of("p99 > 5s").fails(figures)


@pytest.mark.parametrize(
    ("text", "only"),
    [
        ("p99 > 500ms", True),
        ("p99 > 2s", False),
        ("p99 < 500ms", True),
        ("ttft p50 > 400ms", True),
        ("service p99 > 5ms", False),
        ("generator-delay p99 > 500ms", False),
        ("lateness p99 > 500ms", False),
        ("errors > 1%", False),
        ("throughput < 60/s", True),
    ],
)
def test_conditions_decided_by_the_generator_delay_alone(text: str, only: bool) -> None:
    rows = rows_of([1.01] * 100)
    rows["sent_s"] = rows["intended_s"] + 1.0
    assert threshold_of(text).depends_on_delay(figures_of(rows), figures_of(on_time(rows))) is only


def test_an_undecidable_condition_is_not_due_to_the_generator_delay() -> None:
    rows = unsent(rows_of([1.0]))
    assert not threshold_of("p99 > 5ms").depends_on_delay(figures_of(rows), figures_of(on_time(rows)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p99 > 500", "no unit"),
        ("p99 > 500%", "unit '%'; expected ms, s or us"),
        ("errors > 1", "expected %, as in 'errors > 1%'"),
        ("errors > 5ms", "expected %"),
        ("throughput < 150", "expected /s"),
        ("eror > 1%", "did you mean errors"),
        ("troughput < 5/s", "did you mean throughput"),
        ("letency p99 > 1s", "did you mean latency"),
        ("generator-dely p99 > 1s", "did you mean generator-delay"),
        ("latency p999x > 1s", "did you mean p99"),
        ("p100 > 1s", "did you mean p"),
        ("latency > 1s", "'latency' is no figure"),
        ("ttft errors > 1%", "errors is no time, so there is no ttft of it"),
        ("latency throughput < 5/s", "throughput is no time"),
        ("p99 == 500ms", "expected WHAT < NUMBER UNIT"),
        ("p99 > fast", "expected WHAT < NUMBER UNIT"),
        ("", "expected WHAT < NUMBER UNIT"),
    ],
)
def test_errors_for_invalid_conditions(text: str, message: str) -> None:
    with pytest.raises(ClaimsError) as caught:
        threshold_of(text)
    assert message in str(caught.value) and repr(text) in str(caught.value) and "\n" not in str(caught.value)


def test_values_are_shown_with_their_unit(figures: Figures) -> None:
    shown = {
        text: threshold_of(text).with_unit(threshold_of(text).value(figures)) for text in ("p50 > 1s", "errors > 1%")
    }
    assert shown == {"p50 > 1s": "495 ms", "errors > 1%": "2 %"}
