"""Figures of a running environment from attempt logs and client answers. Pure.

The balancer is never queried. All times are seconds on CLOCK_MONOTONIC.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from harness.evidence.records import Rows
from harness.live.evidence import LOG
from mockgpu.server.attempt_log import RowKind, RowOutcome

WINDOW_S = 5.0
"""Rates, shares and latencies are taken over this time."""
SILENT_S = 1.0
MIN_MISSED = 10.0
"""Attempts that a backend must have missed, by its earlier share, before its silence is significant.

With independent arrivals, none where 10 are expected has a probability of exp(-10), 5e-5.
"""

ATTEMPTS = (int(RowKind.INFERENCE), int(RowKind.UPDATE), int(RowKind.FOREIGN))
LOADING, LOADED, EVICTED = int(RowKind.RESIDENCY_LOADING), int(RowKind.RESIDENCY_LOADED), int(RowKind.RESIDENCY_EVICTED)


class ObservedRequest(NamedTuple):
    """One request as observed by our own client. `status` 0: no complete answer. `backend`: named in the answer."""

    end_s: float
    latency_s: float
    status: int
    backend: str

    @property
    def failed(self) -> bool:
        """Whether it got no complete answer, or a status from 500 on."""
        return not 0 < self.status < 500


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempts at one backend. Latencies (s) of answered ones, measured at the backend, nan if there are none."""

    started: int
    errors: int
    in_flight: int
    p50_s: float
    p99_s: float
    last_s: float
    """Arrival of the last attempt, nan if there was none."""


@dataclass(frozen=True, slots=True)
class Client:
    """Results of our own load, for all backends or for one. Latencies (s) from intended send times, nan if none."""

    ended: int = 0
    errors: int = 0
    p50_s: float = math.nan
    p99_s: float = math.nan


@dataclass(frozen=True, slots=True)
class ObservedBackend:
    """One backend, observed from outside. `process`: alive, paused, dead. `membership`: "" (plain member), "left" etc.

    `silent_s`: time since its last attempt, None if it had none; `missed`: attempts expected since then. `faults`:
    descriptions. `models`: names, with " loading" appended while a model is loaded; sizes in MB.
    """

    name: str
    process: str
    attempts: Attempts
    client: Client
    share: float
    silent_s: float | None
    missed: float
    membership: str = ""
    faults: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    used_mb: int = 0
    total_mb: int = 0

    def with_share(self, share: float) -> ObservedBackend:
        """A copy with this share of all attempts."""
        return replace(self, share=share)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The environment at one moment; rates are taken over `window_s`; `client` is None without a load of our own.

    `log_full` names backends whose log is full, so that their new attempts are not observed.
    """

    up_s: float
    window_s: float
    backends: tuple[ObservedBackend, ...]
    client: Client | None = None
    log_full: tuple[str, ...] = ()


def attempts_of(rows: Rows, now_s: float, window_s: float, ended_s: float = -math.inf, alive: bool = True) -> Attempts:
    """Figures of the last `window_s` from rows of a backend's log (columns of `evidence.LOG`).

    `ended_s`: when its process last ended; attempts open at that time count as errors. Attempts opened later are in
    flight, none while it is dead. Errors: status from 500 on, refused, cut off, or the client left.
    """
    own = rows[np.isin(rows["kind"], ATTEMPTS)]
    since_s = now_s - window_s
    open_ = (own["outcome"] == RowOutcome.OPEN) & np.isnan(own["end_s"])
    orphaned = open_ & (own["arrival_s"] <= ended_s)
    in_flight = open_ & ~orphaned
    end_s = np.where(orphaned, ended_s, own["end_s"])
    recent = end_s >= since_s
    answered = recent & (own["outcome"] == RowOutcome.ANSWERED) & (own["status"] < 500)
    p50_s, p99_s = _quantiles((own["end_s"] - own["arrival_s"])[answered])
    return Attempts(
        started=int(np.count_nonzero(own["arrival_s"] >= since_s)),
        errors=int(np.count_nonzero(recent & ~answered)),
        in_flight=int(np.count_nonzero(in_flight)) if alive else 0,
        p50_s=p50_s,
        p99_s=p99_s,
        last_s=float(own["arrival_s"].max()) if len(own) else math.nan,
    )


def client_of(answers: Iterable[ObservedRequest]) -> Client:
    """Figures of requests, as observed by the client."""
    items = list(answers)
    p50_s, p99_s = _quantiles(np.array([item.latency_s for item in items if not item.failed]))
    return Client(len(items), sum(item.failed for item in items), p50_s, p99_s)


def by_backend(answers: Sequence[ObservedRequest], names: Sequence[str]) -> dict[str, Client]:
    """Client figures for each backend, from the answers that name it."""
    return {name: client_of(item for item in answers if item.backend == name) for name in names}


def shares(started: Mapping[str, int]) -> dict[str, float]:
    """Each backend's share of all attempts; 0 for all if there are none."""
    total = sum(started.values())
    return {name: count / total if total else 0.0 for name, count in started.items()}


