"""Seeded random fault plans: some kinds of fault are off, the others have widely varying weights. Pure.

Swarm testing (Groce, Zhang, Eide, Chen, Regehr, ISSTA 2012): tests that omit some features reach states that tests
with all features never reach, because features suppress each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from harness.scenario.faults import (
    BadMetrics,
    Bandwidth,
    Blackhole,
    CutOff,
    Down,
    Drain,
    Drip,
    Evict,
    FailingStatus,
    Hang,
    Join,
    Kill,
    Latency,
    Leave,
    LimitData,
    NotAlive,
    NotReady,
    OutOfMemory,
    OverCapacity,
    Pause,
    QueueFull,
    Reset,
    Restart,
    Slicer,
    Slow,
    SlowClose,
    Stall,
    Step,
    StreamError,
    Timeout,
    Weigh,
    Zombie,
)

Draw = Callable[[Random, str, float, float], tuple[Step, ...]]

PROCESS, MEMBER, LINK, REQUEST = "process", "member", "link", "request"
"""What a kind affects. Process and membership faults exclude every other on their backend, others only their like."""


def _kill(random: Random, name: str, at_s: float, for_s: float) -> tuple[Step, ...]:
    return (Kill(name, at_s, for_s),)


def _status(random: Random, name: str, at_s: float, for_s: float) -> tuple[Step, ...]:
    share = random.choice((None, 0.1, 0.3, 0.6))
    return (FailingStatus(name, at_s, random.choice((429, 500, 502, 503, 504)), share=share, for_s=for_s),)


def _latency(random: Random, name: str, at_s: float, for_s: float) -> tuple[Step, ...]:
    latency_s = _drawn(random, 0.01, 0.5)
    return (Latency(name, at_s, latency_s, for_s, jitter_s=round(latency_s * random.choice((0.0, 0.5)), 3)),)


KINDS: Mapping[str, tuple[str, Draw]] = MappingProxyType(
    {
        "kill": (PROCESS, _kill),
        "pause": (PROCESS, lambda random, name, at_s, for_s: (Pause(name, at_s, for_s),)),
        "restart": (PROCESS, lambda random, name, at_s, for_s: (Restart(name, at_s, for_s),)),
        "down": (LINK, lambda random, name, at_s, for_s: (Down(name, at_s, for_s),)),
        "latency": (LINK, _latency),
        "blackhole": (LINK, lambda random, name, at_s, for_s: (Blackhole(name, at_s, for_s),)),
        "reset": (LINK, lambda random, name, at_s, for_s: (Reset(name, at_s, for_s),)),
        "bandwidth": (
            LINK,
            lambda random, name, at_s, for_s: (Bandwidth(name, at_s, _drawn(random, 2, 100), for_s),),
        ),
        "slow-close": (
            LINK,
            lambda random, name, at_s, for_s: (SlowClose(name, at_s, _drawn(random, 0.05, 1), for_s),),
        ),
        "timeout": (
            LINK,
            lambda random, name, at_s, for_s: (Timeout(name, at_s, _drawn(random, 0.05, 1), for_s),),
        ),
        "slicer": (
            LINK,
            lambda random, name, at_s, for_s: (Slicer(name, at_s, 32, _drawn(random, 0.001, 0.01), for_s),),
        ),
        "limit-data": (LINK, lambda random, name, at_s, for_s: (LimitData(name, at_s, 40, for_s),)),
        "failing-status": (REQUEST, _status),
        "over-capacity": (
            REQUEST,
            lambda random, name, at_s, for_s: (OverCapacity(name, at_s, _drawn(random, 1, 20), for_s=for_s),),
        ),
        "queue-full": (
            REQUEST,
            lambda random, name, at_s, for_s: (QueueFull(name, at_s, share=random.choice((None, 0.3)), for_s=for_s),),
        ),
        "out-of-memory": (
            REQUEST,
            lambda random, name, at_s, for_s: (
                OutOfMemory(name, at_s, share=0.5, dead=random.random() < 0.5, for_s=for_s),
            ),
        ),
        "slow": (REQUEST, lambda random, name, at_s, for_s: (Slow(name, at_s, _drawn(random, 2, 400), for_s),)),
        "hang": (REQUEST, lambda random, name, at_s, for_s: (Hang(name, at_s, for_s),)),
        "zombie": (REQUEST, lambda random, name, at_s, for_s: (Zombie(name, at_s, for_s),)),
        "cut-off": (REQUEST, lambda random, name, at_s, for_s: (CutOff(name, at_s, random.choice((0, 1, 2)), for_s),)),
        "stall": (REQUEST, lambda random, name, at_s, for_s: (Stall(name, at_s, random.choice((1, 2)), for_s),)),
        "stream-error": (REQUEST, lambda random, name, at_s, for_s: (StreamError(name, at_s, for_s=for_s),)),
        "drip": (
            REQUEST,
            lambda random, name, at_s, for_s: (Drip(name, at_s, _drawn(random, 0.01, 0.2), for_s),),
        ),
        "not-ready": (REQUEST, lambda random, name, at_s, for_s: (NotReady(name, at_s, for_s),)),
        "not-alive": (REQUEST, lambda random, name, at_s, for_s: (NotAlive(name, at_s, for_s),)),
        "bad-metrics": (
            REQUEST,
            lambda random, name, at_s, for_s: (
                BadMetrics(name, at_s, random.choice(("garbage", "missing", "frozen")), for_s),
            ),
        ),
        "evict": (REQUEST, lambda random, name, at_s, for_s: (Evict(name, at_s),)),
        "leave": (MEMBER, lambda random, name, at_s, for_s: (Leave(name, at_s), Join(name, _later(at_s, for_s)))),
        "drain": (MEMBER, lambda random, name, at_s, for_s: (Drain(name, at_s), Join(name, _later(at_s, for_s)))),
        "weigh": (
            MEMBER,
            lambda random, name, at_s, for_s: (
                Weigh(name, at_s, random.choice((2, 5))),
                Weigh(name, _later(at_s, for_s), 1),
            ),
        ),
    }
)
"""All kinds in random plans: what each affects, and the function that makes its steps.

