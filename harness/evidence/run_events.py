"""One stream of events for everything that follows runs: the pytest session, `chaos`, `up`, `load` and reports. Pure.

A producer calls a listener with each event as it happens; the live world does so from several threads. In the
simulator, whose runs take milliseconds, the events of a run are read from its history. `at_s` is seconds of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.evidence.history import History
from harness.scenario.ledger import LedgerEntry
from harness.scenario.model import Scenario, World


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A run begins. `time_scale` 2: a repetition with all durations doubled."""

    scenario: Scenario
    world: World
    target: str
    seed: int
    time_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class PhaseBegan:
    """A named phase of the scenario begins."""

    at_s: float
    phase: str


@dataclass(frozen=True, slots=True)
class StepEffective:
    """A fault or membership change is in force; `effective` false: no probe observed it. `kind` is a class name."""

    at_s: float
    kind: str
    backend: str
    effective: bool = True
    hits: int | None = None


@dataclass(frozen=True, slots=True)
class StepHealed:
    """A fault is over."""

    at_s: float
    kind: str
    backend: str


@dataclass(frozen=True, slots=True)
class LoadProgressed:
    """Figures of a load under way, as its engine reports them; None between two reports."""

    at_s: float
    figures: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class RunEnded:
    """A run is over; `history` is the digest of its history, "" if it failed."""

    history: str


@dataclass(frozen=True, slots=True)
class Judged:
    """A property was judged."""

    property: str
    world: World
    outcome: str
    reason: str


RunEvent = RunStarted | PhaseBegan | StepEffective | StepHealed | LoadProgressed | RunEnded | Judged
Listener = Callable[[RunEvent], None]


def ignore(event: RunEvent) -> None:
    """The listener that does nothing."""


def step_observer(listener: Listener, clock_offset_s: Callable[[], float]) -> Callable[[LedgerEntry], None]:
    """An observer of a ledger that tells `listener` of steps in force and healed.

    `clock_offset_s` is subtracted from the ledger's times: second 0 of the run on the ledger's clock.
    """

    def observe(entry: LedgerEntry) -> None:
        kind, backend = type(entry.step).__name__, entry.step.backend
        if not math.isnan(entry.healed_s):
            listener(StepHealed(entry.healed_s - clock_offset_s(), kind, backend))
            return
        effective = not math.isnan(entry.effective_s)
        at_s = entry.effective_s if effective else entry.asked_s
        listener(StepEffective(at_s - clock_offset_s(), kind, backend, effective))

    return observe


def events_of(history: History) -> list[PhaseBegan | StepEffective | StepHealed]:
    """The events of a finished run, in order of time.

    >>> from harness.evidence.example import example_history
    >>> events_of(example_history())
    [StepEffective(at_s=0.51, kind='Kill', backend='gpu-1', effective=True, hits=None)]
    """
    return sorted(_events_of(history), key=lambda event: event.at_s)


def _events_of(history: History) -> Iterator[PhaseBegan | StepEffective | StepHealed]:
    for phase in history.scenario.phases:
        yield PhaseBegan(phase.start_s, phase.name)
    for step in history.steps:
        backend = history.scenario.backend_ids[step.backend]
        at_s = step.effective_s if step.took_effect else step.asked_s
        yield StepEffective(at_s, step.kind, backend, step.took_effect, step.hits)
        if step.took_effect and not math.isnan(step.healed_s):
            yield StepHealed(step.healed_s, step.kind, backend)