@dataclass(slots=True)
class Tail:
    """The part of a backend's growing log that is still needed, and a summary of the earlier rows.

    Rows are completed in place, so open ones are read again until they have ended; `first` is the first row to request.
    `models` maps each model in memory to whether it is loaded, and since when (s).
    """

    first: int = 0
    rows: Rows = field(default_factory=lambda: np.zeros(0, LOG))
    models: dict[str, tuple[bool, float]] = field(default_factory=dict)
    last_s: float = -math.inf
    count: int = 0
    """Attempts so far."""
    _read: int = 0

    def take(self, rows: Rows, now_s: float, window_s: float, ended_s: float = -math.inf) -> None:
        """Read the current rows from `first` on."""
        new = rows[max(0, self._read - self.first) :]
        self._note_residency(new)
        self.count += int(np.count_nonzero(np.isin(new["kind"], ATTEMPTS)))
        self._read = self.first + len(rows)
        self.rows = rows
        open_ = (rows["outcome"] == RowOutcome.OPEN) & np.isnan(rows["end_s"]) & (rows["arrival_s"] > ended_s)
        recent = (rows["arrival_s"] >= now_s - window_s) | (rows["end_s"] >= now_s - window_s)
        orphaned = (rows["arrival_s"] <= ended_s) & (ended_s >= now_s - window_s)
        needed = np.flatnonzero(open_ | recent | orphaned)
        own = rows[np.isin(rows["kind"], ATTEMPTS)]
        if len(own):
            self.last_s = max(self.last_s, float(own["arrival_s"].max()))
        self.first += int(needed[0]) if len(needed) else len(rows)

    def resident(self, ended_s: float = -math.inf) -> dict[str, bool]:
        """Models in memory, and whether they are loaded; models from before the process ended (`ended_s`) are gone."""
        return {name: loaded for name, (loaded, at_s) in self.models.items() if at_s > ended_s}

    def _note_residency(self, rows: Rows) -> None:
        for row in rows[np.isin(rows["kind"], (LOADING, LOADED, EVICTED))]:
            name = row["model"].decode(errors="ignore")
            if row["kind"] == EVICTED:
                self.models.pop(name, None)
            else:
                self.models[name] = (bool(row["kind"] == LOADED), float(row["arrival_s"]))


def missed(own: Tail, others: Sequence[Tail], since_s: float) -> float:
    """Attempts expected at a backend since `since_s`, by its share before; 0 if it had none.

    If no other backend had attempts before, an equal share is assumed. `since_s` must lie within the rows of the
    tails: rows before the window are not counted.
    """
    since = sum(_after(tail.rows, since_s) for tail in others)
    before = sum(tail.count for tail in others) - since
    if not own.count:
        return 0.0
    return since * (own.count / before if before > 0 else 1 / max(len(others), 1))


def _after(rows: Rows, at_s: float) -> int:
    return int(np.count_nonzero(np.isin(rows["kind"], ATTEMPTS) & (rows["arrival_s"] > at_s)))


def _quantiles(values: Any) -> tuple[float, float]:
    if not len(values):
        return math.nan, math.nan
    p50, p99 = np.quantile(values, (0.5, 0.99))
    return float(p50), float(p99)