Faults that corrupt the text of a complete answer (garbage, truncated, wrong length) are not included: such an answer
cannot be matched to its request, whatever the balancer does.
"""

MEMBERSHIP = tuple(name for name, (affects, _) in KINDS.items() if affects == MEMBER)
"""Kinds that change the membership; not for a balancer with a fixed member list."""

STEP_EVERY_S = 0.6
"""Mean time per fault of a plan."""

SHORTEST_S = 0.2
LONGEST_SHARE = 0.5
"""Durations of faults: from 0.2 s to half of the plan, log-uniform."""

COLD_S = 1.0
"""Minimum time between a process fault and the next fault of that backend."""

ON = 0.5
"""Probability of each kind to be on."""

TRIES = 200
"""Draws of a fault, at most, per plan."""


@dataclass(frozen=True, slots=True)
class DrawnFault:
    """A fault of one backend, from its first step until the backend may get another one."""

    affects: str
    backend: str
    start_s: float
    end_s: float
    steps: tuple[Step, ...]


def random_fault_plan(
    seed: int,
    backends: Sequence[str],
    seconds: float,
    *,
    at_s: float = 0.0,
    without: Collection[str] = (),
    spare_one: bool = True,
) -> tuple[Step, ...]:
    """Steps between `at_s` and `at_s + seconds`, in order of time. The same seed gives the same steps.

    Each kind of KINDS outside `without` is on with probability 0.5 (at least one is), with a weight of 1/16 to 16.
    Faults of one backend never conflict; with `spare_one` at least one backend is without a fault at any time.
    ValueError if `without` names an unknown kind or all kinds.
    """
    unknown = sorted(set(without) - set(KINDS))
    available = [name for name in KINDS if name not in without]
    if unknown or not available:
        raise ValueError(f"unknown kinds {', '.join(unknown)}" if unknown else "no kind of fault is left to draw")
    random = Random(f"{seed}/programme")
    on = [name for name in available if random.random() < ON] or [random.choice(available)]
    weights = [2.0 ** random.uniform(-4.0, 4.0) for _ in on]
    count = max(1, round(seconds / STEP_EVERY_S * random.uniform(0.5, 1.5)))
    faults: list[DrawnFault] = []
    for _ in range(TRIES):
        if len(faults) == count:
            break
        fault = _draw_fault(random, random.choices(on, weights)[0], random.choice(backends), at_s, seconds)
        if _fits(fault, faults, backends, spare_one):
            faults.append(fault)
    steps = [step for fault in faults for step in fault.steps]
    return tuple(sorted(steps, key=lambda step: step.at_s))


def _draw_fault(random: Random, kind: str, backend: str, at_s: float, seconds: float) -> DrawnFault:
    longest_s = max(SHORTEST_S, LONGEST_SHARE * seconds)
    for_s = min(_drawn(random, SHORTEST_S, longest_s), seconds)
    start_s = round(at_s + random.uniform(0.0, seconds - for_s), 2)
    affects, draw = KINDS[kind]
    # Rounding may exceed the end of the plan by 0.01 s; no fault may outlast it.
    for_s = round(min(for_s, at_s + seconds - start_s), 2)
    end_s = start_s + for_s + (COLD_S if affects == PROCESS else 0.0)
    return DrawnFault(affects, backend, start_s, end_s, draw(random, backend, start_s, for_s))


def _fits(fault: DrawnFault, others: Sequence[DrawnFault], backends: Sequence[str], spare_one: bool) -> bool:
    """Whether a fault conflicts with none of `others`."""
    overlapping = [other for other in others if other.start_s <= fault.end_s and fault.start_s <= other.end_s]
    exclusive = {PROCESS, MEMBER}
    for other in overlapping:
        if other.backend == fault.backend and (
            other.affects == fault.affects or {other.affects, fault.affects} & exclusive
        ):
            return False
    affected = {other.backend for other in overlapping} | {fault.backend}
    return not spare_one or len(backends) == 1 or len(affected) < len(backends)


def _drawn(random: Random, low: float, high: float) -> float:
    """A log-uniform number between `low` and `high`, rounded to three significant digits."""
    drawn = math.exp(random.uniform(math.log(low), math.log(high)))
    return float(f"{drawn:.3g}")


def _later(at_s: float, for_s: float) -> float:
    return round(at_s + for_s, 2)
