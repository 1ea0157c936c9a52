"""Progress of a running job since the last report, the same for every engine. Pure."""

from __future__ import annotations

import numpy as np

from harness.evidence.records import REQUEST
from harness.load.results.figures import gave_up, is_good
from harness.load.results.shard import Shard

ProgressMessage = dict[str, float | int | None]
"""Fields of a progress message, as sent in JSON by a load process."""


class LoadProgress:
    """Progress of `shard` since the last report; no other code may take from its ledger."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._ended = 0
        self._failed = 0
        self._at_s = shard.ledger.start_s

    def since_last(self, now_s: float) -> ProgressMessage:
        """Counts so far, and figures of requests that ended since the last report; `now_s` on CLOCK_MONOTONIC.

        Quantiles are in seconds, None without answers. Clients that abort on purpose are not failures.
        """
        shard = self._shard
        rows = np.frombuffer(shard.ledger.take(), dtype=REQUEST)
        good = is_good(rows)
        latency_s = (rows["end_s"] - rows["intended_s"])[good]
        passed_s = max(now_s - self._at_s, 1e-9)
        failed_now = int((~good & ~gave_up(rows, shard.leaving)).sum())
        self._ended += len(rows)
        self._failed += failed_now
        self._at_s = max(now_s, self._at_s)
        return {
            "at_s": max(0.0, now_s - shard.ledger.start_s),
            "sent": shard.sent,
            "dropped": shard.dropped,
            "ended": self._ended,
            "failed": self._failed,
            "failed_now": failed_now,
            "per_s": len(latency_s) / passed_s,
            "p50_s": float(np.quantile(latency_s, 0.5)) if len(latency_s) else None,
            "p99_s": float(np.quantile(latency_s, 0.99)) if len(latency_s) else None,
        }
