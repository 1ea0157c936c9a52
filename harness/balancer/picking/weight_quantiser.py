"""Quantises continuously changing weights to tenths with hysteresis, for the ring, where each change moves keys.

A backend's weight determines its number of points on the ring, so a change moves only its own keys; but each move costs
a cold cache. Therefore the level changes by whole tenths, and only when the weight has left its tenth by a margin, so a
weight that fluctuates around the edge of two tenths stays in one of them.
"""

from __future__ import annotations

import math

TENTHS = 10


class WeightQuantiser:
    """Levels by backend. `hysteresis`: distance beyond the edge of its tenth at which the level follows a weight.

    In units of weight, from 0 to below 0.05 (half a tenth; else ValueError). While a weight stays within an interval as
    wide as twice the hysteresis, its level changes at most once. Level 0 means exactly weight 0 and is set at once: a
    backend that is out has no points, and one with any weight keeps at least a tenth, so a newcomer is not starved by
    rounding (seen broken: envoyproxy/envoy#19526).
    """

    __slots__ = ("_hysteresis", "_tenths")

    def __init__(self, hysteresis: float = 0.02) -> None:
        if not 0 <= hysteresis < 0.5 / TENTHS:
            raise ValueError(f"hysteresis {hysteresis}: expected from 0 to below {0.5 / TENTHS}")
        self._hysteresis = hysteresis
        self._tenths: dict[str, int] = {}

    def update(self, backend: str, weight: float) -> bool:
        """Record a weight; returns whether the backend's level changed. The first weight always sets a level.

        ValueError for a weight that is negative or not finite.
        """
        if not 0 <= weight < math.inf:
            raise ValueError(f"weight {weight} of {backend}: expected 0 or more")
        held = self._tenths.get(backend, 0)
        nearest = max(1, round(TENTHS * weight)) if weight else 0
        if backend in self._tenths:
            near = abs(TENTHS * weight - held) <= 0.5 + TENTHS * self._hysteresis
            if nearest == held or (near and held and nearest):
                return False
        self._tenths[backend] = nearest
        return True

    def level(self, backend: str) -> float:
        """The backend's level, a multiple of 0.1; KeyError before its first weight."""
        return self._tenths[backend] / TENTHS

    def keep_only(self, backends: frozenset[str]) -> None:
        """Drop the state of other backends; one that returns starts afresh."""
        self._tenths = {name: tenths for name, tenths in self._tenths.items() if name in backends}
