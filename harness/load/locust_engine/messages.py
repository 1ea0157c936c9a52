"""What a conductor and its players say to each other, through Locust's messages. Pure.

    conductor                     player
    clock {asked_s}           ->
                              <-  clock_told {asked_s, told_s}
    plan {run, ...}           ->                                  draws its share of the arrivals
                              <-  ready {run, requests, lasts_s, error}
    go {run, start_s}         ->                                  start_s on the player's own clock
                              <-  records {run, batch, rows, backends}
    ack {run, batch, rows}    ->                                  how many rows the conductor now has of this player
                              <-  done {run, batches, rows, error, lateness_s, leaving}
    thanks {run}              ->                                  every row has come; nothing need be sent again
    stop {run}                ->                                  abandons the run; what was not sent is NOT_SENT

A player says again what nobody acknowledged, so that a connection that broke in between loses nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from harness.evidence import records

TO_PLAYER = ("clock", "plan", "go", "ack", "thanks", "stop")
TO_CONDUCTOR = ("clock_told", "ready", "records", "done")


def named(kind: str) -> str:
    """The name of a message among all that Locust knows."""
    return f"steelyard_{kind}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is, the same for all its players but `worker`. Fields as in harness.load.job.Job.

    `load` is the load itself (harness.load.job.text_of), so that players need no file it may come from and cannot make
    another one of the same name; `profile`, `rate_per_s`, `duration_s`, `chats` and `think_s` say what it was made of.
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
        """As a message's data."""
        return asdict(self)


class Receipts:
    """What has come from one player: batches in any order, perhaps twice, until all it told of is there."""

    def __init__(self) -> None:
        self.ready = False
        self.requests = 0
        self.lasts_s = 0.0
        self.error = ""
        self.lateness_s: dict[str, float] = {}
        self.leaving: list[int] = []
        self._batches: dict[int, tuple[bytes, list[str]]] = {}
        self._told: tuple[int, int] | None = None
        self.rows = 0

    def put(self, batch: int, rows: bytes, backends: list[str]) -> None:
        """Take in a batch; one that has come before changes nothing."""
        if batch not in self._batches:
            self._batches[batch] = (rows, backends)
            self.rows += len(rows) // records.ROW.size

    def told(self, batches: int, rows: int) -> None:
        """The player has said how much it has sent in all."""
        self._told = (batches, rows)

    @property
    def complete(self) -> bool:
        """Whether everything it told of has come."""
        return self._told == (len(self._batches), self.rows)

    @property
    def missing(self) -> int:
        """How many rows are missing, as far as is known: of those told, else of those it was to make."""
        return max((self._told[1] if self._told else self.requests) - self.rows, 0)

    def all_rows(self, numbers: dict[str, int]) -> records.Rows:
        """All rows that came, with backends numbered as in `numbers`, which grows with names not in it yet."""
        parts = []
        for packed, backends in self._batches.values():
            part = np.frombuffer(packed, dtype=records.REQUEST).copy()
            # One entry more, so that -1 stays -1.
            meant = np.array([*(numbers.setdefault(name, len(numbers)) for name in backends), -1], dtype=np.int32)
            part["answered_by"] = meant[part["answered_by"]]
            parts.append(part)
        return np.concatenate(parts) if parts else np.zeros(0, dtype=records.REQUEST)


def twice(rows: records.Rows) -> str:
    """The complaint, one line, if a request is there twice; else empty."""
    numbers, counts = np.unique(rows["number"], return_counts=True)
    if not (counts > 1).any():
        return ""
    return (
        f"{int((counts > 1).sum())} requests have more than one record (the first: number "
        f"{int(numbers[counts > 1][0])}); two workers played the same share, and the file has what both made"
    )
