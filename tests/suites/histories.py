"""Hand-written histories: the arrivals of a scenario, and for each the backend that a test names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from harness.claims.features import Claims
from harness.evidence.history import History, StepSeen, empty_requests
from harness.evidence.tables import ATTEMPT, RESIDENCY
from harness.judge import decide
from harness.property.declare import Property
from harness.property.findings import Held
from harness.property.verdict import Outcome
from harness.scenario.arrivals import Arrival, draw
from harness.scenario.model import Echo, Ending, Failure, Residency, Scenario

SEED = 7
LATENCY_S = 0.01

PlaceOf = Callable[[Arrival], int | None]


def history_of(scenario: Scenario, place_of: PlaceOf) -> History:
    """Each request is sent when due and answered by the backend that `place_of` names; None: lost, seen by none."""
    arrivals = draw(scenario.load, SEED)
    requests = empty_requests(len(arrivals))
    attempts = np.zeros(len(arrivals), dtype=ATTEMPT)
    for number, arrival in enumerate(arrivals):
        row, attempt = requests[number], attempts[number]
        for name in ("stream", "kind", "method", "key", "connection", "patience_s"):
            row[name] = getattr(arrival, name)
        row["intended_s"] = row["sent_s"] = attempt["start_s"] = arrival.at_s
        row["first_byte_s"] = row["end_s"] = attempt["end_s"] = arrival.at_s + LATENCY_S
        row["failure"] = Failure.NONE
        backend = place_of(arrival)
        if backend is None:
            row["status"], attempt["request"] = 502, -1
            continue
        row["status"], row["echo"], row["answered_by"] = 200, Echo.OWN, backend
        attempt["request"], attempt["backend"], attempt["status"] = number, backend, 200
        attempt["ending"] = Ending.ANSWERED
    attempts = attempts[attempts["request"] >= 0]
    return History(scenario, SEED, requests, attempts, steps=on_time(scenario))


def on_time(scenario: Scenario) -> tuple[StepSeen, ...]:
    """Every step of the timeline took effect when it was asked for."""
    return tuple(
        StepSeen(type(step).__name__, scenario.backend_ids.index(step.backend), step.at_s, step.at_s)
        for step in scenario.timeline
    )


def lost(history: History, numbers: Iterable[int]) -> History:
    """`history` with these requests answered 502; backends saw their attempts all the same."""
    requests = history.requests.copy()
    requests["status"][list(numbers)] = 502
    return replace(history, requests=requests)


def unreached(history: History, but: int) -> History:
    """`history` in which only the first `but` requests reached a backend; the others are lost."""
    requests = history.requests.copy()
    requests["status"][but:] = 502
    few = history.attempts[history.attempts["request"] < but]
    return replace(history, requests=requests, attempts=few)


def with_loads(history: History, count: int) -> History:
    """`history` with `count` cold loads."""
    rows = [(0, Residency.LOADING, b"m", 0.1)] * count + [(0, Residency.EVICTED, b"m", 0.2)] * count
    return replace(history, residency=np.array(rows, dtype=RESIDENCY))


def only(item: Property, history: History, claims: Claims) -> Held:
    """The one finding of a check, which is a fact of order or count."""
    (finding,) = item(history, claims)
    assert isinstance(finding, Held)
    return finding


def outcome(item: Property, history: History, claims: Claims) -> Outcome:
    """What the judge makes of a check's findings."""
    return decide(item(history, claims), history).outcome
