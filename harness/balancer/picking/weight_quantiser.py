"""A weight that changes all the time, in tenths for the ring, where each change moves keys.

On the ring a backend's weight decides how many points it has, so a change moves its own keys and no others; but each
move costs a cold cache. So it changes by whole tenths, and only once the weight has left its tenth by a margin: one
that trembles at the edge of two tenths stays in one of them.
"""

from __future__ import annotations

import math

TENTHS = 10


class WeightQuantiser:
    """Levels by backend. `hysteresis`: how far beyond the edge of its tenth a weight must be before the level follows.

    In units of weight, from 0 to below 0.05 (half a tenth; ValueError otherwise). While a weight stays within any
    interval as wide as twice the hysteresis, its level changes at most once. Level 0 means weight 0 exactly, and at
    once: what is known to be out has no points, and what has any weight keeps at least a tenth, so that a newcomer is
    not starved by rounding (seen broken: envoyproxy/envoy#19526).
    """

    __slots__ = ("_hysteresis", "_tenths")

    def __init__(self, hysteresis: float = 0.02) -> None:
        if not 0 <= hysteresis < 0.5 / TENTHS:
            raise ValueError(f"hysteresis {hysteresis}: expected from 0 to below {0.5 / TENTHS}")
        self._hysteresis = hysteresis
        self._tenths: dict[str, int] = {}

    def update(self, backend: str, weight: float) -> bool:
        """Take note of a weight; whether the backend's level changed by it. The first weight always sets one.

        ValueError for a weight that is negative or no number.
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
        """Forget the others; one that returns starts anew."""
        self._tenths = {name: tenths for name, tenths in self._tenths.items() if name in backends}
