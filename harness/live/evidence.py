"""Builds a history's tables from a live run: the mocks' logs, the load's records, the fault proxy's connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.evidence.records import Rows
from harness.evidence.tables import ATTEMPT, CONNECTION, HEALTH_CHECK, RESIDENCY, Numbers
from harness.scenario.model import HarnessError, Residency
from harness.toxiproxy.client import LoggedConnection
from mockgpu.api.tags import NUMBER_BITS
from mockgpu.server.attempt_log import HEADER_SIZE, ROW_FIELDS, LogError, RowKind, RowOutcome, read_header

LOG = np.dtype(list(ROW_FIELDS))
UNTAGGED = -1

RESIDENCY_OF = {
    int(RowKind.RESIDENCY_LOADING): Residency.LOADING,
    int(RowKind.RESIDENCY_LOADED): Residency.LOADED,
    int(RowKind.RESIDENCY_EVICTED): Residency.EVICTED,
}


def log_rows(data: bytes) -> Rows:
    """All rows of a backend's attempt log, in the columns of `LOG`. HarnessError for lost rows or invalid data."""
    try:
        header = read_header(data)
    except LogError as error:
        raise HarnessError(f"a backend's attempt log cannot be read: {error}") from None
    if header.lost:
        raise HarnessError(f"a backend's attempt log was too small: {header.lost} rows lost of {header.count}")
    if len(data) < HEADER_SIZE + header.count * LOG.itemsize:
        raise HarnessError(f"a backend's attempt log was cut short: {len(data)} bytes for {header.count} rows")
    return np.frombuffer(data, LOG, header.count, HEADER_SIZE)


def own_failures(rows: Rows) -> int:
    """Number of rows in which the mock itself failed: rows with an end but without an outcome."""
    return int(np.count_nonzero((rows["outcome"] == RowOutcome.OPEN) & ~np.isnan(rows["end_s"])))


def own_numbers(rows: Rows, nonce: int) -> Numbers:
    """Request number of each row, -1 for rows without a tag of this run."""
    tags = rows["tag"].astype(np.int64)
    numbers: Numbers = np.where((tags >> NUMBER_BITS) == nonce, tags & ((1 << NUMBER_BITS) - 1), UNTAGGED)
    return numbers


def attempts_of(logs: Sequence[Rows], nonce: int, start_s: float) -> Rows:
    """Attempts of all backends as rows of ATTEMPT, ordered by arrival; foreign ones have request -1."""
    parts = []
    for number, rows in enumerate(logs):
        selected = rows[np.isin(rows["kind"], (RowKind.INFERENCE, RowKind.UPDATE, RowKind.FOREIGN))]
        part = np.zeros(len(selected), ATTEMPT)
        part["request"] = own_numbers(selected, nonce)
        part["backend"] = number
        part["kind"] = selected["kind"]
        part["ending"] = selected["outcome"]
        for name in ("cold", "carriers", "status"):
            part[name] = selected[name]
        part["start_s"] = selected["arrival_s"] - start_s
        part["first_byte_s"] = selected["first_byte_s"] - start_s
        part["end_s"] = selected["end_s"] - start_s
        for name in ("queue_wait_s", "service_asked_s", "service_actual_s"):
            part[name] = selected[name]
        parts.append(part)
    return _by_time(parts, ATTEMPT, "start_s")


def health_checks_of(logs: Sequence[Rows], start_s: float) -> Rows:
    """The balancer's health checks as rows of HEALTH_CHECK."""
    parts = []
    for number, rows in enumerate(logs):
        selected = rows[rows["kind"] == RowKind.HEALTH_CHECK]
        part = np.zeros(len(selected), HEALTH_CHECK)
        part["backend"], part["status"], part["at_s"] = number, selected["status"], selected["arrival_s"] - start_s
        parts.append(part)
    return _by_time(parts, HEALTH_CHECK, "at_s")


def residency_of(logs: Sequence[Rows], start_s: float) -> Rows:
    """Loads and evictions of models in GPU memory, as rows of RESIDENCY."""
    parts = []
    for number, rows in enumerate(logs):
        selected = rows[np.isin(rows["kind"], tuple(RESIDENCY_OF))]
        part = np.zeros(len(selected), RESIDENCY)
        part["backend"], part["model"], part["at_s"] = number, selected["model"], selected["arrival_s"] - start_s
        part["event"] = [RESIDENCY_OF[int(kind)] for kind in selected["kind"]]
        parts.append(part)
    return _by_time(parts, RESIDENCY, "at_s")


def connections_of(logged: Sequence[LoggedConnection], numbers: Mapping[str, int], start_s: float) -> Rows:
    """The fault proxy's connections as rows of CONNECTION; `closed_s` is nan for those still open."""
    own = [item for item in logged if item.proxy in numbers]
    rows = np.zeros(len(own), CONNECTION)
    rows["backend"] = [numbers[item.proxy] for item in own]
    rows["bytes_up"] = [item.bytes_up for item in own]
    rows["bytes_down"] = [item.bytes_down for item in own]
    rows["ended"] = [(item.ended or "").encode() for item in own]
    rows["opened_s"] = [item.opened_s - start_s for item in own]
    rows["closed_s"] = [np.nan if item.closed_s is None else item.closed_s - start_s for item in own]
    return rows[np.argsort(rows["opened_s"], kind="stable")]


def reconcile(requests: Rows, attempts: Rows) -> tuple[Rows, dict[str, Any]]:
    """Match attempts with requests. Attempts with an unknown number become foreign and are counted; none is dropped."""
    unknown = attempts["request"] >= len(requests)
    attempts = attempts.copy()
    attempts["request"][unknown] = UNTAGGED
    attempted = np.zeros(len(requests), dtype=bool)
    attempted[attempts["request"][attempts["request"] >= 0]] = True
    facts = {
        "unknown_attempts": int(unknown.sum()),
        "foreign_attempts": int(np.count_nonzero(attempts["request"] < 0)) - int(unknown.sum()),
        "requests_without_attempt": int(np.count_nonzero(~attempted)),
    }
    return attempts, facts


def _by_time(parts: Sequence[Rows], dtype: np.dtype[Any], column: str) -> Rows:
    rows = np.concatenate(parts) if parts else np.zeros(0, dtype)
    return rows[np.argsort(rows[column], kind="stable")]
