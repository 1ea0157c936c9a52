"""Time, backends and requests of a fault plan, read from a history. Declares no property."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.evidence.history import History
from harness.evidence.queries import RequestSelection
from harness.scenario.faults import is_fault
from suites.margins import before_s
from suites.scenarios import carried_out

USED_SHARE = 0.25
"""Smallest use of the faulty backends before the plan, as a factor of their fair share; with less, the run is vacuous.

One of four backends is due 22 of the 86 requests by then; fewer than 6 occur by chance once in 20,000 runs.
"""


def began_s(history: History) -> float | None:
    """Time at which the first effective step was requested; None if there was none.

    A fault may cause losses from then on, although a live probe observes it only later.
    """
    return min((step.asked_s for step in history.steps if step.took_effect), default=None)


def healed_s(history: History) -> float | None:
    """Time at which the last fault had healed or membership change had taken effect; None if a fault never healed."""
    last_s = 0.0
    for planned, observed in carried_out(history):
        heals = is_fault(planned) and hasattr(planned, "for_s")
        ended_s = observed.healed_s if heals else observed.effective_s
        if np.isnan(ended_s):
            return None
        last_s = max(last_s, ended_s)
    return last_s if len(history.steps) else None


def faulty_backends(history: History) -> tuple[int, ...]:
    """Numbers of the backends that appear in the timeline."""
    return tuple(sorted({step.backend for step in history.steps}))


def sent_during_faults(history: History) -> RequestSelection:
    """Requests sent while a step was in force, or shortly before it."""
    requests = history.all_requests()
    found = requests - requests
    for step in history.steps:
        until_s = history.scenario.end_s if np.isnan(step.healed_s) else step.healed_s
        found |= requests.sent_between(before_s(history, step.asked_s), until_s)
    return found


def was_used(history: History, backends: Sequence[int], until_s: float) -> bool:
    """Whether these backends together got at least `USED_SHARE` of their fair share of the requests up to `until_s`."""
    reached = history.all_requests().sent_between(-np.inf, before_s(history, until_s)).first_backends()
    fair = len(backends) / history.scenario.backends
    return bool(len(reached)) and float(np.isin(reached, backends).mean()) >= USED_SHARE * fair
