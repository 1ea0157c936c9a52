"""Hand-written histories of the scenario `every_change`: a newcomer joins; each other backend leaves and returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.claims.features import Affinity, Claims, Feature
from harness.evidence.history import History
from harness.scenario.arrivals import Arrival
from suites.affinity.scenarios import every_change
from tests.suites.histories import PlaceOf, history_of

BEFORE, JOINED, WITHOUT, BACKGROUND = 0, 1, 2, 6
"""Streams by number; WITHOUT is the first of four."""

NEWCOMER = 4
CHANGE_S, EACH_S = 0.7, 1.5
"""Time of the first change, and the interval between changes."""


def claimed(algorithm: str = "ring", *others: Feature) -> Claims:
    """Claims of affinity by this algorithm, with other features."""
    return Claims((Affinity(algorithm=algorithm), *others))


def conforming(arrival: Arrival) -> int:
    """Key k belongs to backend k modulo 4, or to the next one while that is away; the newcomer takes each fifth key."""
    if arrival.stream == JOINED and arrival.key % 5 == 0:
        return NEWCOMER
    home = arrival.key % 4
    if arrival.stream == BACKGROUND:
        away = min(int((arrival.at_s - CHANGE_S) // EACH_S) - 1, 3)
        return (home + 1) % 4 if home == away else home
    return (home + 1) % 4 if arrival.stream - WITHOUT == home else home


def but(streams: set[int], keys: Callable[[int], bool], backend: Callable[[int], int | None]) -> PlaceOf:
    """As `conforming`, but in these streams these keys go to `backend(key)`."""

    def place_of(arrival: Arrival) -> int | None:
        moved = arrival.stream in streams and keys(arrival.key)
        return backend(arrival.key) if moved else conforming(arrival)

    return place_of


def changing(place_of: PlaceOf = conforming, claims: Claims | None = None) -> History:
    """A history of `every_change` with these owners."""
    return history_of(every_change(claims or claimed()), place_of)


def late(history: History, position: int, by_s: float) -> History:
    """The same, but one step of the timeline took effect `by_s` seconds after it was requested."""
    steps = list(history.steps)
    steps[position] = replace(steps[position], effective_s=steps[position].asked_s + by_s)
    return replace(history, steps=tuple(steps))
