"""Run-queue delay: how long the processes of a run were ready to run but waited for a core (Linux).

The kernel counts this for each thread in ``/proc/PID/task/TID/schedstat``: nanoseconds on a core, nanoseconds in a run
queue, and turns on a core (Linux documentation, Documentation/scheduler/sched-stats.rst). A balancer that is slow by
itself does not wait for a core, so none of its own slowness is excused.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil

from harness.evidence.tables import Times
from harness.live.process.ports import HOST

PROC = Path("/proc")
SAMPLE_S = 0.025
SEARCH_S = 0.5
"""New processes and threads are looked for this often."""

ORDINARY_S = 0.0001
"""A thread waits this long for a turn on an idle machine too: 15 to 70 µs, measured on two cores."""

RESTED = 0.03
"""A thread rested in a window if it neither ran nor waited for this share of it; windows are measured to some 2 %."""


@dataclass(frozen=True, slots=True)
class CoreTime:
    """What a thread has used since it began: seconds on a core, seconds in a run queue, and turns on a core."""

    ran_s: float = 0.0
    waited_s: float = 0.0
    turns: int = 0

    def __add__(self, other: CoreTime) -> CoreTime:
        return CoreTime(self.ran_s + other.ran_s, self.waited_s + other.waited_s, self.turns + other.turns)

    def __sub__(self, other: CoreTime) -> CoreTime:
        return CoreTime(self.ran_s - other.ran_s, self.waited_s - other.waited_s, self.turns - other.turns)


@dataclass(frozen=True, slots=True)
class CoreWait:
    """By how much waiting for a core may have delayed what the processes did in [start_s, end_s], by their name."""

    start_s: float
    end_s: float
    delay_s: Mapping[str, float]


def delays_s(times_s: Sequence[float], used: Sequence[CoreTime]) -> Times:
    """Largest delay by waiting that a request in a thread may have suffered, for each window between two samples.

    `used` is the thread's total at each time. What goes beyond ordinary turns in a window may have been one wait. A
    thread without a rest falls behind by all its waits since the last one, and works that off in the next window.
    """
    times = np.asarray(times_s)
    totals = np.array([(total.ran_s, total.waited_s, total.turns) for total in used])
    (ran, waited, turns), windows_s = np.diff(totals, axis=0).T, np.diff(times)
    idle_s = np.concatenate([[0.0], np.cumsum(windows_s - ran - waited)])
    # A wait is counted when it ends, until then it looks like rest; but rest, once over, stays in all later sums.
    rest_s = np.diff(np.minimum.accumulate(idle_s[::-1])[::-1])
    rested = rest_s > RESTED * windows_s
    own_s = np.maximum(0.0, waited - ORDINARY_S * turns)
    found = np.zeros(len(windows_s))
    for window in range(len(found)):
        clear = rested[window] and (window == 0 or rested[window - 1])
        found[window] = own_s[window] + (0.0 if clear or window == 0 else found[window - 1])
    return found


class _Thread:
    """A thread whose counts are read through a file that stays open. `samples`: the first windows it missed."""

    def __init__(self, task: Path, samples: list[CoreTime]) -> None:
        self._file = os.open(task / "schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self.samples = samples

    def read(self) -> CoreTime | None:
        """What it has used; None once it has ended."""
        try:
            ran, waited, turns = os.pread(self._file, 100, 0).split()
        except (OSError, ValueError):
            return None
        return CoreTime(int(ran) / 1e9, int(waited) / 1e9, int(turns))

    def sample(self) -> None:
        """Keep what it has used; once it has ended, that is no more."""
        last = self.samples[-1] if self.samples else CoreTime()
        self.samples.append(self.read() or last)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


@dataclass(slots=True)
class _Group:
    """The threads of a process group, by their folder. `growing`: processes that join it later count too."""

    leader: int
    growing: bool
    pids: frozenset[int] = frozenset()
    threads: dict[Path, _Thread] = field(default_factory=dict)

    def find(self, pids: list[int], samples: int) -> None:
        """Include new threads of these processes; they used nothing in the `samples` so far, except at the first."""
        if self.growing or not samples:
            self.pids = frozenset(pids)
        for pid in self.pids:
            for task in _tasks(pid):
                if task not in self.threads:
                    with suppress(OSError):  # it has ended
                        self.threads[task] = _Thread(task, [CoreTime()] * samples)


class RunQueue:
    """Samples process groups, given by name and leader, every `SAMPLE_S` in its own thread.

    Processes that join a group during the run count for those in `growing` only: a restarted backend waits while it
    starts, when no request depends on it. `available` is False where the kernel does not count: nothing is sampled.
    """

    def __init__(self, groups: Mapping[str, int], growing: Collection[str] = ()) -> None:
        self.available = counted()
        self._groups = {name: _Group(leader, name in growing) for name, leader in groups.items()}
        self._times_s: list[float] = []
        self._stop = threading.Event()
        self._searched_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin the first window."""
        if self.available:
            self._sample()
            self._thread.start()

    def stop(self) -> None:
        """End the last window; may be called again."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        for group in self._groups.values():
            for thread in group.threads.values():
                thread.close()

    def windows(self) -> list[CoreWait]:
        """The windows with waits, with times on CLOCK_MONOTONIC."""
        worst = {name: np.zeros(max(0, len(self._times_s) - 1)) for name in self._groups}
        for name, group in self._groups.items():
            for thread in group.threads.values():
                np.maximum(worst[name], delays_s(self._times_s, thread.samples), out=worst[name])
        found = []
        for number, (start_s, end_s) in enumerate(zip(self._times_s, self._times_s[1:], strict=False)):
            delay_s = {name: float(delays[number]) for name, delays in worst.items() if delays[number] > 0}
            if delay_s:
                found.append(CoreWait(start_s, end_s, delay_s))
        return found

    def totals(self) -> dict[str, CoreTime]:
        """What the processes of each group used from the first sample to the last."""
        used = {name: CoreTime() for name in self._groups}
        for name, group in self._groups.items():
            for thread in group.threads.values():
                used[name] += thread.samples[-1] - thread.samples[0]
        return used

    def _run(self) -> None:
        stopped = False
        while not stopped:
            stopped = self._stop.wait(SAMPLE_S)
            self._sample()

    def _sample(self) -> None:
        now_s = time.monotonic()
        if now_s > self._searched_s + SEARCH_S:
            self._searched_s = now_s
            members = _members({group.leader for group in self._groups.values()})
            for group in self._groups.values():
                group.find(members[group.leader], len(self._times_s))
        for group in self._groups.values():
            for thread in group.threads.values():
                thread.sample()
        self._times_s.append(time.monotonic())  # not before: a thread's count may lag behind its time, but not lead


def counted() -> bool:
    """Whether the kernel counts how long threads wait for a core."""
    return (PROC / "self" / "schedstat").is_file()


def _members(leaders: set[int]) -> dict[int, list[int]]:
    """Process ids of the members of each process group."""
    found: dict[int, list[int]] = {leader: [] for leader in leaders}
    for pid in psutil.pids():
        with suppress(ProcessLookupError):
            leader = os.getpgid(pid)
            if leader in found:
                found[leader].append(pid)
    return found


def _tasks(pid: int) -> list[Path]:
    """The folders of a process's threads; none if it has ended."""
    try:
        return list((PROC / str(pid) / "task").iterdir())
    except OSError:
        return []


def listening_group(url: str) -> int | None:
    """The process group that listens at a URL of this machine; None if there is none, or it belongs to another user."""
    where = urlsplit(url)
    if where.hostname not in (HOST, "localhost"):
        return None
    with suppress(psutil.Error, ProcessLookupError):
        for connection in psutil.net_connections("tcp"):
            here = connection.laddr and connection.laddr.port == (where.port or 80)
            if here and connection.status == psutil.CONN_LISTEN and connection.pid:
                return os.getpgid(connection.pid)
    return None
