"""The seeded random fault plan: some kinds of fault off, the rest with wild weights. Pure.

Swarm testing (Groce, Zhang, Eide, Chen, Regehr, ISSTA 2012): a test that leaves some features out reaches states that
one with a little of everything never does, because features get in each other's way.
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

PROCESS, MEMBER, WAY, REQUEST = "process", "member", "way", "request"
"""What a kind strikes. A process or its membership bears nothing else beside it, the others bear one of each."""


def _killed(random: Random, name: str, at_s: float, for_s: float) -> tuple[Step, ...]:
    return (Kill(name, at_s, for_s),)


def _status(random: Random, name: str, at_s: float, for_s: float) -> tuple[Step, ...]:
    share = random.choice((None, 0.1, 0.3, 0.6))
    return (FailingStatus(name, at_s, random.choice((429, 500, 502, 503, 504)), share=share, for_s=for_s),)


def _late(random: Random, name: str, at_s: float, for_s: float) -> tuple[Step, ...]:
    latency_s = _wild(random, 0.01, 0.5)
    return (Latency(name, at_s, latency_s, for_s, jitter_s=round(latency_s * random.choice((0.0, 0.5)), 3)),)


KINDS: Mapping[str, tuple[str, Draw]] = MappingProxyType(
    {
        "kill": (PROCESS, _killed),
        "pause": (PROCESS, lambda random, name, at_s, for_s: (Pause(name, at_s, for_s),)),
        "restart": (PROCESS, lambda random, name, at_s, for_s: (Restart(name, at_s, for_s),)),
        "down": (WAY, lambda random, name, at_s, for_s: (Down(name, at_s, for_s),)),
        "latency": (WAY, _late),
        "blackhole": (WAY, lambda random, name, at_s, for_s: (Blackhole(name, at_s, for_s),)),
        "reset": (WAY, lambda random, name, at_s, for_s: (Reset(name, at_s, for_s),)),
        "bandwidth": (WAY, lambda random, name, at_s, for_s: (Bandwidth(name, at_s, _wild(random, 2, 100), for_s),)),
        "slow-close": (WAY, lambda random, name, at_s, for_s: (SlowClose(name, at_s, _wild(random, 0.05, 1), for_s),)),
        "timeout": (WAY, lambda random, name, at_s, for_s: (Timeout(name, at_s, _wild(random, 0.05, 1), for_s),)),
        "slicer": (WAY, lambda random, name, at_s, for_s: (Slicer(name, at_s, 32, _wild(random, 0.001, 0.01), for_s),)),
        "limit-data": (WAY, lambda random, name, at_s, for_s: (LimitData(name, at_s, 40, for_s),)),
        "failing-status": (REQUEST, _status),
        "over-capacity": (
            REQUEST,
            lambda random, name, at_s, for_s: (OverCapacity(name, at_s, _wild(random, 1, 20), for_s=for_s),),
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
        "slow": (REQUEST, lambda random, name, at_s, for_s: (Slow(name, at_s, _wild(random, 2, 400), for_s),)),
        "hang": (REQUEST, lambda random, name, at_s, for_s: (Hang(name, at_s, for_s),)),
        "zombie": (REQUEST, lambda random, name, at_s, for_s: (Zombie(name, at_s, for_s),)),
        "cut-off": (REQUEST, lambda random, name, at_s, for_s: (CutOff(name, at_s, random.choice((0, 1, 2)), for_s),)),
        "stall": (REQUEST, lambda random, name, at_s, for_s: (Stall(name, at_s, random.choice((1, 2)), for_s),)),
        "stream-error": (REQUEST, lambda random, name, at_s, for_s: (StreamError(name, at_s, for_s=for_s),)),
        "drip": (REQUEST, lambda random, name, at_s, for_s: (Drip(name, at_s, _wild(random, 0.01, 0.2), for_s),)),
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
"""All kinds that are drawn: what each strikes, and how its steps are made.

