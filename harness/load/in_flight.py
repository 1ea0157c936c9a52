"""How many requests may be under way at a time, the same for every engine. Pure but for asking the operating system.

A cap does not make a closed loop of an open one: what comes beyond it is not sent later, but never, and recorded so.
"""

from __future__ import annotations

import resource

MOST_IN_FLIGHT = 10_000
"""Cap on requests under way. Arrivals beyond it are dropped and recorded as NOT_SENT: a generator with 11,000 open
connections finished 71 % of its load and measured itself."""

SPARE_DESCRIPTORS = 100


def most_in_flight() -> int:
    """The cap: `MOST_IN_FLIGHT`, or less where this process may not open so many connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_IN_FLIGHT
    return max(1, min(MOST_IN_FLIGHT, soft - SPARE_DESCRIPTORS))
