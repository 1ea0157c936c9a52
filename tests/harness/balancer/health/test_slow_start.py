"""Slow start: a ramp at every entry into rotation, but none for an entirely new fleet."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.balancer.health.ejection import PassiveEjection
from harness.balancer.health.health_score import shares
from harness.balancer.health.readiness import Readiness
from harness.balancer.health.slow_start import SlowStart

DETERMINISTIC = settings(derandomize=True, deadline=None, database=None, max_examples=100)
WARM = ("a", "b", "c", "d")


def warm_fleet(window_s: float = 10.0, minimum_share: float = 0.1, aggression: float = 1.0) -> SlowStart:
    """Four members that have been in rotation for a long time at time 0."""
    slow_start = SlowStart(window_s, minimum_share, aggression)
    slow_start.set_backends(WARM, -1000.0)
    return slow_start


def factors(slow_start: SlowStart, name: str, *times_s: float) -> list[float]:
    return [slow_start.factor(name, now_s) for now_s in times_s]


@pytest.mark.parametrize(
    ("aggression", "expected"),
    [(1.0, [0.1, 0.1, 0.25, 0.5, 0.99, 1.0]), (2.0, [0.1, 0.1**0.5, 0.5, 0.5**0.5, 0.99**0.5, 1.0])],
)
def test_the_published_formula(aggression: float, expected: list[float]) -> None:
    slow_start = warm_fleet(aggression=aggression)
    slow_start.set_backends((*WARM, "new"), 0.0)
    assert factors(slow_start, "new", 0.0, 1.0, 2.5, 5.0, 9.9, 10.0) == pytest.approx(expected)
    assert factors(slow_start, "a", 0.0, 5.0) == [1.0, 1.0]


def test_the_share_rises_from_above_0_to_full_by_the_end_of_the_window() -> None:
    """D1: a newcomer beside four gets requests at once, a growing share, and a fifth from the end of the window on."""
    slow_start = warm_fleet(window_s=5.0)
    slow_start.set_backends((*WARM, "new"), 0.0)
    observed = [
        shares({name: slow_start.factor(name, now_s) for name in (*WARM, "new")})["new"]
        for now_s in (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 50.0)
    ]
    assert 0 < observed[0] < 0.03
    assert observed[:6] == sorted(set(observed))
    assert observed[5:] == pytest.approx([0.2, 0.2])


def test_new_returned_and_ejected_ones_all_ramp() -> None:
    """D2: every kind of entry into rotation."""
    slow_start = warm_fleet()
    ejection = PassiveEjection(failures=1, open_s=2.0)
    ejection.settle("a", ok=False, now_s=0.0)
    until_s = ejection.until_s("a", 0.0)
    assert until_s == 2.0
    slow_start.restart("a", until_s)
    slow_start.set_backends(("a", "c", "d"), 0.0)  # b leaves
    slow_start.set_backends(("a", "b", "c", "d", "new"), 2.0)
    for name in ("a", "b", "new"):
        assert factors(slow_start, name, 2.0, 7.0, 12.0) == pytest.approx([0.1, 0.5, 1.0])
    assert factors(slow_start, "c", 2.0) == [1.0]


def test_ready_again_ramps_too() -> None:
    """D2: readiness reports that a health check brought a backend back."""
    readiness = Readiness(interval_s=1.0, timeout_s=1.0, unhealthy=1, healthy=1)
    slow_start = warm_fleet()
    timer = readiness.set_backends(("a",), 0.0)[0].timer_id  # type: ignore[union-attr]
    for ok, at_s in ((True, 0.0), (False, 1.0), (True, 2.0), (True, 3.0)):
        check = readiness.timer_fired(timer, at_s)[0]
        if readiness.result(check.check_id, ok):  # type: ignore[union-attr]
            slow_start.restart("a", at_s)
    assert factors(slow_start, "a", 2.0, 7.0) == pytest.approx([0.1, 0.5])


def test_before_an_ejection_ends_the_factor_is_the_least() -> None:
    slow_start = warm_fleet()
    slow_start.restart("a", 5.0)
    assert factors(slow_start, "a", 0.0, 5.0) == [0.1, 0.1]


def test_a_cold_fleet_is_not_slowed() -> None:
    slow_start = SlowStart(10.0)
    slow_start.set_backends(WARM, 0.0)
    for now_s in (0.0, 3.0, 9.99, 10.0, 20.0):
        assert [slow_start.factor(name, now_s) for name in WARM] == [1.0] * 4


def test_in_a_young_fleet_the_youngest_is_measured_by_the_oldest() -> None:
    slow_start = SlowStart(10.0)
    slow_start.set_backends(("a",), 0.0)
    slow_start.set_backends(("a", "b"), 4.0)
    assert factors(slow_start, "a", 4.0, 8.0, 12.0) == [1.0, 1.0, 1.0]
    assert factors(slow_start, "b", 4.0, 8.0, 10.0, 14.0) == pytest.approx([0.25, 0.5, 0.6, 1.0])


def test_edits_of_others_do_not_restart_a_ramp() -> None:
    slow_start = warm_fleet()
    slow_start.set_backends((*WARM, "new"), 0.0)
    for now_s in (1.0, 2.0, 3.0):
        slow_start.set_backends((*WARM, "new", f"other-{now_s}"), now_s)
    slow_start.set_backends(("new", *WARM), 4.0)
    assert factors(slow_start, "new", 5.0) == [0.5]


def test_strangers() -> None:
    slow_start = warm_fleet()
    slow_start.restart("stranger", 0.0)
    with pytest.raises(KeyError):
        slow_start.factor("stranger", 0.0)


@DETERMINISTIC
@given(
    aggression=st.floats(0.1, 10),
    minimum_share=st.floats(0.001, 1),
    ages_s=st.lists(st.floats(-5, 50), min_size=1, max_size=6),
    now_s=st.floats(0, 20),
    warm=st.booleans(),
)
def test_factors_are_above_0_never_above_1_and_the_older_the_higher(
    aggression: float, minimum_share: float, ages_s: list[float], now_s: float, warm: bool
) -> None:
    slow_start = warm_fleet(10.0, minimum_share, aggression) if warm else SlowStart(10.0, minimum_share, aggression)
    names = [f"gpu-{number}" for number in range(len(ages_s))]
    slow_start.set_backends((*names, *(WARM if warm else ())), -500.0)
    for name, age_s in zip(names, ages_s, strict=True):
        slow_start.restart(name, now_s - age_s)
    by_age = [slow_start.factor(name, now_s) for _, name in sorted(zip(ages_s, names, strict=True))]
    assert by_age == sorted(by_age)
    assert all(minimum_share * (1 - 1e-12) <= factor <= 1 for factor in by_age)
    assert warm or by_age[-1] == 1.0


@pytest.mark.parametrize(
    ("window_s", "minimum_share", "aggression"),
    [(0.0, 0.1, 1.0), (10.0, 0.0, 1.0), (10.0, 1.1, 1.0), (10.0, 0.1, 0.0), (math.nan, 0.1, 1.0)],
)
def test_numbers_that_make_no_sense(window_s: float, minimum_share: float, aggression: float) -> None:
    with pytest.raises(ValueError, match="expected above 0, above 0 and at most 1, and above 0"):
        SlowStart(window_s, minimum_share, aggression)
