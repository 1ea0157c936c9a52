"""What each kind of step does to a history, as one table for both worlds.

Kinds that go together share a run (a `Trial`): backend 0 has nothing, backend n + 1 the n-th of them. `lacking` says
what a history of that run lacks. Both tests run the reference with every mechanism off that could hide a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.claims.features import HealthChecks
from harness.evidence.history import History
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
    Garbage,
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
    Truncated,
    Weigh,
    WrongLength,
    Zombie,
)
from harness.scenario.model import Ending, Keys, Load, Method, ModelServer, Scenario, Stream
from harness.targets.base import Target
from harness.targets.reference import ReferenceTarget
from tests.harness.fault_evidence import (
    AT_S,
    DRIP_S,
    END_S,
    FOR_S,
    JITTER_S,
    LATE_S,
    LATENCY_S,
    PATIENCE_S,
    SLICED_S,
    SLOWER,
    Seen,
    Shows,
    back_cold,
    broken,
    closed_in_silence,
    cut,
    cut_late,
    dead,
    evicted,
    hanging,
    heavier,
    jittery,
    joined,
    late,
    left,
    overflowing,
    paused,
    refused,
    senseless,
    shorter,
    silent,
    slower,
    status,
    told,
)

RATE_PER_S = 25.0
"""For each backend, on average."""

CALM = ReferenceTarget().switches


@dataclass(frozen=True)
class Effect:
    """The steps of a kind on a backend, the kind itself last, and what they show.

    `heals`: all is well after it. `visible`: a history without it would show something else.
    """

    kind: type[Step]
    steps: Callable[[str], tuple[Step, ...]]
    shows: Shows
    heals: bool = True
    visible: bool = True


@dataclass(frozen=True)
class Trial:
    """Effects that share a run."""

    name: str
    effects: tuple[Effect, ...]
    off: frozenset[str] = CALM
    server: ModelServer = field(default_factory=ModelServer)
    target: Target = field(default_factory=ReferenceTarget)
    spare: int = 0
    """How many of its backends, counted from the last, are no members at first."""

    def scenario(self) -> Scenario:
        """All steps of all effects under steady traffic with eight keys for each backend."""
        backends = len(self.effects) + 1
        traffic = Stream(
            name="traffic",
            start_s=0.0,
            rate_per_s=RATE_PER_S * backends,
            requests=int(RATE_PER_S * backends * END_S),
            keys=Keys(8 * backends, "sweep"),
            methods=(Method.POST, Method.GET),
            timeout_s=PATIENCE_S,
        )
        steps = [step for number, effect in enumerate(self.effects, 1) for step in effect.steps(f"gpu-{number}")]
        return Scenario(
            name=f"effects of {self.name}",
            backends=backends - self.spare,
            spare=self.spare,
            load=Load((traffic,)),
            server=self.server,
            timeline=tuple(sorted(steps, key=lambda step: step.at_s)),
            off=self.off,
        )

    def lacking(self, history: History, effect: Effect) -> list[str]:
        """What should be seen of `effect` and is not; empty if all is as it should be."""
        number = self.effects.index(effect) + 1
        name = effect.kind.__name__
        steps = [step for step in history.steps if (step.backend, step.kind) == (number, name)]
        if len(steps) != 1 or not steps[0].took_effect:
            return [f"{name} was seen {len(steps)} times, or took no effect: {steps}"]
        seen = Seen(history, number, steps[0])
        lacks: list[str] = []
        if not effect.shows(seen):
            lacks.append(f"{name} does not show in {history.requests[seen.during]}")
        if not history.answered()[seen.before].all():
            lacks.append(f"{name} shows before it began")
        if effect.heals and np.isnan(seen.step.healed_s):
            lacks.append(f"{name} is not healed")
        if effect.heals and not (seen.after.sum() >= 5 and seen.healthy(seen.after)):
            lacks.append(f"{name} does not heal: {history.requests[seen.after]}")
        if not seen.healthy(history.first_backends() == 0):
            lacks.append("the sound backend suffered")
        return lacks


# --- the table --------------------------------------------------------------------------------------------


def one(
    kind: type[Any], shows: Shows, *arguments: Any, heals: bool = True, visible: bool = True, **settings: Any
) -> Effect:
    """An effect of a single step; it lasts `FOR_S` if it heals."""
    length = {"for_s": FOR_S} if heals else {}
    return Effect(kind, lambda name: (kind(name, AT_S, *arguments, **settings, **length),), shows, heals, visible)


SLOW_CLOSE = Effect(
    SlowClose, lambda name: (CutOff(name, AT_S, for_s=FOR_S), SlowClose(name, AT_S, LATE_S, FOR_S)), cut_late
)
CACHING = ModelServer(memory_mb=8_000, weights_mb=100, load_s=0.002)
CHECKED = CALM - {HealthChecks.table}


class AsksForLife(ReferenceTarget):
    """The reference where health checks ask for liveness, which says nothing of readiness."""

    health_path = "/ping"


TRIALS: tuple[Trial, ...] = (
    Trial(
        "processes",
        (one(Kill, back_cold), one(Pause, paused), one(Restart, back_cold)),
        server=CACHING,
    ),
    Trial(
        "ways",
        (
            one(Down, refused),
            one(Latency, jittery, LATENCY_S, jitter_s=JITTER_S),
            one(Blackhole, silent),
            one(Reset, refused),
            one(Bandwidth, late(LATE_S), 2.0),
            SLOW_CLOSE,
            one(Timeout, closed_in_silence, LATE_S),
            one(Slicer, late(SLICED_S), 64, 0.02),
            one(LimitData, broken, 300),
        ),
    ),
    Trial(
        "requests",
        (
            one(FailingStatus, status(418, Ending.ANSWERED), 418),
            one(OverCapacity, overflowing, 5.0),
            one(QueueFull, status(503, Ending.REFUSED)),
            one(OutOfMemory, status(500, Ending.REFUSED)),
            one(Slow, slower, SLOWER),
            one(Hang, hanging),
            one(Zombie, hanging),
        ),
    ),
    Trial(
        "answers",
        (
            one(CutOff, cut),
            one(Stall, hanging),
            one(StreamError, status(500, Ending.ANSWERED)),
            one(Truncated, shorter),
            one(Drip, late(DRIP_S), 0.05),
            one(Garbage, senseless),
            one(WrongLength, broken, 20),
        ),
    ),
    Trial(
        "reports",
        (
            one(NotReady, told(503)),
            one(BadMetrics, told(200), "missing", visible=False),
            one(OutOfMemory, dead, dead=True),
        ),
        off=CHECKED,
    ),
    Trial(
        "liveness",
        (one(NotAlive, told(503)), one(NotReady, told(200), visible=False)),
        off=CHECKED,
        target=AsksForLife(),
    ),
    Trial("memory", (one(Evict, evicted, heals=False),), server=CACHING),
    Trial(
        "membership",
        (
            one(Leave, left, heals=False),
            one(Drain, left, heals=False),
            one(Weigh, heavier, 4, heals=False),
            one(Join, joined, heals=False),
        ),
        spare=1,
    ),
)

CASES = [(trial, effect) for trial in TRIALS for effect in trial.effects]
IDS = [f"{trial.name}-{effect.kind.__name__}" for trial, effect in CASES]


def sample(kind: type[Any]) -> Any:
    """A step of this kind, on backend gpu-0, with the settings it has in the table."""
    return next(effect.steps("gpu-0")[-1] for _, effect in CASES if effect.kind is kind)
