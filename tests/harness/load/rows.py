"""Hand-made request rows."""

from __future__ import annotations

import numpy as np

from harness.evidence.records import REQUEST, Rows
from harness.scenario.model import Failure


def rows_of(latency_s: object, rate_per_s: float = 100.0, start_s: float = 0.0) -> Rows:
    """Good answers with these latencies, due at equal intervals, sent 1 ms late, first byte at half the latency."""
    latency = np.asarray(latency_s, dtype=float)
    rows = np.zeros(len(latency), dtype=REQUEST)
    rows["number"] = np.arange(len(latency))
    rows["connection"] = -1
    rows["status"] = 200
    rows["failure"] = Failure.NONE
    rows["intended_s"] = start_s + np.arange(len(latency)) / rate_per_s
    rows["sent_s"] = rows["intended_s"] + 0.001
    rows["end_s"] = rows["intended_s"] + latency
    rows["first_byte_s"] = rows["intended_s"] + latency / 2
    return rows


def unsent(rows: Rows) -> Rows:
    """Change rows into those of requests that were never sent."""
    rows["failure"] = Failure.NOT_SENT
    rows["status"] = 0
    for name in ("sent_s", "first_byte_s", "end_s"):
        rows[name] = np.nan
    return rows
