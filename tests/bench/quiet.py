"""Gates of benchmarks: a missed one fails on a quiet machine, and is skipped, figures shown, where others used it too.

Quiet means that processes outside this test run used less than `MOST_OTHERS` of one core, steal included, while the
figures were measured. A gate that is met passes either way: noise does not make a ratio of one run better on purpose.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass

import psutil
import pytest

MOST_OTHERS = 0.1
"""Share of one core. A machine with nothing else to do shows 0 to 0.03; one busy process shows 0.5 to 1."""


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds since boot of the whole machine, and those of this process and its children, at one moment."""

    at_s: float
    machine_s: float
    own_s: float

    @classmethod
    def now(cls) -> Usage:
        """What the kernel has counted so far."""
        times = psutil.cpu_times()
        idle_s = times.idle + getattr(times, "iowait", 0.0)
        guest_s = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # already within user and nice
        own_s = sum(
            usage.ru_utime + usage.ru_stime
            for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
        )
        for child in psutil.Process().children(recursive=True):
            try:
                living = child.cpu_times()
            except psutil.NoSuchProcess:
                continue
            own_s += living.user + living.system
        return cls(time.monotonic(), sum(times) - idle_s - guest_s, own_s)


def others(before: Usage, after: Usage) -> float:
    """Share of one core that others used between the two moments."""
    wall_s = after.at_s - before.at_s
    used_s = (after.machine_s - before.machine_s) - (after.own_s - before.own_s)
    return max(0.0, used_s) / wall_s if wall_s > 0 else 0.0


class Gate:
    """Notes the machine's use from its making on."""

    def __init__(self) -> None:
        self._before = Usage.now()

    def require(self, met: bool, text: str) -> None:
        """Fail with `text` if the gate is missed on a quiet machine; skip with it where others were busy."""
        if met:
            return
        share = others(self._before, Usage.now())
        if share > MOST_OTHERS:
            pytest.skip(f"not decided, others used {share:.0%} of a core meanwhile: {text}")
        pytest.fail(text)
