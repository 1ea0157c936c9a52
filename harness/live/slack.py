"""Slack: the timing uncertainty of each second of a live run.

The largest of: calibration before the run (pings directly to a backend), a sentinel ping directly to a backend every
100 ms, the generator delay (how late the load generator sent), and a mock's service time beyond the requested one.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Sequence

import numpy as np

from harness.evidence.history import StepSeen
from harness.evidence.records import Rows
from harness.evidence.tables import Times
from harness.live.process.http import call
from harness.live.process.ports import HOST
from harness.scenario.faults import Pause
from harness.scenario.model import Connections, Scenario

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


def slack_by_second(
    scenario: Scenario,
    requests: Rows,
    attempts: Rows,
    sentinel: list[tuple[float, float]],
    calibrated_s: float,
    steps: Sequence[StepSeen] = (),
) -> Times:
    """The largest of all measures (s) for each second of the run; shape (seconds,). `sentinel` in seconds of the run.

    Requests in service while their backend was paused (`steps`) do not count: their service time is not the machine's.
    """
    slack = np.full(int(scenario.end_s) + 1, calibrated_s)
    # A request that waits for its only connection is delayed by the balancer, not by the generator.
    paced = np.array([stream.connections is not Connections.ONE for stream in scenario.load.streams], dtype=bool)
    own = paced[requests["stream"]] & ~np.isnan(requests["sent_s"])
    _raise(slack, requests["intended_s"][own], (requests["sent_s"] - requests["intended_s"])[own])
    served = ~np.isnan(attempts["service_actual_s"])
    excess_s = attempts["service_actual_s"] - attempts["service_asked_s"]
    for step in steps:
        if step.kind == Pause.__name__:
            until_s = np.inf if np.isnan(step.healed_s) else step.healed_s
            inside = (attempts["start_s"] < until_s) & ~(attempts["end_s"] < step.asked_s)
            served &= ~(inside & (attempts["backend"] == step.backend))
    _raise(slack, attempts["end_s"][served], excess_s[served])
    if sentinel:
        times, beyond = np.array(sentinel).T
        _raise(slack, times, beyond)
    return slack


def _raise(slack: Times, at_s: Times, values_s: Times) -> None:
    known = ~np.isnan(at_s) & ~np.isnan(values_s)
    seconds = np.clip(at_s[known].astype(np.int64), 0, len(slack) - 1)
    np.maximum.at(slack, seconds, values_s[known])
