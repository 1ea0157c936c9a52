"""Named chaos fault plans: the timelines of whole-system runs. Pure.

A fault plan is a function of the backends it may affect, its start and its duration (seconds of the run). All faults
are healed at `at_s + for_s`; the rest of the run shows whether the balancer recovers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from harness.scenario.faults import (
    Bandwidth,
    Blackhole,
    Down,
    FailingStatus,
    Kill,
    Latency,
    Restart,
    Slicer,
    Slow,
    Step,
)

FaultPlan = Callable[[Sequence[str], float, float], tuple[Step, ...]]

SLOWER = 200.0
"""Slowdown of a grey backend: half a second instead of 2.5 ms, invisible to health checks."""

FLAPS = 3
"""Outages of a flapping link."""

BROWN_SLOWER = 8.0
"""Slowdown of a backend in a brown-out."""

BROWN_SHARE = 0.25
"""Share of requests that a backend in a brown-out answers with 503."""


def victim_of(backends: Sequence[str]) -> str:
    """The backend affected by a single-backend fault plan: the second, at neither end of the balancer's list."""
    return backends[1 % len(backends)]


def brown_out_backends(backends: Sequence[str]) -> tuple[str, ...]:
    """The backends affected by a brown-out: the first half of the fleet, rounded down, at least one."""
    return tuple(backends[: max(1, len(backends) // 2)])


def node_crash(backends: Sequence[str], at_s: float, for_s: float) -> tuple[Step, ...]:
    """One backend's process is killed and restarts with a cold cache."""
    return (Kill(victim_of(backends), at_s, for_s),)


def rolling_restart(backends: Sequence[str], at_s: float, for_s: float) -> tuple[Step, ...]:
    """All backends restart one after the other, unannounced; each is down for at least half of its time slot."""
    slot_s = for_s / len(backends)
    return tuple(Restart(name, at_s + slot * slot_s, slot_s / 2) for slot, name in enumerate(backends))


def grey_failure(backends: Sequence[str], at_s: float, for_s: float) -> tuple[Step, ...]:
    """One backend is alive but slow: it answers everything, health checks included, far too late."""
    return (Slow(victim_of(backends), at_s, SLOWER, for_s),)


def blackhole(backends: Sequence[str], at_s: float, for_s: float) -> tuple[Step, ...]:
    """Connections to one backend are accepted, then no data passes."""
    return (Blackhole(victim_of(backends), at_s, for_s),)


def flapping(backends: Sequence[str], at_s: float, for_s: float) -> tuple[Step, ...]:
    """The link to one backend closes and opens again three times, too fast for a balancer to adapt."""
    period_s = for_s / FLAPS
    return tuple(Down(victim_of(backends), at_s + flap * period_s, period_s / 2) for flap in range(FLAPS))


def brown_out(backends: Sequence[str], at_s: float, for_s: float) -> tuple[Step, ...]:
    """Half of the fleet is degraded: slow, and a quarter of its requests get 503."""
    affected = brown_out_backends(backends)
    slow = tuple(Slow(name, at_s, BROWN_SLOWER, for_s) for name in affected)
    return slow + tuple(FailingStatus(name, at_s, 503, share=BROWN_SHARE, for_s=for_s) for name in affected)


def packet_misery(backends: Sequence[str], at_s: float, for_s: float) -> tuple[Step, ...]:
    """Every link is bad, in turn: latency with jitter, small slices, low bandwidth.

    No fault loses a byte, so no request need be lost.
    """
    steps: list[Step] = []
    for number, name in enumerate(backends):
        match number % 3:
            case 0:
                steps.append(Latency(name, at_s, 0.04, for_s, jitter_s=0.03))
            case 1:
                steps.append(Slicer(name, at_s, slice_bytes=64, gap_s=0.002, for_s=for_s))
            case _:
                steps.append(Bandwidth(name, at_s, kb_per_s=20.0, for_s=for_s))
    return tuple(steps)


def thundering_return(backends: Sequence[str], at_s: float, for_s: float) -> tuple[Step, ...]:
    """The links to all backends close at once and open again at the same moment, with all clients waiting."""
    return tuple(Down(name, at_s, for_s) for name in backends)


FAULT_PLANS: Mapping[str, FaultPlan] = MappingProxyType(
    {
        "node-crash": node_crash,
        "rolling-restart": rolling_restart,
        "grey-failure": grey_failure,
        "blackhole": blackhole,
        "flapping": flapping,
        "brown-out": brown_out,
        "packet-misery": packet_misery,
        "thundering-return": thundering_return,
    }
)
"""All named fault plans."""
