"""Margins for timing: how far times at the client, in the balancer and at the backends may differ.

A history has the times of clients and backends alone; a balancer decides in between, by its own clock. Every check
that compares such times takes its margin from here: one of these times plus the slack (`margin_s`), or the time alone
where the judge adds the slack (`within`). All are seconds unless stated otherwise. Declares no property.
"""

from __future__ import annotations

import numpy as np

from harness.evidence.history import History
from harness.evidence.tables import Times

NOTICE_S = 0.05
"""Time that a request and its answer may take between client and balancer; the balancer's clock runs in between."""

LOGGED_WITHIN = 0.05
"""Share of a budget's window that may pass between a balancer's own count and a backend's log entry."""

COUNTED_S = 0.01
"""Longest time between a balancer's charge for a hedge and the hedge's arrival at a backend."""

BOOKKEEPING_S = 0.005
"""A request sent this long after a client received an answer reaches a balancer that has counted the answer, and no
longer counts its request as in flight."""

HANDOVER_S = 0.02
"""Longest time until a backend notices an aborted call, while the next call may already be in flight."""

KNOWN_WITHIN_S = 0.1
"""Time after which an answer that left a backend is known to the balancer and its connection is closed."""

IN_FLIGHT_S = 0.2
"""A request sent at most this long before a step may still be in flight when the step takes effect."""

APART_S = 0.01
"""If two good answers come within this time, either may be the first for the balancer."""

GONE_WITHIN_S = 0.05
"""Longest time after a client leaves, or has its answer, during which attempts may still be sent. A leaked timer of an
impatient client's request would hedge 90 ms later."""

TRAVEL_S = 0.02
"""Over sockets, times at a backend and in the balancer may differ by this network time in addition to the measured
slack."""


def margin_s(history: History, usual_s: float, at_s: float, until_s: float | None = None) -> float:
    """One of the times above, and the slack of the seconds in question."""
    return usual_s + history.worst_slack_s(at_s, until_s)


def margins_s(history: History, usual_s: float, at_s: Times) -> Times:
    """`margin_s` for each of these times."""
    return usual_s + history.slack_at(np.asarray(at_s))


def before_s(history: History, step_s: float) -> float:
    """Requests sent before this time are no longer in flight when a step takes effect at `step_s`."""
    return step_s - margin_s(history, IN_FLIGHT_S, step_s - IN_FLIGHT_S, step_s)


def logged_within_s(history: History, window_s: float, at_s: float) -> float:
    """Longest time between a balancer's own count and a backend's log entry, in a window of a budget up to `at_s`."""
    return LOGGED_WITHIN * window_s + history.worst_slack_s(at_s - window_s, at_s)


def clock_difference_s(history: History) -> float:
    """Largest difference between times at backends and in the balancer, in seconds; 0 in virtual time."""
    slack_s = history.worst_slack_s(0.0, history.scenario.end_s)
    return slack_s + TRAVEL_S if slack_s else 0.0
