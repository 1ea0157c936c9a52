"""Owners of keys before and after membership changes. Declares no property."""

from __future__ import annotations

import numpy as np

from harness.claims.features import Claims
from harness.evidence.history import History
from harness.evidence.tables import Numbers
from harness.property.findings import Held, held
from harness.scenario.faults import Membership
from harness.scenario.model import Scenario
from suites.scenarios import carried_out, too_few_reached, undisturbed

MOVED_AT_MOST = {"ring": 0.0, "rendezvous": 0.0, "jump": 0.0, "maglev": 0.05, "any": 0.05}
"""Largest share of the survivors' keys that may move. Maglev tables reassign a few slots (.0003 to .005 on average)."""


def key_count(history: History, claims: Claims, observed: int, bound: int, sample: int, note: str) -> Held:
    """Finding that a count of keys over the whole run is at most `bound`.

    It is exact unless a feature that stays on could have moved keys because of a delay.
    """
    exact = undisturbed(claims)
    end_s = history.scenario.end_s
    return held(observed <= bound, 0.0, observed, bound, exact=exact, until_s=end_s, sample=sample, note=note)


def changes_before(scenario: Scenario, stream: str) -> list[Membership]:
    """Membership changes that are due before the first request of a sweep."""
    start_s = scenario.load.stream(stream).start_s
    return [step for step in scenario.timeline if isinstance(step, Membership) and step.at_s < start_s]


def unusable_sweep(history: History, stream: str) -> str:
    """Reason why a sweep did not run against its intended fleet; empty if it did, or if no backend got any of it."""
    sent_s = history.requests_in(stream)["sent_s"]
    due = changes_before(history.scenario, stream)
    seen = [observed for planned, observed in carried_out(history) if planned in due]
    if not np.isfinite(sent_s).any() or len(seen) < len(due):
        return f"a change before '{stream}', or its requests, were not seen"
    last_effective_s = max((step.effective_s for step in seen), default=0.0)
    if not last_effective_s <= float(np.nanmin(sent_s)):
        return f"a change took effect at {last_effective_s:.2f} s, after the first request of '{stream}'"
    return too_few_reached(history, stream)


def owners_in(history: History, streams: list[str]) -> list[Numbers] | str:
    """Owners of keys in each sweep, for keys with one owner in every sweep; or the reason why they are unknown."""
    for stream in streams:
        if reason := unusable_sweep(history, stream):
            return reason
    owners = [history.owners(stream) for stream in streams]
    known = np.logical_and.reduce([one >= 0 for one in owners])
    return [one[known] for one in owners]
