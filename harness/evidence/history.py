"""Evidence of one run, columnar, from outside only, and the questions that checks ask of it.

All times are seconds from the start of the run; nan where nothing happened. Backends are numbers (`gpu-3` is 3).
A history never looks into the balancer, so that one check judges every balancer.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.evidence.records import REQUEST, Rows
from harness.scenario.fast_dataclass import canonical
from harness.scenario.model import Ending, Failure, Residency, Scenario

Times = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

ATTEMPT = np.dtype(
    [
        ("request", "<i4"),
        ("backend", "<i4"),
        ("kind", "u1"),
        ("ending", "u1"),
        ("cold", "u1"),
        ("carriers", "u1"),
        ("status", "<u2"),
        ("start_s", "<f8"),
        ("first_byte_s", "<f8"),
        ("end_s", "<f8"),
        ("queue_wait_s", "<f8"),
        ("service_asked_s", "<f8"),
        ("service_actual_s", "<f8"),
    ]
)
"""One stay of a request at a backend, as the backend saw it. `request` -1: foreign (without this run's tag)."""

HEALTH_CHECK = np.dtype([("backend", "<i4"), ("status", "<u2"), ("at_s", "<f8")])
"""A health or load poll that the balancer itself sent."""

RESIDENCY = np.dtype([("backend", "<i4"), ("event", "u1"), ("model", "S64"), ("at_s", "<f8")])
"""A model's weights began to load, were loaded, or were evicted (`event`: harness.scenario.model.Residency)."""

CONNECTION = np.dtype(
    [
        ("backend", "<i4"),
        ("bytes_up", "<u8"),
        ("bytes_down", "<u8"),
        ("ended", "S16"),
        ("opened_s", "<f8"),
        ("closed_s", "<f8"),
    ]
)
"""A connection between balancer and backend, as the fault proxy saw it."""

UNSEEN = -1
SEVERAL = -2


@dataclass(frozen=True, slots=True)
class StepSeen:
    """A fault or a membership change: what was asked when, when it took effect, and when it was healed (nan: never).

    `hits` is how many requests, or reports, a fault of single requests has struck; None if nobody counted.
    """

    kind: str
    backend: int
    asked_s: float
    effective_s: float
    healed_s: float = float("nan")
    hits: int | None = None

    @property
    def took_effect(self) -> bool:
        """Whether a probe saw the step take effect."""
        return not math.isnan(self.effective_s)


def _empty(dtype: np.dtype[Any]) -> Rows:
    return np.zeros(0, dtype=dtype)


@dataclass(frozen=True)
class History:
    """What clients asked and got, and what backends and the fault proxy saw. Rows are ordered by time.

    `requests` has one row for every arrival, at the row of its number. `slack_s` has one value for each second of
    the run. `died` is the balancer's own end in the middle of the run, if it ended. `correlated` says whether attempts
    could be tied to requests at all. `baselines` are the same arrivals under a policy of the simulator.
    """

    scenario: Scenario
    seed: int
    requests: Rows
    attempts: Rows = field(default_factory=lambda: _empty(ATTEMPT))
    health_checks: Rows = field(default_factory=lambda: _empty(HEALTH_CHECK))
    residency: Rows = field(default_factory=lambda: _empty(RESIDENCY))
    connections: Rows = field(default_factory=lambda: _empty(CONNECTION))
    steps: tuple[StepSeen, ...] = ()
    slack_s: Times = field(default_factory=lambda: np.zeros(0))
    correlated: bool = True
    died: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    baselines: Mapping[str, History] = field(default_factory=dict)

    # --- selections ---------------------------------------------------------------------------------------

    def in_stream(self, name: str) -> Mask:
        """Which requests belong to the stream called `name`."""
        mask: Mask = self.requests["stream"] == self.scenario.load.index(name)
        return mask

    def answered(self) -> Mask:
        """Which requests got a complete answer with a 2xx status."""
        status = self.requests["status"]
        mask: Mask = (status >= 200) & (status < 300) & (self.requests["failure"] == Failure.NONE)
        return mask

    def first_attempts(self) -> Numbers:
        """For each request the row of its first attempt, -1 where no backend saw it."""
        rows = np.full(len(self.requests), UNSEEN, dtype=np.int64)
        own = np.flatnonzero(self.attempts["request"] >= 0)[::-1]  # last write wins: the earliest
        rows[self.attempts["request"][own]] = own
        return rows

    def first_backends(self) -> Numbers:
        """For each request the backend of its first attempt, -1 where no backend saw it."""
        rows = self.first_attempts()
        if not len(self.attempts):
            return rows
        return np.where(rows >= 0, self.attempts["backend"][rows], UNSEEN).astype(np.int64)

    def owners(self, stream: str) -> Numbers:
        """For each key of a stream the backend that all its requests went to first.

        UNSEEN (-1) if no backend saw a request of that key, SEVERAL (-2) if more than one did.
        """
        keys = self.scenario.load.streams[self.scenario.load.index(stream)].keys
        owners = np.full(keys.count if keys else 0, UNSEEN, dtype=np.int64)
        mask = self.in_stream(stream) & (self.requests["key"] >= 0)
        backends = self.first_backends()
        for key, backend in zip(self.requests["key"][mask], backends[mask], strict=True):
            if backend == UNSEEN:
                continue
            owners[key] = backend if owners[key] in (UNSEEN, backend) else SEVERAL
        return owners

    def step(self, kind: str, backend: str) -> StepSeen | None:
        """The first step of this kind ("Kill", "Leave", ...) on `backend` that took effect, or None."""
        number = self.scenario.backend_ids.index(backend)
        for step in self.steps:
            if step.kind == kind and step.backend == number and step.took_effect:
                return step
        return None

    def baseline(self, name: str) -> History:
        """The same arrivals under the simulator's policy `name`; KeyError if the property did not declare it."""
        return self.baselines[name]

    def with_baselines(self, baselines: Mapping[str, History]) -> History:
        """This history with comparison runs attached."""
        return replace(self, baselines=dict(baselines))

    # --- figures ------------------------------------------------------------------------------------------

    def cold_loads(self) -> int:
        """How many times a model's weights were loaded into some GPU."""
        return int(np.count_nonzero(self.residency["event"] == Residency.LOADING))

    def latencies_s(self, mask: Mask | None = None) -> Times:
        """Latency of the answered requests (among `mask`) from their intended time to their last byte, seconds."""
        chosen = self.answered() if mask is None else self.answered() & mask
        latencies: Times = self.requests["end_s"][chosen] - self.requests["intended_s"][chosen]
        return latencies

    def unfinished_attempts(self) -> int:
        """Attempts that had not ended when the run did."""
        return int(np.count_nonzero(self.attempts["ending"] == Ending.OPEN))

    def worst_slack_s(self, start_s: float, end_s: float | None = None) -> float:
        """Largest slack of the seconds that [start_s, end_s] touches."""
        if not len(self.slack_s):
            return 0.0
        last = len(self.slack_s) - 1
        first_second = min(max(int(start_s), 0), last)
        last_second = min(max(int(start_s if end_s is None else end_s), first_second), last)
        return float(self.slack_s[first_second : last_second + 1].max())

    def digest(self) -> str:
        """SHA-256 over every record of the history; equal for the same seed in `sim`, in every process."""
        total = hashlib.sha256()
        for rows in (self.requests, self.attempts, self.health_checks, self.residency, self.connections, self.slack_s):
            total.update(f"{rows.dtype.descr} {len(rows)}".encode())
            total.update(np.ascontiguousarray(rows).tobytes())
        rest = {
            "scenario": canonical(self.scenario),
            "seed": self.seed,
            "steps": [[step.kind, step.backend, repr(step)] for step in self.steps],
            "correlated": self.correlated,
            "died": self.died,
        }
        total.update(json.dumps(rest, sort_keys=True).encode())
        return total.hexdigest()


def empty_requests(count: int) -> Rows:
    """`count` rows of requests that were never sent: nan times, no answer, numbered in order."""
    rows = np.zeros(count, dtype=REQUEST)
    rows["number"] = np.arange(count)
    rows["key"] = rows["connection"] = rows["answered_by"] = -1
    rows["failure"] = Failure.NOT_SENT
    for name in ("intended_s", "sent_s", "first_byte_s", "end_s"):
        rows[name] = np.nan
    return rows
