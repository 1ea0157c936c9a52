"""Consistent hashing with bounded loads: no backend takes a request that would put it over ceil(c m / n).

m counts the requests in flight over the n backends, including the new one, so with c >= 1 some backend always has room.
A full backend passes the request on to the next in ring order and receives its keys again once it has room; no state is
kept. The cap is checked before a backend is chosen, not after (seen broken: haproxy/haproxy#2893).

Requests do not move once they run, so the bound holds as of the time a request was placed. When other requests end, a
backend may exceed the current bound, and then receives nothing until it is below.
Source: Mirrokni, Thorup, Zadimoghaddam 2016, "Consistent hashing with bounded loads".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from harness.balancer.health.windows import exact_ratio


class BoundedLoads:
    """The bound for a `factor` (c, 1 or more; else ValueError)."""

    def __init__(self, factor: float) -> None:
        if not (math.isfinite(factor) and factor >= 1):
            raise ValueError(f"factor {factor}: expected 1 or more")
        # Exact for the decimal number: in binary floating point, 1.1 times 10 is more than 11.
        self._numerator, self._denominator = exact_ratio(factor)

    def cap(self, total: int, backends: int) -> int:
        """Most requests in flight allowed at one of `backends` if all have `total`, including the new one."""
        if backends < 1:
            raise ValueError(f"{backends} backends: expected 1 or more")
        return -(-total * self._numerator // (backends * self._denominator))

    def choose(
        self, candidates: Iterable[str], in_flight: Callable[[str], int], total: int, backends: int
    ) -> str | None:
        """The first of `candidates` (in ring order) with room for one more request; None if none has.

        `total`: requests in flight at all `backends`, including the new one. Never None if all backends are candidates.
        """
        cap = self.cap(total, backends) if backends else 0
        for backend in candidates:
            if in_flight(backend) < cap:
                return backend
        return None
