"""Drawn times follow the rate of a shape; rates and integrals are compared with independent formulas."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import TypeAdapter
from scipy import stats

from harness.scenario.arrival_rates import (
    Bursts,
    Constant,
    Diurnal,
    OnOff,
    Poisson,
    Ramp,
    Recorded,
    Shape,
    Spike,
    Step,
    Varying,
    expected,
    rate,
    times,
)
from harness.scenario.fast_dataclass import scale_durations

Times = NDArray[np.float64]
ALPHA = 1e-4

SHAPES: dict[str, tuple[Varying, Callable[[Times], Times]]] = {
    "constant": (Constant(40.0, 50.0), lambda t: np.full_like(t, 40.0)),
    "poisson": (Poisson(40.0, 50.0), lambda t: np.full_like(t, 40.0)),
    "bursts": (Bursts(20.0, 100.0, 5.0, 0.5, 50.0), lambda t: np.where(t % 5.0 >= 4.5, 220.0, 20.0)),
    "diurnal": (Diurnal(40.0, 20.0, 50.0, 0.8), lambda t: 40.0 - 32.0 * np.cos(2 * np.pi * t / 20.0)),
    "night": (Diurnal(40.0, 20.0, 50.0, 1.0), lambda t: 40.0 - 40.0 * np.cos(2 * np.pi * t / 20.0)),
    "ramp": (Ramp(0.0, 80.0, 50.0), lambda t: 1.6 * t),
    "descent": (Ramp(80.0, 0.0, 50.0), lambda t: 80.0 - 1.6 * t),
    "spike": (Spike(20.0, 200.0, 20.0, 5.0, 50.0), lambda t: np.where((t >= 20.0) & (t < 25.0), 200.0, 20.0)),
    "step": (Step(10.0, 70.0, 4, 50.0), lambda t: 10.0 + 20.0 * np.minimum(t // 12.5, 3.0)),
    "on-off": (OnOff(80.0, 3.0, 2.0, 49.0), lambda t: np.where(t % 5.0 < 3.0, 80.0, 0.0)),
    "cut-on": (OnOff(80.0, 3.0, 2.0, 46.5), lambda t: np.where(t % 5.0 < 3.0, 80.0, 0.0)),
    "low-off": (OnOff(80.0, 3.0, 2.0, 49.0, 10.0), lambda t: np.where(t % 5.0 < 3.0, 80.0, 10.0)),
}
"""Shapes, each with an independent formula of its rate."""

EVEN = {name: pair for name, pair in SHAPES.items() if name not in ("constant", "poisson")}


def cumulative(name: str) -> tuple[Times, Times]:
    """A fine grid of times, and the requests expected until each, integrated numerically at midpoints."""
    shape, formula = SHAPES[name]
    grid_s = np.linspace(0.0, shape.duration_s, 400_001)
    middles_s = 0.5 * (grid_s[1:] + grid_s[:-1])
    return grid_s, np.concatenate([[0.0], np.cumsum(formula(middles_s) * np.diff(grid_s))])


@pytest.mark.parametrize("name", SHAPES)
def test_rate_and_expected_count_are_the_stated_ones(name: str) -> None:
    shape, formula = SHAPES[name]
    grid_s, counts = cumulative(name)
    for at_s in np.linspace(0.013, shape.duration_s - 0.011, 300):
        assert rate(shape, at_s) == pytest.approx(float(formula(np.array([at_s]))[0]), rel=1e-9, abs=1e-9)
        assert expected(shape, at_s) == pytest.approx(np.interp(at_s, grid_s, counts), rel=1e-4, abs=0.05)
    assert expected(shape) == pytest.approx(counts[-1], rel=1e-4)
    assert rate(shape, -0.1) == rate(shape, shape.duration_s + 0.1) == 0.0


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "constant"])
def test_drawn_times_follow_the_rate(name: str) -> None:
    shape, _ = SHAPES[name]
    grid_s, counts = cumulative(name)
    found = times(shape, random.Random(f"ks/{name}"))
    assert found == sorted(found)
    assert found[0] >= 0.0 and found[-1] <= shape.duration_s
    # Given their number, the points of a Poisson process carried through the expected count are uniform.
    assert stats.kstest(np.interp(found, grid_s, counts) / counts[-1], "uniform").pvalue > ALPHA
    # And the gaps between them are exponential and independent.
    gaps = np.diff(np.interp(found, grid_s, counts))
    assert stats.kstest(gaps, "expon").pvalue > ALPHA
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 4 / math.sqrt(len(gaps))


def test_that_test_would_see_another_rate() -> None:
    grid_s, counts = cumulative("spike")
    for other in ("poisson", "ramp", "diurnal", "on-off"):
        found = times(SHAPES[other][0], random.Random(1))
        assert stats.kstest(np.interp(found, grid_s, counts) / counts[-1], "uniform").pvalue < ALPHA


@pytest.mark.parametrize("name", ["poisson", "diurnal", "spike", "on-off"])
def test_the_number_is_poisson(name: str) -> None:
    shape = scale_durations(SHAPES[name][0], 0.02)
    small = TypeAdapter(Shape).validate_python(shape)  # stretching keeps counts: 50 times as dense, 50 times as short
    mean = expected(small)
    numbers = [len(times(small, random.Random(f"count/{seed}"))) for seed in range(60)]
    assert abs(np.mean(numbers) - mean) < 4 * math.sqrt(mean / 60)
    dispersion = float(np.sum((np.array(numbers) - mean) ** 2) / mean)
    assert stats.chi2.ppf(ALPHA / 2, 60) < dispersion < stats.chi2.ppf(1 - ALPHA / 2, 60)


@pytest.mark.parametrize("name", EVEN)
def test_even_times_stand_where_whole_numbers_are_expected(name: str) -> None:
    shape = TypeAdapter(Shape).validate_python({**TypeAdapter(Shape).dump_python(SHAPES[name][0]), "even": True})
    grid_s, counts = cumulative(name)
    found = times(shape, random.Random(1))
    assert found == times(shape, random.Random(2))
    assert len(found) == math.ceil(round(expected(shape), 6))
    assert np.allclose(np.interp(found, grid_s, counts), np.arange(len(found)), atol=0.05)


def test_constant_is_even_and_begins_at_0() -> None:
    assert times(Constant(10.0, 1.0), random.Random(1)) == pytest.approx([n / 10 for n in range(10)])
    assert 1.1 * 50.0 > 55.0  # by rounding alone
    assert len(times(Constant(1.1, 50.0), random.Random(1))) == 55


def test_a_burst_comes_at_the_end_of_its_period_and_a_wave_begins_at_night() -> None:
    found = np.array(times(Bursts(0.0, 50.0, 2.0, 0.1, 8.0), random.Random(1)))
    assert (found % 2.0 >= 1.9 - 1e-9).all()
    assert rate(Diurnal(10.0, 24.0, 24.0, 0.5), 0.0) == pytest.approx(5.0)
    assert rate(Diurnal(10.0, 24.0, 24.0, 0.5), 12.0) == pytest.approx(15.0)


def test_silence_is_silent() -> None:
    found = np.array(times(OnOff(50.0, 1.0, 1.0, 20.0), random.Random(1)))
    assert (found % 2.0 <= 1.0).all()


def test_recorded_times_are_told_as_they_are() -> None:
    shape = Recorded((0.0, 0.5, 0.5, 2.0))
    assert times(shape, random.Random(1)) == [0.0, 0.5, 0.5, 2.0]
    assert (expected(shape), expected(shape, 0.6), shape.duration_s) == (4.0, 3.0, 2.0)
    assert (times(Recorded(()), random.Random(1)), Recorded(()).duration_s) == ([], 0.0)


@pytest.mark.parametrize("shape", [pair[0] for pair in SHAPES.values()] + [Recorded((0.0, 1.5))])
def test_shapes_survive_json(shape: Shape) -> None:
    form: TypeAdapter[Shape] = TypeAdapter(Shape)
    again = form.validate_json(form.dump_json(shape))
    assert again == shape and type(again) is type(shape)


@pytest.mark.parametrize("shape", [pair[0] for pair in SHAPES.values()] + [Recorded((0.0, 1.5))])
def test_stretching_keeps_the_count(shape: Shape) -> None:
    longer = scale_durations(shape, 3.0)
    assert longer.duration_s == pytest.approx(3.0 * shape.duration_s)
    assert expected(longer) == pytest.approx(expected(shape))
    assert times(longer, random.Random(5)) == pytest.approx([3.0 * at_s for at_s in times(shape, random.Random(5))])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(0.0, 1.0), "rate_per_s must be above 0, not 0"),
        (lambda: Poisson(1.0, math.inf), "duration_s must be above 0, not inf"),
        (lambda: Bursts(-1.0, 1.0, 2.0, 1.0, 5.0), "rate_per_s must be 0 or more, not -1"),
        (lambda: Bursts(1.0, 1.0, 2.0, 2.0, 5.0), "burst_s must be below every_s"),
        (lambda: Diurnal(1.0, 1.0, 1.0, 1.5), "swing must be from 0 to 1, not 1.5"),
        (lambda: Ramp(0.0, 0.0, 1.0), "both 0"),
        (lambda: Spike(1.0, 2.0, 9.0, 2.0, 10.0), "the spike ends at 11 s, after duration_s 10"),
        (lambda: Step(1.0, 2.0, 1, 1.0), "levels must be 2 or more, not 1"),
        (lambda: Step(0.0, 0.0, 2, 1.0), "both 0"),
        (lambda: OnOff(0.0, 1.0, 1.0, 1.0), "on_per_s must be above 0"),
        (lambda: Recorded((0.0, 2.0, 1.0)), r"times_s\[2\] is 1: expected finite times"),
        (lambda: Recorded((math.nan,)), r"times_s\[0\] is nan"),
    ],
)
def test_nonsense_is_an_error(make: Callable[[], Shape], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


RATES = st.floats(0.0, 500.0)
SECONDS = st.floats(0.01, 20.0)
ANY = st.one_of(
    st.builds(Ramp, RATES, st.floats(0.1, 500.0), SECONDS, st.booleans()),
    st.builds(Step, RATES, st.floats(0.1, 500.0), st.integers(2, 6), SECONDS, st.booleans()),
    st.builds(Diurnal, st.floats(0.1, 300.0), SECONDS, SECONDS, st.floats(0.0, 1.0), st.booleans()),
    st.builds(OnOff, st.floats(0.1, 500.0), st.floats(0.05, 5), st.floats(0.05, 5), SECONDS, RATES, st.booleans()),
)


@settings(max_examples=60, deadline=None)
@given(ANY, st.integers(0, 1000))
def test_every_time_lies_where_its_count_is_expected(shape: Varying, seed: int) -> None:
    found = times(shape, random.Random(seed))
    assert found == sorted(found)
    assert all(0.0 <= at_s <= shape.duration_s for at_s in found)
    generator, count = random.Random(seed), 0.0
    for position, at_s in enumerate(found):
        count = float(position) if shape.even else count + generator.expovariate(1.0)
        assert expected(shape, at_s) == pytest.approx(count, rel=1e-6, abs=1e-6 * max(rate(shape, at_s), 1.0))
