"""Consistent hashing with bounded loads: no backend takes a request that would put it over ceil(c m / n).

m counts the requests in flight over the n backends, the new one included, so with c >= 1 there is always room
somewhere. Who is full passes the request on to the next in ring order, and is home again by itself as soon as it has
room: nothing is remembered. The cap is looked at before a backend is chosen and not after (seen broken:
haproxy/haproxy#2893).

Requests do not move once they run. So what holds at every instant is the bound at the time a request was placed; when
others end, a backend may be above the bound of now, and then gets nothing until it is below.
Source: Mirrokni, Thorup, Zadimoghaddam 2016, "Consistent hashing with bounded loads".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from harness.balancer.health.windows import exact_ratio


class BoundedLoads:
    """The bound for a `factor` (c, 1 or more). ValueError for another one."""

    def __init__(self, factor: float) -> None:
        if not (math.isfinite(factor) and factor >= 1):
            raise ValueError(f"factor {factor}: expected 1 or more")
        # The decimal number that was written: in binary, 1.1 times 10 is more than 11.
        self._numerator, self._denominator = exact_ratio(factor)

    def cap(self, total: int, backends: int) -> int:
        """Most requests that one of `backends` may have in flight, where all have `total` with the new one."""
        if backends < 1:
            raise ValueError(f"{backends} backends: expected 1 or more")
        return -(-total * self._numerator // (backends * self._denominator))

    def choose(
        self, candidates: Iterable[str], in_flight: Callable[[str], int], total: int, backends: int
    ) -> str | None:
        """The first of `candidates` (in ring order) with room for one more; None if none of them has.

        `total` is what all `backends` have in flight, the new request included. Never None if the candidates are all
        of the backends.
        """
        cap = self.cap(total, backends) if backends else 0
        for backend in candidates:
            if in_flight(backend) < cap:
                return backend
        return None
