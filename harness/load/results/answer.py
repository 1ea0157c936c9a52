"""The result of one exchange, and the ledger that turns results into records. Pure: no gevent, Locust or clock.

Every load engine writes its records with these, so all files have one format.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from math import nan

import numpy as np
from xxhash import xxh64_intdigest

from harness.evidence import records
from harness.load.wire import echo_of
from harness.scenario.arrivals import Arrival
from harness.scenario.model import Failure

ATTEMPT_HEADERS = ("x-attempt-count", "x-envoy-attempt-count")
"""Headers of an answer with the number of attempts. The first one present is used."""


@dataclass(slots=True)
class ExchangeResult:
    """The result of one exchange. Times on CLOCK_MONOTONIC in seconds, nan if absent.

    `sent_s` is taken just before the first system call for this request: the write on a kept connection, the connect
    on a new one, so a peer that is slow to accept does not add to the generator delay. An exchange cancelled from
    outside stays OTHER. `backend` and `attempts` come from the answer's headers, "" and 0 without.
    """

    failure: Failure = Failure.OTHER
    status: int = 0
    sent_s: float = nan
    first_byte_s: float = nan
    end_s: float = nan
    reused: bool = False
    body: bytes = b""
    backend: str = ""
    attempts: int = 0


class Ledger:
    """The records of a run, or of a worker's shard of it: one row for each request, in the order of their ends.

    `start_s` is second 0 of the run on CLOCK_MONOTONIC. `backends` are the names in answers, in the order of
    their numbers; with `open_ended` unknown names are appended, else they count as -1. `delays_s` are the generator
    delays of the requests that were sent.
    """

    def __init__(self, start_s: float, backends: Iterable[str] = (), open_ended: bool = False) -> None:
        self.start_s = start_s
        self.delays_s: list[float] = []
        self._numbers = {name: number for number, name in enumerate(backends)}
        self._open_ended = open_ended
        self._packed = bytearray()
        self._taken = 0

    @property
    def backends(self) -> list[str]:
        """Names of the backends in the order of their numbers."""
        return list(self._numbers)

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self._packed) // records.ROW.size

    def add(self, arrival: Arrival, own: str, answer: ExchangeResult) -> None:
        """Add the row of a request that was sent; `own` is its tag (13 hex digits)."""
        body, start_s = answer.body, self.start_s
        self._packed += records.ROW.pack(
            arrival.number,
            arrival.stream,
            arrival.kind,
            arrival.method,
            answer.failure,
            echo_of(body, own),
            answer.reused,
            answer.status,
            answer.attempts,
            arrival.key,
            arrival.connection,
            self._number_of(answer.backend),
            len(body),
            xxh64_intdigest(body),
            arrival.at_s,
            answer.sent_s - start_s,
            answer.first_byte_s - start_s,
            answer.end_s - start_s,
            arrival.patience_s,
        )

    def add_unsent(self, arrivals: Iterable[Arrival]) -> None:
        """Add rows of requests that were never sent."""
        for arrival in arrivals:
            self.add(arrival, "", ExchangeResult(Failure.NOT_SENT))

    def take(self) -> bytes:
        """The packed rows added since the last call."""
        fresh = bytes(memoryview(self._packed)[self._taken :])
        self._taken = len(self._packed)
        return fresh

    def rows(self) -> records.Rows:
        """A copy of all rows, of dtype `harness.evidence.records.REQUEST`."""
        return np.frombuffer(bytes(self._packed), dtype=records.REQUEST)

    def _number_of(self, backend: str) -> int:
        number = self._numbers.get(backend, -1)
        if number < 0 and backend and self._open_ended:
            number = self._numbers[backend] = len(self._numbers)
        return number


def attempts_in(text: object) -> int:
    """The number in the text of a header of attempts; 0 unless it is a number from 0 to 65,535."""
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and int(text) < 1 << 16 else 0


def spread(delays_s: Iterable[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum in seconds; zeros if no request was sent."""
    known = [value for value in delays_s if not math.isnan(value)]
    values = np.array(known or [0.0])
    return {
        "p50": float(np.quantile(values, 0.5)),
        "p99": float(np.quantile(values, 0.99)),
        "max": float(values.max()),
    }
