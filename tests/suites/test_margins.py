"""Margins that grow with the measured slack."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.evidence.history import History, empty_requests
from harness.scenario.model import Load, Scenario, Stream
from suites.margins import (
    APART_S,
    IN_FLIGHT_S,
    LOGGED_WITHIN,
    TRAVEL_S,
    before_s,
    clock_difference_s,
    logged_within_s,
    margin_s,
    margins_s,
)

IN_VIRTUAL_TIME = History(
    Scenario("margins", backends=1, load=Load((Stream("chat", 0.0, 1.0, 3),))), 1, empty_requests(3)
)
OVER_SOCKETS = replace(IN_VIRTUAL_TIME, slack_s=np.array([0.001, 0.004, 0.002]))


def test_clocks_differ_by_travel_and_slack_over_sockets_alone() -> None:
    assert clock_difference_s(IN_VIRTUAL_TIME) == 0.0
    assert clock_difference_s(OVER_SOCKETS) == pytest.approx(TRAVEL_S + 0.004)


@pytest.mark.parametrize(("at_s", "slack_s"), [(0.9, 0.001), (1.5, 0.004), (2.9, 0.002)])
def test_a_log_entry_may_be_late_by_the_slack_of_its_window(at_s: float, slack_s: float) -> None:
    assert logged_within_s(IN_VIRTUAL_TIME, 0.5, at_s) == pytest.approx(LOGGED_WITHIN * 0.5)
    assert logged_within_s(OVER_SOCKETS, 0.5, at_s) == pytest.approx(LOGGED_WITHIN * 0.5 + slack_s)


def test_every_margin_grows_by_the_slack_of_its_seconds() -> None:
    assert margin_s(IN_VIRTUAL_TIME, APART_S, 1.5) == APART_S
    assert margin_s(OVER_SOCKETS, APART_S, 0.5) == pytest.approx(APART_S + 0.001)
    assert margin_s(OVER_SOCKETS, APART_S, 0.5, 1.5) == pytest.approx(APART_S + 0.004)
    at_s = np.array([0.5, 1.5, 9.0, np.nan, np.inf, -np.inf])
    assert margins_s(IN_VIRTUAL_TIME, APART_S, at_s).tolist() == [APART_S] * 6
    extra_s = [0.001, 0.004, 0.002, 0.002, 0.002, 0.001]
    assert margins_s(OVER_SOCKETS, APART_S, at_s) == pytest.approx(np.array(extra_s) + APART_S)


def test_what_was_in_flight_at_a_step_began_earlier_on_a_noisy_machine() -> None:
    assert before_s(IN_VIRTUAL_TIME, 1.1) == pytest.approx(1.1 - IN_FLIGHT_S)
    assert before_s(OVER_SOCKETS, 1.1) == pytest.approx(1.1 - IN_FLIGHT_S - 0.004)
