"""The scenario in which every backend joins or leaves once; the membership family shares it. Declares no property."""

from __future__ import annotations

from harness.claims.features import Claims, HealthChecks
from harness.scenario.faults import Join, Leave, Membership
from harness.scenario.model import Keys, Load, Scenario, Stream
from suites.scenarios import disturbing_intervals_s, key_carrier

KEYS = 300
SWEEP_RATE_PER_S = 600.0
START_S = 0.1

CHANGE_S = 0.1
"""From the end of a sweep to the membership change after it; all its requests have been answered by then."""

PAUSE_S = 1.0
"""Pause between two sweeps: time for one or two changes and for a reload to complete."""

SHORT_S = 0.2
"""Margin added to the time that claimed health checks take to admit a backend."""

BACKGROUND_PER_S = 50.0
"""Rate of the requests that continue throughout, so that some are in flight during each change."""


def every_change(claims: Claims) -> Scenario:
    """Sweep all keys before any change, after a newcomer joins, and while each other backend is away in turn.

    Each leave is paired with the return of the backend that left before it; the newcomer leaves together with the
    first. No sweep runs on the full fleet in between, because a backend that has not regained its keys shows in the
    next sweep. Sweeps have 300 keys at 600/s, next to 50/s of background traffic.
    """
    claims.need_membership()
    backends = claims.fleet(5, at_least=4) - 1
    newcomer = f"gpu-{backends}"
    pause_s = PAUSE_S
    if HealthChecks in claims:
        checks = claims[HealthChecks]
        pause_s = max(pause_s, CHANGE_S + SHORT_S + checks.healthy * checks.interval_s)
    names = ["before", "joined", *(without(number) for number in range(backends))]
    sweep_s = KEYS / SWEEP_RATE_PER_S
    starts_s = [START_S + position * (sweep_s + pause_s) for position in range(len(names))]
    sweeps = [
        Stream(name, start_s, SWEEP_RATE_PER_S, KEYS, Keys(KEYS, "sweep"))
        for name, start_s in zip(names, starts_s, strict=True)
    ]
    end_s = starts_s[-1] + sweep_s
    background = Stream(
        "background",
        START_S,
        BACKGROUND_PER_S,
        int(BACKGROUND_PER_S * (end_s - START_S)),
        Keys(KEYS, "uniform"),
        arrivals="poisson",
    )
    changes_s = [start_s + sweep_s + CHANGE_S for start_s in starts_s]
    timeline: list[Membership] = [Join(newcomer, changes_s[0])]
    for number in range(backends):
        at_s = changes_s[number + 1]
        timeline.append(Join(f"gpu-{number - 1}", at_s) if number else Leave(newcomer, at_s))
        timeline.append(Leave(f"gpu-{number}", at_s))
    return Scenario(
        name="every-change",
        backends=backends,
        spare=1,
        load=Load((*sweeps, background), key_carrier(claims)),
        timeline=tuple(timeline),
        intervals_s=disturbing_intervals_s(claims),
    )


def without(number: int) -> str:
    """Name of the sweep that runs while backend `number` is away."""
    return f"without-gpu-{number}"
