"""Scenarios that several families share, so that their properties share runs too. No property is declared here."""

from __future__ import annotations

import numpy as np

from harness.claims.features import (
    Affinity,
    BoundedLoad,
    Breaker,
    Claims,
    Ejection,
    HealthChecks,
    HealthShare,
    Hedge,
    Retry,
)
from harness.evidence.history import UNSEEN, History
from harness.scenario.faults import Join, Leave
from harness.scenario.model import Keys, Load, Scenario, Stream

CALM = (BoundedLoad, Breaker, Ejection, HealthChecks, HealthShare, Hedge, Retry)
"""Features that could move a key or add an attempt for reasons of their own; off where no fault calls for them."""

KEY_MOVERS = (BoundedLoad, HealthShare)
"""Features that move keys as they should: where one of them stays on, nothing can be said of the mapping alone."""

DEFAULT_CARRIER = "header:x-model-id"


def key_carrier(claims: Claims) -> str:
    """Where the affinity key travels for this target."""
    return claims[Affinity].key if Affinity in claims else DEFAULT_CARRIER


ENOUGH = 0.5
"""Share of a stream's requests that must have reached a backend before the rest may speak for all of them."""


def sliver(history: History, stream: str) -> str:
    """Why the attempts of a stream say too little, as for `undecided`; empty if enough of them, or none, were seen."""
    mine = history.in_stream(stream)
    asked = int(np.count_nonzero(mine))
    reached = int(np.count_nonzero(mine & (history.first_attempts() != UNSEEN)))
    return f"only {reached} of {asked} requests reached a backend" if 0 < reached < ENOUGH * asked else ""


def undisturbed(history: History, claims: Claims) -> bool:
    """Whether none of CALM was on, so that no delay can have moved a key."""
    return all(cls not in claims or cls.table in history.scenario.off for cls in CALM)


def disturbing_intervals_s(claims: Claims) -> tuple[float, ...]:
    """Intervals of those of CALM that stay on: a noisy machine can make them move keys.

    `claims` are those that are on, as a scenario is given them.
    """
    intervals_s: list[float] = []
    if HealthChecks in claims:
        intervals_s += [claims[HealthChecks].interval_s, claims[HealthChecks].timeout_s]
    if Ejection in claims:
        intervals_s.append(claims[Ejection].open_s)
    if Breaker in claims:
        intervals_s.append(claims[Breaker].open_s)
    return tuple(intervals_s)


def can_get(claims: Claims) -> bool:
    """Whether a GET may carry the key: the target passes any path, and the key needs no body."""
    carrier = key_carrier(claims)
    in_body = carrier.startswith("prompt-prefix:") or (carrier.startswith("json:") and carrier != "json:model")
    return claims.protocol == "http" and not in_body


def steady(claims: Claims) -> Scenario:
    """A healthy fleet under Poisson traffic: 250 keys, four requests each, about five in flight at a time."""
    traffic = Stream(
        name="traffic",
        start_s=0.1,
        rate_per_s=800.0,
        requests=1000,
        keys=Keys(250, "sweep"),
        arrivals="poisson",
        output_tokens=16,
    )
    return Scenario(
        name="steady",
        backends=claims.fleet(4),
        load=Load((traffic,), key_carrier(claims)),
        intervals_s=disturbing_intervals_s(claims),
    )


LEAVE_KEYS = 1000
SWEEP_RATE_PER_S = 800.0
SETTLE_S = 0.8
"""From one sweep to the next, with a change a quarter of the way in: the rest is for a reload to be through."""


def leave_and_return(claims: Claims) -> Scenario:
    """Every key once, then a backend leaves; every key once, then it returns; every key once.

    The one that leaves is the first of the list, where an order-dependent mapping shows most (HAProxy's default ids:
    .114 moved on removing the last, .996 on removing the first); jump hashing can only lose its last bucket.
    """
    claims.need_membership()
    backends = claims.fleet(4, at_least=3)
    leaver = f"gpu-{backends - 1}" if claims[Affinity].algorithm == "jump" else "gpu-0"
    sweep_s = LEAVE_KEYS / SWEEP_RATE_PER_S
    starts_s = [0.1 + turn * (sweep_s + SETTLE_S) for turn in range(3)]
    streams = tuple(
        Stream(
            name=name,
            start_s=start_s,
            rate_per_s=SWEEP_RATE_PER_S,
            requests=LEAVE_KEYS,
            keys=Keys(LEAVE_KEYS, "sweep"),
        )
        for name, start_s in zip(("before", "after", "restored"), starts_s, strict=True)
    )
    changes = (
        Leave(leaver, starts_s[0] + sweep_s + SETTLE_S / 4),
        Join(leaver, starts_s[1] + sweep_s + SETTLE_S / 4),
    )
    return Scenario(
        name="leave-and-return",
        backends=backends,
        load=Load(streams, key_carrier(claims)),
        timeline=changes,
        intervals_s=disturbing_intervals_s(claims),
    )
