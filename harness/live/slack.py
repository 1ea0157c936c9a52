"""Slack: the timing uncertainty of each second of a live run.

The largest of: calibration before the run (pings directly to a backend), a sentinel ping directly to a backend every
100 ms, the generator delay (how late the load generator sent), a mock's service time beyond the requested one, and how
long load, balancer, fault proxy and mocks waited for a core (`harness.live.run_queue`).
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.evidence.history import StepSeen
from harness.evidence.records import Rows
from harness.evidence.tables import Times
from harness.live.process.http import call
from harness.live.process.ports import HOST
from harness.live.run_queue import CoreWait, RunQueue
from harness.scenario.faults import Pause
from harness.scenario.model import Connections, Scenario

BALANCER = "the balancer"
"""Name of the balancer's process group."""

SENTINEL_S = 0.1
PINGS = 20


class Sentinel:
    """Pings a backend (or another server at `path`) directly, without balancer and fault proxy, in its own thread."""

    def __init__(self, port: int, path: str = "/mock/ping") -> None:
        self._url = f"http://{HOST}:{port}{path}"
        self._stop = threading.Event()
        self._samples: list[tuple[float, float]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def calibrate(self) -> float:
        """Seconds by which the slowest of `PINGS` pings exceeded the fastest."""
        took_s = [self._ping() for _ in range(PINGS)]
        return max(took_s) - min(took_s)

    def start(self) -> None:
        """Start pinging every `SENTINEL_S`."""
        self._thread.start()

    def stop(self) -> list[tuple[float, float]]:
        """Stop; returns samples as (time on CLOCK_MONOTONIC, seconds beyond the fastest)."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        if not self._samples:
            return []
        fastest_s = min(took_s for _, took_s in self._samples)
        return [(at_s, took_s - fastest_s) for at_s, took_s in self._samples]

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._stop.wait(max(0.0, due_s - time.monotonic())):
            delay_s = time.monotonic() - due_s
            self._samples.append((due_s, self._ping() + delay_s))
            due_s += SENTINEL_S

    def _ping(self) -> float:
        began_s = time.monotonic()
        try:
            call("GET", self._url, timeout_s=2.0)
        except (OSError, http.client.HTTPException):
            return 2.0
        return time.monotonic() - began_s


class SlackMeter:
    """Measures during one run: a sentinel, and the waits for a core of these process groups (name: leader)."""

    def __init__(self, sentinel: Sentinel, groups: Mapping[str, int | None]) -> None:
        self._sentinel = sentinel
        known = {name: leader for name, leader in groups.items() if leader is not None}
        self._run_queue = RunQueue(known, growing={BALANCER})  # a reload starts new workers
        self._calibrated_s = 0.0
        self._samples: list[tuple[float, float]] = []

    def calibrate(self) -> None:
        """Measure before the run."""
        self._calibrated_s = self._sentinel.calibrate()

    def start(self) -> None:
        """Measure until `stop`."""
        self._sentinel.start()
        self._run_queue.start()

    def stop(self) -> None:
        """Measure no more; may be called again."""
        self._samples = self._sentinel.stop() or self._samples
        self._run_queue.stop()

    def slack(
        self, scenario: Scenario, requests: Rows, attempts: Rows, steps: Sequence[StepSeen], start_s: float
    ) -> Slack:
        """The slack of a run that began at `start_s` on CLOCK_MONOTONIC."""
        samples = [(at_s - start_s, beyond_s) for at_s, beyond_s in self._samples]
        windows = self._run_queue.windows()
        waits = [replace(wait, start_s=wait.start_s - start_s, end_s=wait.end_s - start_s) for wait in windows]
        return slack_by_second(scenario, requests, attempts, samples, self._calibrated_s, steps, waits)

    def core_time(self) -> dict[str, dict[str, float]]:
        """Seconds on a core and seconds waiting for one, by the name of the process group; empty if not counted."""
        if not self._run_queue.available:
            return {}
        totals = self._run_queue.totals()
        return {
            name: {"ran_s": round(used.ran_s, 4), "waited_s": round(used.waited_s, 4)} for name, used in totals.items()
        }


@dataclass(frozen=True, slots=True)
class Slack:
    """The largest measure of each second of a run (s), shape (seconds,), and what it measures."""

    by_second_s: Times
    causes: list[str]

    @classmethod
    def of(cls, seconds: int, value_s: float, cause: str) -> Slack:
        """The same in every second."""
        return cls(np.full(seconds, value_s), [cause] * seconds)

    def at(self, at_s: Times, values_s: Times, cause: str) -> None:
        """Include measures at points in time (seconds of the run); nan is skipped."""
        known = ~np.isnan(at_s) & ~np.isnan(values_s)
        worst = np.zeros(len(self.by_second_s))
        seconds = np.clip(at_s[known].astype(np.int64), 0, len(worst) - 1)
        np.maximum.at(worst, seconds, values_s[known])
        for second in np.flatnonzero(worst > self.by_second_s).tolist():
            self._set(second, float(worst[second]), cause)

    def within(self, start_s: float, end_s: float, value_s: float, cause: str) -> None:
        """Include a measure of all seconds that overlap [start_s, end_s]."""
        last = len(self.by_second_s) - 1
        for second in range(max(0, int(start_s)), min(last, int(end_s)) + 1):
            if value_s > self.by_second_s[second]:
                self._set(second, value_s, cause)

    def _set(self, second: int, value_s: float, cause: str) -> None:
        self.by_second_s[second] = value_s
        self.causes[second] = cause


def slack_by_second(
    scenario: Scenario,
    requests: Rows,
    attempts: Rows,
    sentinel: list[tuple[float, float]],
    calibrated_s: float,
    steps: Sequence[StepSeen] = (),
    waits: Sequence[CoreWait] = (),
) -> Slack:
    """The largest of all measures for each second of the run. `sentinel` and `waits` in seconds of the run.

    Requests in service while their backend was paused (`steps`) do not count: their service time is not the machine's.
    """
    slack = Slack.of(int(scenario.end_s) + 1, calibrated_s, "calibration")
    # A request that waits for its only connection is delayed by the balancer, not by the generator.
    paced = np.array([stream.connections is not Connections.ONE for stream in scenario.load.streams], dtype=bool)
    own = paced[requests["stream"]] & ~np.isnan(requests["sent_s"])
    slack.at(requests["intended_s"][own], (requests["sent_s"] - requests["intended_s"])[own], "generator delay")
    served = ~np.isnan(attempts["service_actual_s"])
    excess_s = attempts["service_actual_s"] - attempts["service_asked_s"]
    for step in steps:
        if step.kind == Pause.__name__:
            until_s = np.inf if np.isnan(step.healed_s) else step.healed_s
            inside = (attempts["start_s"] < until_s) & ~(attempts["end_s"] < step.asked_s)
            served &= ~(inside & (attempts["backend"] == step.backend))
    slack.at(attempts["end_s"][served], excess_s[served], "service time of a mock")
    if sentinel:
        times, beyond = np.array(sentinel).T
        slack.at(times, beyond, "ping to a mock")
    for wait in waits:
        total_s = sum(wait.delay_s.values())  # a request may wait in each process on its way
        longest = max(wait.delay_s, key=lambda name: wait.delay_s[name])
        slack.within(wait.start_s - total_s, wait.end_s + total_s, total_s, f"{longest} waited for a core")
    return slack
