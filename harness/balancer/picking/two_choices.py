"""The less loaded of two backends drawn at random.

Drawn without replacement, ties broken at random, so the single most loaded of several backends is never picked.
Source: Mitzenmacher 2001, "The power of two choices in randomized load balancing".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random


def less_loaded_of_two(backends: Sequence[str], load: Callable[[str], float], generator: Random) -> str | None:
    """Pick from `backends`; `load` returns a backend's pending work (any unit). None if there is no backend."""
    if not backends:
        return None
    if len(backends) == 1:
        return backends[0]
    first, second = generator.sample(range(len(backends)), 2)
    # The sample's order is random, so keeping the first on a tie breaks the tie at random.
    return backends[second] if load(backends[second]) < load(backends[first]) else backends[first]
