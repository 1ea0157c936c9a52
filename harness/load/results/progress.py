"""Progress of a running job since the last report, the same for every engine. Pure."""

from __future__ import annotations

import numpy as np

from harness.evidence.records import REQUEST
from harness.load.results.figures import gave_up, is_good
from harness.load.results.shard import Shard

Told = dict[str, float | int | None]


class LoadProgress:
    """Progress of `playing` since the last report; no other code may take from its ledger."""

    def __init__(self, playing: Shard) -> None:
        self._playing = playing
        self._ended = 0
        self._failed = 0
        self._at_s = playing.ledger.start_s

    def since_last(self, now_s: float) -> Told:
        """Counts so far, and figures of requests that ended since the last report; `now_s` on CLOCK_MONOTONIC.

        Quantiles are in seconds, None without answers. Clients that abort on purpose are not failures.
        """
        playing = self._playing
        rows = np.frombuffer(playing.ledger.take(), dtype=REQUEST)
        good = is_good(rows)
        latency_s = (rows["end_s"] - rows["intended_s"])[good]
        passed_s = max(now_s - self._at_s, 1e-9)
        failed_now = int((~good & ~gave_up(rows, playing.leaving)).sum())
        self._ended += len(rows)
        self._failed += failed_now
        self._at_s = max(now_s, self._at_s)
        return {
            "at_s": max(0.0, now_s - playing.ledger.start_s),
            "sent": playing.sent,
            "dropped": playing.dropped,
            "ended": self._ended,
            "failed": self._failed,
            "failed_now": failed_now,
            "per_s": len(latency_s) / passed_s,
            "p50_s": float(np.quantile(latency_s, 0.5)) if len(latency_s) else None,
            "p99_s": float(np.quantile(latency_s, 0.99)) if len(latency_s) else None,
        }
