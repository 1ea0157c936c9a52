"""Chaos fault plans: the timelines of whole-system runs, by name, and one that is drawn. Pure.

A fault plan is a function of the backends it may strike, when it begins and how long it lasts (seconds of the run).
All of it has healed at `at_s + for_s`, so that what follows shows whether the balancer recovers.
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
"""How many times as long a grey backend takes: half a second instead of 2.5 ms, which a health route doesn't show."""

FLAPS = 3
BROWN_SLOWER = 8.0
BROWN_SHARE = 0.25


def victim_of(backends: Sequence[str]) -> str:
    """The backend that a fault plan for a single one strikes: the second, neither end of the balancer's list."""
    return backends[1 % len(backends)]


def brown_half(backends: Sequence[str]) -> tuple[str, ...]:
    """The half of the fleet (rounded down, at least one) that a brown-out strikes: the first ones."""
    return tuple(backends[: max(1, len(backends) // 2)])


def node_crash(backends: Sequence[str], at_s: float, for_s: float) -> tuple[Step, ...]:
    """One backend's process is killed, and comes back with a cold cache."""
    return (Kill(victim_of(backends), at_s, for_s),)


def rolling_restart(backends: Sequence[str], at_s: float, for_s: float) -> tuple[Step, ...]:
    """Every backend restarts, one after the other; each is away for half of its turn at least, and nobody is told."""
    turn_s = for_s / len(backends)
    return tuple(Restart(name, at_s + turn * turn_s, turn_s / 2) for turn, name in enumerate(backends))


def grey_failure(backends: Sequence[str], at_s: float, for_s: float) -> tuple[Step, ...]:
    """One backend is slow but alive: it answers everything, health checks included, far too late."""
    return (Slow(victim_of(backends), at_s, SLOWER, for_s),)


def blackhole(backends: Sequence[str], at_s: float, for_s: float) -> tuple[Step, ...]:
    """Connections to one backend are accepted and then silent."""
    return (Blackhole(victim_of(backends), at_s, for_s),)


def flapping(backends: Sequence[str], at_s: float, for_s: float) -> tuple[Step, ...]:
    """The way to one backend is closed and open again, three times, too quickly to get used to either."""
    turn_s = for_s / FLAPS
    return tuple(Down(victim_of(backends), at_s + turn * turn_s, turn_s / 2) for turn in range(FLAPS))


def brown_out(backends: Sequence[str], at_s: float, for_s: float) -> tuple[Step, ...]:
    """Half of the fleet is short of power: slow, and a quarter of what it is sent it refuses with 503."""
    half = brown_half(backends)
    slow = tuple(Slow(name, at_s, BROWN_SLOWER, for_s) for name in half)
    return slow + tuple(FailingStatus(name, at_s, 503, share=BROWN_SHARE, for_s=for_s) for name in half)


def packet_misery(backends: Sequence[str], at_s: float, for_s: float) -> tuple[Step, ...]:
    """The network is bad everywhere: one way is late and jitters, one comes in slices, the others are thin.

    Nothing of it loses a byte, so that nothing need be lost.
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
    """The ways to all backends close at once, and open again at the same moment, with everybody waiting."""
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
