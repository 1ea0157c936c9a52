"""Hand-written histories for health-weighted shares: gpu-1 gets a given share of each stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from harness.claims.features import Claims, HealthChecks, HealthShare
from harness.evidence.history import History
from harness.evidence.tables import Mask, Times
from harness.property.declare import Property
from harness.property.findings import Sampled, Undecided
from harness.scenario.arrivals import Arrival
from harness.scenario.model import Scenario
from tests.suites.histories import history_of

SHARE = HealthShare(window_s=2.0)
CLAIMS = Claims((SHARE, HealthChecks(interval_s=0.5, timeout_s=1.0, unhealthy=2, healthy=1)))
SICK = 1
EVERYWHERE = ""


def placed(scenario: Scenario, shares: Mapping[str, float]) -> Callable[[Arrival], int]:
    """gpu-1 gets this share of each stream's requests, as evenly as possible; the others get the rest in turn."""
    counts: Counter[int] = Counter()
    spared: Counter[int] = Counter()
    others = [number for number in range(scenario.backends) if number != SICK]

    def place_of(arrival: Arrival) -> int:
        name = scenario.load.streams[arrival.stream].name
        share = shares.get(name, shares.get(EVERYWHERE, 1 / scenario.backends))
        count = counts[arrival.stream]
        counts[arrival.stream] += 1
        if int((count + 1) * share + 1e-9) > int(count * share + 1e-9):
            return SICK
        spared[arrival.stream] += 1
        return others[spared[arrival.stream] % len(others)]

    return place_of


def shared(scenario: Scenario, **shares: float) -> History:
    """A history in which gpu-1 gets these shares by stream, elsewhere an even one, and all faults heal on time."""
    names = {name.replace("_", "-"): share for name, share in shares.items()}
    history = history_of(scenario, placed(scenario, names))
    ends_s = [step.at_s + (getattr(step, "for_s", None) or np.nan) for step in scenario.timeline]
    healed = (replace(step, healed_s=end_s) for step, end_s in zip(history.steps, ends_s, strict=True))
    return replace(history, steps=tuple(healed))


def rate(item: Property, history: History, claims: Claims = CLAIMS) -> Sampled:
    """The only finding of a check, which is a rate."""
    (finding,) = item(history, claims)
    assert isinstance(finding, Sampled)
    return finding


def why(item: Property, history: History, claims: Claims = CLAIMS) -> str:
    """Why the only finding of a check is undecided."""
    (finding,) = item(history, claims)
    assert isinstance(finding, Undecided)
    return finding.why


def shifted(history: History, **seconds: float) -> History:
    """`history` whose steps took effect, or healed, this much later."""
    steps = tuple(
        replace(step, **{name: getattr(step, name) + later_s for name, later_s in seconds.items()})
        for step in history.steps
    )
    return replace(history, steps=steps)


def lost(history: History, sent: Callable[[Times], Mask]) -> History:
    """`history` in which no backend saw the requests selected by their send times with `sent`."""
    numbers = np.flatnonzero(sent(history.requests["sent_s"]))
    return replace(history, attempts=history.attempts[~np.isin(history.attempts["request"], numbers)])
