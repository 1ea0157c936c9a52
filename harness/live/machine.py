"""How busy the machine is before a run, and the time scale that this calls for."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil

MEASURE_S = 0.5
LEAST_FREE_CORES = 0.75
"""With less left by other processes, live runs are slower: on two cores one busy neighbour changes no outcome."""

SLOWER = 2.0


@dataclass(frozen=True, slots=True)
class Machine:
    """The cores that this process may use, and how many of them other processes used on average."""

    cores: int
    used_cores: float

    @property
    def is_busy(self) -> bool:
        """Whether too little is left for live runs at their usual pace."""
        return self.cores - self.used_cores < LEAST_FREE_CORES

    @property
    def time_scale(self) -> float:
        """The factor for all durations of live runs.

        >>> Machine(cores=2, used_cores=1.0).time_scale, Machine(cores=2, used_cores=1.9).time_scale
        (1.0, 2.0)
        """
        return SLOWER if self.is_busy else 1.0

    def warning(self, fixed: bool = False) -> str:
        """One line on a busy machine; empty on another. `fixed`: the target's settings rule out a slower run."""
        if not self.is_busy:
            return ""
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        busy = f"This machine is busy: other processes use {self.used_cores:.1f} of {cores}."
        if fixed:
            return f"{busy} This target's settings are fixed, so live runs keep their pace; some may be inconclusive."
        return (
            f"{busy} Live runs play at {SLOWER:g}x the time scale, and some may stay inconclusive;"
            " --time-scale 1 keeps their usual pace."
        )


def observed_machine() -> Machine:
    """The machine as it is now; takes `MEASURE_S`."""
    used = psutil.cpu_percent(MEASURE_S, percpu=True)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(used))
    mine = [used[core] for core in allowed if core < len(used)]
    return Machine(len(mine), sum(mine) / 100.0)
