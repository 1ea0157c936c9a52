"""Messages between a coordinator and its workers, sent as Locust's messages. Pure.

    coordinator                     worker
    clock {asked_s}           ->
                              <-  clock_told {asked_s, told_s}
    plan {run, ...}           ->                                  draws its shard of the arrivals
                              <-  ready {run, requests, lasts_s, error}
    go {run, start_s}         ->                                  start_s on the worker's own clock
                              <-  records {run, batch, rows, backends}
    ack {run, batch, rows}    ->                                  number of rows received from this worker
                              <-  done {run, batches, rows, error, lateness_s, leaving}
    thanks {run}              ->                                  all rows received; nothing to resend
    stop {run}                ->                                  abandons the run; unsent requests are NOT_SENT

A worker resends unacknowledged messages, so a broken connection loses nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from harness.evidence import records

TO_WORKER = ("clock", "plan", "go", "ack", "thanks", "stop")
TO_COORDINATOR = ("clock_told", "ready", "records", "done")


def named(kind: str) -> str:
    """The name of a message in Locust's name space."""
    return f"steelyard_{kind}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a run, the same for all workers except `worker`. Fields as in harness.load.job.LoadJob.

    `load` is the load itself (harness.load.job.text_of), so workers need no file and cannot build a different load of
    the same name; `profile`, `rate_per_s`, `duration_s`, `chats` (virtual users) and `think_s` describe its origin.
    """

    run: int
    profile: str
    rate_per_s: float
    duration_s: float
    seed: int
    nonce: int
    url: str
    protocol: str
    chats: int
    think_s: float
    worker: int
    workers: int
    load: str

    def as_data(self) -> dict[str, Any]:
        """The plan as data of a message."""
        return asdict(self)


class Receipts:
    """Batches received from one worker, in any order, possibly twice, until all announced rows are present."""

    def __init__(self) -> None:
        self.ready = False
        self.requests = 0
        self.lasts_s = 0.0
        self.error = ""
        self.lateness_s: dict[str, float] = {}
        self.leaving: list[int] = []
        self._batches: dict[int, tuple[bytes, list[str]]] = {}
        self._announced: tuple[int, int] | None = None
        self.rows = 0

    def put(self, batch: int, rows: bytes, backends: list[str]) -> None:
        """Add a batch; a duplicate has no effect."""
        if batch not in self._batches:
            self._batches[batch] = (rows, backends)
            self.rows += len(rows) // records.ROW.size

    def announce(self, batches: int, rows: int) -> None:
        """Note the totals announced by the worker."""
        self._announced = (batches, rows)

    @property
    def complete(self) -> bool:
        """Whether all announced rows are present."""
        return self._announced == (len(self._batches), self.rows)

    @property
    def missing(self) -> int:
        """Number of missing rows, as far as known: of those announced, else of those planned."""
        return max((self._announced[1] if self._announced else self.requests) - self.rows, 0)

    def all_rows(self, numbers: dict[str, int]) -> records.Rows:
        """All rows, with backends numbered as in `numbers`, which is extended by new names."""
        parts = []
        for packed, backends in self._batches.values():
            part = np.frombuffer(packed, dtype=records.REQUEST).copy()
            # One extra entry, so that -1 stays -1.
            meant = np.array([*(numbers.setdefault(name, len(numbers)) for name in backends), -1], dtype=np.int32)
            part["answered_by"] = meant[part["answered_by"]]
            parts.append(part)
        return np.concatenate(parts) if parts else np.zeros(0, dtype=records.REQUEST)


def duplicates(rows: records.Rows) -> str:
    """One line if a request has more than one row; else empty."""
    numbers, counts = np.unique(rows["number"], return_counts=True)
    if not (counts > 1).any():
        return ""
    return (
        f"{int((counts > 1).sum())} requests have more than one record (the first: number "
        f"{int(numbers[counts > 1][0])}); two workers sent the same shard, and the file has the records of both"
    )
