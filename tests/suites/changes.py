"""Hand-written histories of every change: a newcomer joins, and each of the others leaves in turn and returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.claims.features import Affinity, Claims, Feature
from harness.evidence.history import History
from harness.scenario.arrivals import Arrival
from suites.affinity.changes import every_change
from tests.suites.histories import PlaceOf, history_of

BEFORE, JOINED, WITHOUT, BACKGROUND = 0, 1, 2, 6
"""Streams by number; WITHOUT is the first of four."""

NEWCOMER = 4
CHANGE_S, EACH_S = 0.7, 1.5
"""When the first change is made, and from one to the next."""


def claimed(algorithm: str = "ring", *others: Feature) -> Claims:
    """Claims of an affinity by this algorithm, and others."""
    return Claims((Affinity(algorithm=algorithm), *others))


def conforming(arrival: Arrival) -> int:
    """Every fourth key belongs to the same backend; the newcomer takes each fifth; the next one steps in."""
    if arrival.stream == JOINED and arrival.key % 5 == 0:
        return NEWCOMER
    home = arrival.key % 4
    if arrival.stream == BACKGROUND:
        away = min(int((arrival.at_s - CHANGE_S) // EACH_S) - 1, 3)
        return (home + 1) % 4 if home == away else home
    return (home + 1) % 4 if arrival.stream - WITHOUT == home else home


def but(streams: set[int], keys: Callable[[int], bool], backend: Callable[[int], int | None]) -> PlaceOf:
    """As conforming, but these keys go elsewhere in these streams."""

    def place_of(arrival: Arrival) -> int | None:
        strays = arrival.stream in streams and keys(arrival.key)
        return backend(arrival.key) if strays else conforming(arrival)

    return place_of


def changing(place_of: PlaceOf = conforming, claims: Claims | None = None) -> History:
    """The run of every change."""
    return history_of(every_change(claims or claimed()), place_of)


def late(history: History, position: int, by_s: float) -> History:
    """One step of the timeline took effect later than asked for."""
    steps = list(history.steps)
    steps[position] = replace(steps[position], effective_s=steps[position].asked_s + by_s)
    return replace(history, steps=tuple(steps))
