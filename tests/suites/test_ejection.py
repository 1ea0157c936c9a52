"""Passive ejection on hand-written histories: ejection times, and the number of backends ejected at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from harness.claims.features import Claims, Ejection
from harness.evidence.history import History
from harness.property.findings import Held
from harness.scenario.arrivals import Arrival
from harness.scenario.model import Scenario, UnsupportedError
from suites.ejection import FAILURE, cap_never_more, many_fail, one_fails, out_gets_nothing
from tests.suites.histories import history_of, only

CLAIMS = Claims((Ejection(failures=3, open_s=1.0, statuses=(500,), cap_share=0.5),))


def ejecting(scenario: Scenario, sick: int, out: Callable[[int, float], bool]) -> History:
    """Requests go to the backends in turn, skipping those that are `out` at that time; the first few backends fail."""

    def place_of(arrival: Arrival) -> int | None:
        turn = [(arrival.number + step) % 4 for step in range(4)]
        return next((number for number in turn if not out(number, arrival.at_s)), None)

    history = history_of(scenario, place_of)
    attempts = history.attempts.copy()
    attempts["status"][attempts["backend"] < sick] = FAILURE
    return replace(history, attempts=attempts)


def third_failure_s(history: History) -> float:
    """Time of the third failed attempt at gpu-0."""
    mine = history.attempts[history.attempts["backend"] == 0]
    return float(mine["end_s"][2])


BEGAN_S = third_failure_s(ejecting(one_fails(CLAIMS), 1, lambda number, at_s: False))


@pytest.mark.parametrize(
    ("lasts_s", "strays"), [(1.0, False), (0.5, True), (0.0, True), (5.0, False)], ids=["its time", "half", "not", "on"]
)
def test_who_is_out_gets_nothing_for_its_time(lasts_s: float, strays: bool) -> None:
    history = ejecting(one_fails(CLAIMS), 1, lambda number, at_s: number == 0 and BEGAN_S < at_s < BEGAN_S + lasts_s)
    first = out_gets_nothing(history, CLAIMS)[0]
    assert isinstance(first, Held)
    assert first.ok is not strays
    assert first.at_s == pytest.approx(BEGAN_S)
    assert first.until_s == pytest.approx(BEGAN_S + 1.0)


def test_each_ejection_is_a_finding() -> None:
    """It returns for a moment, fails three times in a row again, and is not ejected then."""
    history = ejecting(one_fails(CLAIMS), 1, lambda number, at_s: number == 0 and BEGAN_S < at_s < BEGAN_S + 1.0)
    findings = out_gets_nothing(history, CLAIMS)
    assert [found.ok for found in findings if isinstance(found, Held)] == [True, False]


def test_two_failures_are_not_enough_to_judge() -> None:
    history = ejecting(one_fails(CLAIMS), 1, lambda number, at_s: number == 0 and at_s > BEGAN_S - 0.015)
    assert out_gets_nothing(history, CLAIMS) == []


def test_what_was_on_its_way_is_no_breach_over_sockets() -> None:
    late = ejecting(one_fails(CLAIMS), 1, lambda number, at_s: number == 0 and BEGAN_S + 0.015 < at_s < BEGAN_S + 9)
    assert only(out_gets_nothing, late, CLAIMS).ok is False
    assert only(out_gets_nothing, replace(late, slack_s=np.full(5, 0.001)), CLAIMS).ok is True


@pytest.mark.parametrize(("out", "ok"), [({0, 1}, True), ({0}, True), ({0, 1, 2}, False)])
def test_no_more_are_out_than_the_cap(out: set[int], ok: bool) -> None:
    history = ejecting(many_fail(CLAIMS), 3, lambda number, at_s: number in out and 0.3 < at_s < 1.3)
    found = only(cap_never_more, history, CLAIMS)
    assert (found.ok, found.observed, found.bound) == (ok, len(out), 2)
    assert found.until_s is not None and 0.5 < found.until_s < 1.3


def test_where_even_the_one_that_never_fails_gets_nothing_something_stood_still() -> None:
    history = ejecting(many_fail(CLAIMS), 3, lambda number, at_s: 0.3 < at_s < 1.3)
    assert cap_never_more(history, CLAIMS) == []


def test_who_takes_turns_at_being_out_is_counted_by_the_moment() -> None:
    history = ejecting(many_fail(CLAIMS), 3, lambda number, at_s: number == int(at_s / 0.5) % 3)
    assert only(cap_never_more, history, CLAIMS).observed == 1


def test_where_nobody_is_out_no_cap_is_put_to_the_test() -> None:
    assert cap_never_more(ejecting(many_fail(CLAIMS), 3, lambda number, at_s: False), CLAIMS) == []


@pytest.mark.parametrize(
    ("ejection", "scenario", "message"),
    [
        (Ejection(), one_fails, "500 is not claimed to count as a failure"),
        (Ejection(statuses=(500,)), many_fail, "no cap is claimed"),
        (Ejection(statuses=(500,), cap_share=0.75), many_fail, "a cap of 0.75 limits nothing for 4 backends"),
        (Ejection(open_s=0.05, statuses=(500,)), one_fails, "too short or too long to observe"),
        (Ejection(open_s=30.0, statuses=(500,)), one_fails, "too short or too long to observe"),
    ],
)
def test_what_cannot_be_put_to_the_test(
    ejection: Ejection, scenario: Callable[[Claims], Scenario], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        scenario(Claims((ejection,)))


def test_all_but_one_fail() -> None:
    assert [step.backend for step in many_fail(CLAIMS).timeline] == ["gpu-0", "gpu-1", "gpu-2"]
    assert [step.backend for step in one_fails(CLAIMS).timeline] == ["gpu-0"]