Not among them are the faults that leave an answer whole but spoil its text (garbage, truncated, wrong length): then
nobody could say whose answer it is, whatever the balancer did.
"""

MEMBERSHIP = tuple(name for name, (strikes, _) in KINDS.items() if strikes == MEMBER)
"""Kinds that change the membership; not for a balancer whose list is fixed."""

STEP_EVERY_S = 0.6
"""One stroke for so much of a fault plan, on average."""

SHORTEST_S = 0.2
LONGEST_SHARE = 0.5
"""How long a stroke lasts: from 0.2 s to half of the fault plan, with equal chances for each order of size."""

COLD_S = 1.0
"""A new process takes its time until it can be struck again."""

ON = 0.5
TRIES = 200


@dataclass(frozen=True, slots=True)
class DrawnFault:
    """One thing that happens to one backend, from its first step until it may be struck again."""

    strikes: str
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
    """Steps from `at_s` to `at_s + seconds` at the latest, in order of time; the same seed gives the same ones.

    Each kind of KINDS that is not in `without` is on with even chances (one at least), with a weight of 1/16 to 16.
    Strokes on one backend never get in each other's way, and with `spare_one` some backend is untouched at any time.
    ValueError if `without` names an unknown kind or leaves none.
    """
    unknown = sorted(set(without) - set(KINDS))
    left = [name for name in KINDS if name not in without]
    if unknown or not left:
        raise ValueError(f"unknown kinds {', '.join(unknown)}" if unknown else "no kind of fault is left to draw")
    random = Random(f"{seed}/programme")
    on = [name for name in left if random.random() < ON] or [random.choice(left)]
    weights = [2.0 ** random.uniform(-4.0, 4.0) for _ in on]
    wanted = max(1, round(seconds / STEP_EVERY_S * random.uniform(0.5, 1.5)))
    strokes: list[DrawnFault] = []
    for _ in range(TRIES):
        if len(strokes) == wanted:
            break
        stroke = _stroke(random, random.choices(on, weights)[0], random.choice(backends), at_s, seconds)
        if _fits(stroke, strokes, backends, spare_one):
            strokes.append(stroke)
    steps = [step for stroke in strokes for step in stroke.steps]
    return tuple(sorted(steps, key=lambda step: step.at_s))


def _stroke(random: Random, kind: str, backend: str, at_s: float, seconds: float) -> DrawnFault:
    longest_s = max(SHORTEST_S, LONGEST_SHARE * seconds)
    for_s = min(_wild(random, SHORTEST_S, longest_s), seconds)
    start_s = round(at_s + random.uniform(0.0, seconds - for_s), 2)
    strikes, draw = KINDS[kind]
    # Rounding may carry it past the end by a hundredth, which no fault is to outlast.
    for_s = round(min(for_s, at_s + seconds - start_s), 2)
    awake_s = start_s + for_s + (COLD_S if strikes == PROCESS else 0.0)
    return DrawnFault(strikes, backend, start_s, awake_s, draw(random, backend, start_s, for_s))


def _fits(stroke: DrawnFault, others: Sequence[DrawnFault], backends: Sequence[str], spare_one: bool) -> bool:
    """Whether a stroke gets in the way of none that was drawn before it."""
    beside = [other for other in others if other.start_s <= stroke.end_s and stroke.start_s <= other.end_s]
    alone = {PROCESS, MEMBER}
    for other in beside:
        if other.backend == stroke.backend and (
            other.strikes == stroke.strikes or {other.strikes, stroke.strikes} & alone
        ):
            return False
    touched = {other.backend for other in beside} | {stroke.backend}
    return not spare_one or len(backends) == 1 or len(touched) < len(backends)


def _wild(random: Random, low: float, high: float) -> float:
    """A number between `low` and `high`, evenly by order of size; three digits."""
    drawn = math.exp(random.uniform(math.log(low), math.log(high)))
    return float(f"{drawn:.3g}")


def _later(at_s: float, for_s: float) -> float:
    return round(at_s + for_s, 2)
