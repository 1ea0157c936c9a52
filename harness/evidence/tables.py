"""The columns of a history's tables, and the names that select from them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.evidence.records import REQUEST, Rows

Times = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

UNSEEN = -1
"""No backend received the request, or a request with the key."""

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
"""One attempt as observed by its backend. `request` -1: foreign (without this run's tag)."""

HEALTH_CHECK = np.dtype([("backend", "<i4"), ("status", "<u2"), ("at_s", "<f8")])
"""A health check or load poll sent by the balancer."""

RESIDENCY = np.dtype([("backend", "<i4"), ("event", "u1"), ("model", "S64"), ("at_s", "<f8")])
"""A model's weights started loading, were loaded, or were evicted (`event`: harness.scenario.model.Residency)."""

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
"""A connection between balancer and backend, as observed by the fault proxy."""

TABLES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "requests": REQUEST,
        "attempts": ATTEMPT,
        "health_checks": HEALTH_CHECK,
        "residency": RESIDENCY,
        "connections": CONNECTION,
        "slack_s": np.dtype("<f8"),
    }
)
"""The columns of a history's tables, by the name of their field."""


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """What selections are made from: requests, attempts, and the names in a scenario."""

    requests: Rows
    attempts: Rows
    backends: tuple[str, ...]
    streams: tuple[tuple[str, float], ...]
    """Name and timeout in seconds of each stream."""

    def backend_number(self, backend: str | int) -> int:
        """Number of a backend given by name or number. KeyError, listing the names, for one that is not there."""
        if isinstance(backend, int | np.integer) and 0 <= backend < len(self.backends):
            return int(backend)
        if backend not in self.backends:
            raise KeyError(f"no backend {backend!r} in this run; there are {list(self.backends)}")
        return self.backends.index(backend)

    def stream_number(self, name: str) -> int:
        """Number of the stream called `name`. KeyError, listing the names, if there is none."""
        names = [stream for stream, _ in self.streams]
        if name not in names:
            raise KeyError(f"no stream {name!r} in this load; there are {names}")
        return names.index(name)

    def timeouts_s(self) -> Times:
        """The timeout of each stream."""
        return np.array([timeout_s for _, timeout_s in self.streams])

    def first_attempts(self) -> Numbers:
        """For each request the row of its first attempt, UNSEEN (-1) where no backend received it."""
        rows = np.full(len(self.requests), UNSEEN, dtype=np.int64)
        own = np.flatnonzero(self.attempts["request"] >= 0)[::-1]  # reversed: the last write is the earliest attempt
        rows[self.attempts["request"][own]] = own
        return rows

    def turns(self) -> Numbers:
        """For each attempt the number of earlier attempts of its request; UNSEEN (-1) for a foreign attempt."""
        request = self.attempts["request"].astype(np.int64)
        order = np.argsort(request, kind="stable")  # rows are ordered by time, and so are those of each request
        ordered = request[order]
        position = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
        turns = np.empty(len(ordered), dtype=np.int64)
        turns[order] = np.where(ordered >= 0, position, UNSEEN)
        return turns

    def followers(self) -> Numbers:
        """For each attempt the row of its request's next attempt, UNSEEN (-1) where there is none."""
        request = self.attempts["request"]
        order = np.argsort(request, kind="stable")
        following = np.full(len(request), UNSEEN, dtype=np.int64)
        same = (request[order][1:] == request[order][:-1]) & (request[order][1:] >= 0)
        following[order[:-1][same]] = order[1:][same]
        return following
