"""What a load has come to since it was asked last: news of a running job, the same of every engine. Pure."""

from __future__ import annotations

import numpy as np

from harness.evidence.records import REQUEST
from harness.load.results.figures import gave_up, is_good
from harness.load.results.shard import Shard

Told = dict[str, float | int | None]


class LoadProgress:
    """What `playing` has done since it was asked last; nobody else may take from its ledger."""

    def __init__(self, playing: Shard) -> None:
        self._playing = playing
        self._ended = 0
        self._failed = 0
        self._at_s = playing.ledger.start_s

    def since_last(self, now_s: float) -> Told:
        """Counts so far, and figures of what has ended since; `now_s` on CLOCK_MONOTONIC.

        Quantiles are in seconds, None where nothing was answered. Clients that gave up on purpose are no failures.
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
