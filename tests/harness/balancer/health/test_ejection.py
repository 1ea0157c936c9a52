"""Passive ejection: at the n-th consecutive failure, for a fixed time, with a count of 0 afterwards."""

from __future__ import annotations

import pytest

from harness.balancer.health.ejection import PassiveEjection


def ejected_at(failures: int, at_s: float, open_s: float = 1.0) -> PassiveEjection:
    ejection = PassiveEjection(failures, open_s)
    for _ in range(failures):
        ejection.settle("a", ok=False, now_s=at_s)
    return ejection


@pytest.mark.parametrize("failures", [1, 2, 5])
def test_exactly_at_the_nth_failure_in_a_row(failures: int) -> None:
    ejection = PassiveEjection(failures, 1.0)
    observed = []
    for number in range(failures):
        observed.append(ejection.ejected("a", float(number)))
        ejection.settle("a", ok=False, now_s=float(number))
    assert observed == [False] * failures
    assert ejection.ejected("a", failures - 1.0)


def test_for_exactly_the_time() -> None:
    ejection = ejected_at(3, 10.0, open_s=2.0)
    assert [ejection.ejected("a", now_s) for now_s in (10.0, 11.99, 12.0, 13.0)] == [True, True, False, False]


def test_a_success_clears_the_run() -> None:
    ejection = PassiveEjection(2, 1.0)
    for ok in (False, True, False, True, False):
        ejection.settle("a", ok=ok, now_s=0.0)
    assert not ejection.ejected("a", 0.0)


def test_late_failures_do_not_lengthen() -> None:
    ejection = ejected_at(2, 0.0)
    for now_s in (0.1, 0.5, 0.9):
        ejection.settle("a", ok=False, now_s=now_s)
    assert not ejection.ejected("a", 1.0)


def test_the_count_is_clean_after_the_time() -> None:
    ejection = ejected_at(2, 0.0)
    ejection.settle("a", ok=False, now_s=0.5)
    ejection.settle("a", ok=False, now_s=1.0)
    assert not ejection.ejected("a", 1.0)
    ejection.settle("a", ok=False, now_s=1.1)
    assert ejection.ejected("a", 1.1)


def test_a_late_success_does_not_shorten() -> None:
    ejection = ejected_at(2, 0.0)
    ejection.settle("a", ok=True, now_s=0.5)
    assert ejection.ejected("a", 0.9)


def test_backends_are_independent() -> None:
    ejection = PassiveEjection(2, 1.0)
    for name, ok in (("a", False), ("b", False), ("b", True), ("a", False)):
        ejection.settle(name, ok=ok, now_s=0.0)
    assert (ejection.ejected("a", 0.5), ejection.ejected("b", 0.5)) == (True, False)


def test_who_returns_starts_clean_and_who_stays_does_not() -> None:
    ejection = ejected_at(2, 0.0)
    ejection.settle("b", ok=False, now_s=0.0)
    ejection.keep_only(frozenset("b"))
    assert not ejection.ejected("a", 0.1)
    ejection.keep_only(frozenset("ab"))
    ejection.settle("a", ok=False, now_s=0.1)
    assert not ejection.ejected("a", 0.1)
    ejection.settle("b", ok=False, now_s=0.1)
    assert ejection.ejected("b", 0.1)


def test_an_ejection_survives_changes_of_others() -> None:
    ejection = ejected_at(2, 0.0)
    ejection.keep_only(frozenset("a"))
    assert ejection.ejected("a", 0.5)


def test_a_run_is_forgotten_with_its_member() -> None:
    ejection = PassiveEjection(2, 1.0)
    ejection.settle("a", ok=False, now_s=0.0)
    ejection.keep_only(frozenset())
    ejection.settle("a", ok=False, now_s=0.0)
    assert not ejection.ejected("a", 0.0)


@pytest.mark.parametrize(("failures", "open_s"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, -1.0)])
def test_numbers_that_make_no_sense(failures: int, open_s: float) -> None:
    with pytest.raises(ValueError, match="expected 1 or more and above 0"):
        PassiveEjection(failures, open_s)
