"""Seeded random fault plans: some kinds of fault are off, the others have widely varying weights. Pure.

Swarm testing (Groce, Zhang, Eide, Chen, Regehr, ISSTA 2012): tests that omit some features reach states that tests
with all features never reach, because features suppress each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_args

from harness.scenario.faults import (
    Drain,
    Draws,
    Join,
    Leave,
    ProcessFault,
    RequestFault,
    Step,
    TransportFault,
    Weigh,
    hyphenated,
)

Draw = Callable[[Draws, str, float, float], tuple[Step, ...]]

PROCESS, MEMBER, LINK, REQUEST = "process", "member", "link", "request"
"""What a kind affects. Process and membership faults exclude every other on their backend, others only their like."""


def _leave(random: Draws, name: str, at_s: float, for_s: float) -> tuple[Step, ...]:
    return (Leave(name, at_s), Join(name, _later(at_s, for_s)))


def _drain(random: Draws, name: str, at_s: float, for_s: float) -> tuple[Step, ...]:
    return (Drain(name, at_s), Join(name, _later(at_s, for_s)))


def _weigh(random: Draws, name: str, at_s: float, for_s: float) -> tuple[Step, ...]:
    return (Weigh(name, at_s, random.choice((2, 5))), Weigh(name, _later(at_s, for_s), 1))


def _fault(kind: Any) -> Draw:
    return lambda random, name, at_s, for_s: (kind.drawn(random, name, at_s, for_s),)


def _kinds() -> dict[str, tuple[str, Draw]]:
    unions = ((PROCESS, ProcessFault), (LINK, TransportFault), (REQUEST, RequestFault))
    faults = [(affects, kind) for affects, union in unions for kind in get_args(union) if hasattr(kind, "drawn")]
    return {
        **{hyphenated(kind.__name__): (affects, _fault(kind)) for affects, kind in faults},
        "leave": (MEMBER, _leave),
        "drain": (MEMBER, _drain),
        "weigh": (MEMBER, _weigh),
    }


KINDS: Mapping[str, tuple[str, Draw]] = MappingProxyType(_kinds())
"""All kinds in random plans: what each affects, and the function that makes its steps.

Faults say themselves how they are drawn. Those that corrupt the text of a complete answer (garbage, truncated, wrong
length) are not included: such an answer cannot be matched to its request, whatever the balancer does.
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
    random = Draws(f"{seed}/programme")
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


def _draw_fault(random: Draws, kind: str, backend: str, at_s: float, seconds: float) -> DrawnFault:
    longest_s = max(SHORTEST_S, LONGEST_SHARE * seconds)
    for_s = min(random.log_uniform(SHORTEST_S, longest_s), seconds)
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


def _later(at_s: float, for_s: float) -> float:
    return round(at_s + for_s, 2)
