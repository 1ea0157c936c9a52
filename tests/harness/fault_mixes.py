"""Faults that overlap on one backend, and what that does to a history: two runs, the same for both worlds.

In each backend 0 has nothing, and backend n + 1 the n-th mix. Whoever closes the way keeps it closed until all have let
go; what lives in a process ends with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from harness.evidence.history import History, StepSeen
from harness.evidence.tables import Mask
from harness.scenario.faults import Blackhole, Down, FailingStatus, Kill, Latency, Pause, Reset, Step
from harness.scenario.model import Keys, Load, Method, Scenario, Stream
from tests.harness.fault_effects import CALM, RATE_PER_S
from tests.harness.fault_evidence import AT_S, PATIENCE_S, Seen

ENDS_S = (3.4, 6.0)
"""Of each run: a process may take seconds to come back where the machine has other work."""

LATE_S = 0.12
SOON_S = 0.05
"""What a client or a connection may still have of the time before a change."""


class Mixed:
    """What a mix shows: `outer` is its first step, `inner` the one that begins while that is in force."""

    def __init__(self, history: History, number: int) -> None:
        self.history = history
        self.number = number
        self.outer, self.inner = (step for step in history.steps if step.backend == number)
        self.keys = Seen(history, number, self.outer).sick

    def sent(self, start_s: float, end_s: float) -> Mask:
        """Requests for the keys of the backend that were sent in between, with a little distance."""
        sent_s = self.history.requests["sent_s"]
        mask: Mask = self.keys & (sent_s > start_s + SOON_S) & (sent_s < end_s - SOON_S)
        return mask

    def refused(self, start_s: float, end_s: float) -> bool:
        """Whether there was anything to refuse in between, and all was."""
        mask = self.sent(start_s, end_s)
        return bool(mask.any() and (self.history.requests["status"][mask] == 502).all())

    def well(self, start_s: float, end_s: float = math.inf, least_s: float = 0.0) -> bool:
        """Whether anything was sent in between, and all was answered, after `least_s` at the earliest."""
        mask = self.sent(start_s, end_s)
        took_s = (self.history.requests["end_s"] - self.history.requests["sent_s"])[mask]
        return bool(mask.any() and self.history.answered()[mask].all() and (took_s >= least_s).all())

    def reached(self, start_s: float, end_s: float) -> int:
        """Attempts that reached the backend in between."""
        attempts = self.history.attempts
        there = attempts["start_s"][attempts["backend"] == self.number]
        return int(np.count_nonzero((there > start_s + SOON_S) & (there < end_s)))


Shows = Callable[[Mixed], bool]


@dataclass(frozen=True)
class Mix:
    """Two steps on a backend, given its name, and whether they show."""

    steps: Callable[[str], tuple[Step, Step]]
    shows: Shows


def over_s(*steps: StepSeen) -> float:
    """When the last of them was healed."""
    return max(step.healed_s for step in steps)


def closed_until_both_let_go(seen: Mixed) -> bool:
    """Nobody gets in from the first to the last moment."""
    end_s = over_s(seen.outer, seen.inner)
    return (
        seen.refused(seen.outer.effective_s, end_s)
        and not seen.reached(seen.outer.effective_s, end_s)
        and seen.well(end_s + SOON_S)
    )


def silent_around_a_closed_way(seen: Mixed) -> bool:
    """Refused in the middle, and nothing arrives before or after, until the silence is over."""
    return (
        seen.refused(seen.inner.effective_s, seen.inner.healed_s)
        and not seen.reached(seen.outer.effective_s, seen.outer.healed_s)
        and seen.well(seen.outer.healed_s + SOON_S)
    )


def late_around_a_closed_way(seen: Mixed) -> bool:
    """Refused in the middle, late before and after."""
    outer, inner = seen.outer, seen.inner
    return (
        seen.well(outer.effective_s, inner.asked_s - LATE_S, LATE_S * 0.99)
        and seen.refused(inner.effective_s, inner.healed_s)
        and seen.well(inner.healed_s + SOON_S, outer.healed_s - LATE_S, LATE_S * 0.99)
        and seen.well(outer.healed_s)
    )


def over_with_its_process(seen: Mixed) -> bool:
    """What was in force says that the kill ended it, and after that all is well."""
    ended_s = seen.outer.healed_s
    return seen.inner.asked_s <= ended_s <= seen.inner.effective_s + 1e-9 and seen.well(seen.inner.healed_s + SOON_S)


def struck_until_its_process_ended(seen: Mixed) -> bool:
    """And it has struck some requests, which was counted before."""
    mask = seen.sent(seen.outer.effective_s, seen.inner.asked_s)
    statuses = set(seen.history.requests["status"][mask].tolist())
    return over_with_its_process(seen) and statuses == {418} and (seen.outer.hits or 0) >= mask.sum() > 0


WAYS = {
    "reset-down": Mix(lambda name: (Reset(name, AT_S, 1.2), Down(name, 0.8, 0.3)), closed_until_both_let_go),
    "blackhole-down": Mix(lambda name: (Blackhole(name, AT_S, 1.2), Down(name, 0.8, 0.3)), silent_around_a_closed_way),
    "latency-down": Mix(
        lambda name: (Latency(name, AT_S, LATE_S, 1.9), Down(name, 1.2, 0.3)), late_around_a_closed_way
    ),
}
PROCESSES = {
    "down-kill": Mix(lambda name: (Down(name, AT_S, 1.2), Kill(name, 0.8, 0.2)), closed_until_both_let_go),
    "status-kill": Mix(
        lambda name: (FailingStatus(name, AT_S, 418, for_s=1.2), Kill(name, 1.0, 0.2)), struck_until_its_process_ended
    ),
    "pause-kill": Mix(lambda name: (Pause(name, AT_S, 2.0), Kill(name, 0.9, 0.2)), over_with_its_process),
}
RUNS = (WAYS, PROCESSES)
CASES = [(run, name) for run in range(len(RUNS)) for name in RUNS[run]]


def scenario(run: int) -> Scenario:
    """All mixes of a run under steady traffic with eight keys for each backend."""
    backends = len(RUNS[run]) + 1
    rate_per_s = RATE_PER_S * backends
    traffic = Stream(
        name="traffic",
        start_s=0.0,
        rate_per_s=rate_per_s,
        requests=int(rate_per_s * ENDS_S[run]),
        keys=Keys(8 * backends, "sweep"),
        methods=(Method.POST, Method.GET),
        timeout_s=PATIENCE_S,
    )
    steps = [step for number, mix in enumerate(RUNS[run].values(), 1) for step in mix.steps(f"gpu-{number}")]
    return Scenario("mixes", backends, Load((traffic,)), timeline=tuple(steps), off=CALM)


def lacking(history: History, run: int, name: str) -> list[str]:
    """What should be seen of a mix and is not; empty if all is as it should be."""
    number = [*RUNS[run]].index(name) + 1
    steps = [step for step in history.steps if step.backend == number]
    if len(steps) != 2 or not all(step.took_effect for step in steps):
        return [f"not both took effect: {steps}"]
    mixed = Mixed(history, number)
    lacks = [] if RUNS[run][name].shows(mixed) else [f"{name} does not show: {steps} {history.requests[mixed.keys]}"]
    if not history.answered()[history.first_backends() == 0].all():
        lacks.append("the sound backend suffered")
    return lacks
