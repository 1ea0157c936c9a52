"""Questions to a history: selections of requests and of attempts, narrowed step by step. Pure.

A selection is a set of rows in order of time; every condition returns the smaller selection, and `&`, `|` and `-`
combine selections of one history:

    history.attempts_on("gpu-0").inference().failed().started_between(1.0, 2.0)

`selection["start_s"]` is a column of the selected rows, `len(selection)` their number. Times are seconds of the run; an
interval contains its start and not its end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from harness.evidence.records import Rows
from harness.evidence.tables import UNSEEN, Mask, Numbers, Tables, Times
from harness.scenario.model import Ending, Failure, Kind


@dataclass(frozen=True, slots=True, eq=False)
class _Selection:
    """Some rows of a table, by number and in order."""

    tables: Tables
    rows: Numbers

    @property
    def table(self) -> Rows:
        """All rows of the table that this selection is from."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Any]:
        """The selected rows, each with its columns by name."""
        return iter(self.table[self.rows])

    def __getitem__(self, column: str) -> Any:
        """A column of the selected rows."""
        return self.table[column][self.rows]

    def where(self, mask: Mask) -> Self:
        """The selected rows for which `mask`, with one value for each of them, is true."""
        return replace(self, rows=self.rows[np.asarray(mask, dtype=bool)])

    def __and__(self, other: Self) -> Self:
        return replace(self, rows=np.intersect1d(self.rows, other.rows))

    def __or__(self, other: Self) -> Self:
        return replace(self, rows=np.union1d(self.rows, other.rows))

    def __sub__(self, other: Self) -> Self:
        return replace(self, rows=np.setdiff1d(self.rows, other.rows))

    def inference(self) -> Self:
        """Those of kind inference."""
        return self.where(self["kind"] == Kind.INFERENCE)

    def updates(self) -> Self:
        """Those of kind update."""
        return self.where(self["kind"] == Kind.UPDATE)

    def with_status(self, *statuses: int) -> Self:
        """Those that ended with one of these statuses."""
        return self.where(np.isin(self["status"], statuses))


@dataclass(frozen=True, slots=True, eq=False)
class RequestSelection(_Selection):
    """Requests of a history as their clients observed them.

    >>> from harness.evidence.example import example_history
    >>> requests = example_history().all_requests()
    >>> len(requests), len(requests.answered()), len(requests.lost())
    (4, 3, 1)
    """

    @property
    def table(self) -> Rows:
        """All requests of the history."""
        return self.tables.requests

    # --- conditions ---------------------------------------------------------------------------------------

    def in_streams(self, *names: str) -> RequestSelection:
        """Those of the streams with these names. KeyError for an unknown name.

        >>> len(requests.in_streams("chat"))
        3
        """
        return self.where(np.isin(self["stream"], [self.tables.stream_number(name) for name in names]))

    def sent_between(self, start_s: float, end_s: float) -> RequestSelection:
        """Those sent in [start_s, end_s).

        >>> requests.sent_between(0.1, 1.0)["number"].tolist()
        [1, 2]
        """
        return self.where((self["sent_s"] >= start_s) & (self["sent_s"] < end_s))

    def sent_after(self, at_s: float) -> RequestSelection:
        """Those sent later than `at_s`."""
        return self.where(self["sent_s"] > at_s)

    def due_between(self, start_s: float, end_s: float) -> RequestSelection:
        """Those whose intended time is in [start_s, end_s), sent or not."""
        return self.where((self["intended_s"] >= start_s) & (self["intended_s"] < end_s))

    def with_keys(self, keys: Collection[int]) -> RequestSelection:
        """Those with one of these affinity keys."""
        return self.where(np.isin(self["key"], list(keys)))

    def answered(self) -> RequestSelection:
        """Those that got a complete answer with a 2xx status."""
        status = self["status"]
        return self.where((status >= 200) & (status < 300) & (self["failure"] == Failure.NONE))

    def lost(self) -> RequestSelection:
        """All others: failed, answered with another status, cut, or never sent."""
        return self - self.answered()

    def given_up_by_client(self) -> RequestSelection:
        """Those whose clients left without a complete answer, after their patience."""
        return self.where(self["failure"] == Failure.TIMEOUT)

    def patient(self) -> RequestSelection:
        """Those whose clients wait for the whole timeout of their stream."""
        return self.where(~(self["patience_s"] < self.tables.timeouts_s()[self["stream"]]))

    def reached(self) -> RequestSelection:
        """Those that some backend received.

        >>> requests.reached()["number"].tolist()
        [0, 1, 2]
        """
        return self.where(self.first_backends() != UNSEEN)

    def unreached(self) -> RequestSelection:
        """Those that no backend received."""
        return self.where(self.first_backends() == UNSEEN)

    def first_on(self, backend: str | int) -> RequestSelection:
        """Those whose first attempt was at `backend`.

        >>> requests.first_on("gpu-0")["number"].tolist()
        [0, 2]
        """
        return self.where(self.first_backends() == self.tables.backend_number(backend))

    # --- answers ------------------------------------------------------------------------------------------

    def attempts(self) -> AttemptSelection:
        """All attempts of these requests."""
        request = self.tables.attempts["request"]
        return AttemptSelection(self.tables, np.flatnonzero((request >= 0) & np.isin(request, self.rows)))

    def attempt_counts(self) -> Numbers:
        """For each request the number of its attempts that backends received.

        >>> requests.attempt_counts().tolist()
        [1, 1, 1, 0]
        """
        own = self.tables.attempts["request"]
        counts = np.bincount(own[own >= 0], minlength=len(self.table)).astype(np.int64)
        return counts[self.rows]

    def first_attempts(self) -> Numbers:
        """For each request the row of its first attempt, UNSEEN (-1) where no backend received it."""
        return self.tables.first_attempts()[self.rows]

    def first_backends(self) -> Numbers:
        """For each request the backend of its first attempt, UNSEEN (-1) where no backend received it."""
        rows, attempts = self.first_attempts(), self.tables.attempts
        if not len(attempts):
            return rows
        return np.where(rows >= 0, attempts["backend"][rows], UNSEEN).astype(np.int64)

    def reached_s(self) -> Times:
        """For each request the time at which it reached its first backend, nan where it reached none."""
        rows, attempts = self.first_attempts(), self.tables.attempts
        if not len(attempts):
            return np.full(len(rows), np.nan)
        times_s: Times = np.where(rows >= 0, attempts["start_s"][rows], np.nan)
        return times_s

    def latencies_s(self) -> Times:
        """Intended time to last byte, or to the client's end; nan without an end."""
        times_s: Times = self["end_s"] - self["intended_s"]
        return times_s

    def in_flight_at(self, at_s: Times | float) -> Numbers:
        """Number of these requests that are sent and not ended, at each of the given times.

        >>> requests.in_flight_at(0.02).tolist()
        1
        """
        sent_s, end_s = np.sort(self["sent_s"]), np.sort(self["end_s"])  # nan sorts last
        counts: Numbers = np.searchsorted(sent_s, at_s, side="right") - np.searchsorted(end_s, at_s, side="right")
        return counts


@dataclass(frozen=True, slots=True, eq=False)
class AttemptSelection(_Selection):
    """Attempts as their backends observed them, in order of arrival.

    >>> from harness.evidence.example import example_history
    >>> attempts = example_history().all_attempts()
    >>> attempts.on("gpu-0")["start_s"].round(3).tolist()
    [0.0, 0.2]
    """

    @property
    def table(self) -> Rows:
        """All attempts of the history."""
        return self.tables.attempts

    # --- conditions ---------------------------------------------------------------------------------------

    def on(self, *backends: str | int) -> AttemptSelection:
        """Those at one of these backends, given by name or number. KeyError for an unknown name."""
        return self.where(np.isin(self["backend"], [self.tables.backend_number(item) for item in backends]))

    def started_between(self, start_s: float, end_s: float) -> AttemptSelection:
        """Those that reached their backend in [start_s, end_s)."""
        return self.where((self["start_s"] >= start_s) & (self["start_s"] < end_s))

    def good(self) -> AttemptSelection:
        """Those with a complete answer and a 2xx status."""
        status = self["status"]
        return self.where((self["ending"] == Ending.ANSWERED) & (status >= 200) & (status < 300))

    def failed(self) -> AttemptSelection:
        """Those that ended in a backend error: a status of 500 or more, or a connection that the backend cut."""
        return self.where((self["status"] >= 500) | (self["ending"] == Ending.CUT))

    def dropped(self) -> AttemptSelection:
        """Those whose backend closed the connection before any answer: a connection failure for the balancer."""
        return self.where((self["ending"] == Ending.CUT) & (self["status"] == 0))

    def broken_off(self) -> AttemptSelection:
        """Those whose backend closed the connection during its answer."""
        return self.where((self["ending"] == Ending.CUT) & (self["status"] != 0))

    def cancelled(self) -> AttemptSelection:
        """Those that ended because the balancer closed the connection, for whatever reason."""
        return self.where(self["ending"] == Ending.CLIENT_GONE)

    def given_up_by_balancer(self) -> AttemptSelection:
        """Those cancelled before any answer."""
        return self.cancelled().where(self.cancelled()["status"] == 0)

    def unfinished(self) -> AttemptSelection:
        """Those that had not ended at the end of the run.

        >>> len(attempts.unfinished())
        0
        """
        return self.where(self["ending"] == Ending.OPEN)

    def first(self) -> AttemptSelection:
        """The first attempts of their requests."""
        return self.where(self.turns() == 0)

    def later(self) -> AttemptSelection:
        """Retries and hedges: every attempt of a request but its first."""
        return self.where(self.turns() > 0)

    def hedges(self) -> AttemptSelection:
        """Later attempts that began while an earlier attempt of their request had not ended."""
        latest_s: dict[int, float] = {}
        beside = np.zeros(len(self.table), dtype=bool)
        for row, (request, start_s, end_s) in enumerate(self.table[["request", "start_s", "end_s"]].tolist()):
            if request >= 0:
                beside[row] = latest_s.get(request, -np.inf) > start_s
                latest_s[request] = max(latest_s.get(request, -np.inf), np.inf if np.isnan(end_s) else end_s)
        return self.where(beside[self.rows])

    def followed(self) -> AttemptSelection:
        """Those after which their request had another attempt."""
        return self.where(self.followers() != UNSEEN)

    # --- answers ------------------------------------------------------------------------------------------

    def of_request(self, column: str) -> Any:
        """A column of each attempt's request.

        >>> attempts.of_request("key").tolist()
        [0, 1, 0]
        """
        return self.tables.requests[column][self["request"]]

    def requests(self) -> RequestSelection:
        """The requests of these attempts, each once."""
        return RequestSelection(self.tables, np.unique(self["request"]).astype(np.int64))

    def turns(self) -> Numbers:
        """For each attempt the number of earlier attempts of its request."""
        return self.tables.turns()[self.rows]

    def next_attempts(self) -> AttemptSelection:
        """The attempt that followed each of these, in their order; none for those that were not followed.

        >>> len(attempts.next_attempts())
        0
        """
        followers = self.followers()
        return replace(self, rows=followers[followers != UNSEEN])

    def followers(self) -> Numbers:
        """For each attempt the row of its request's next attempt, UNSEEN (-1) where there is none."""
        return self.tables.followers()[self.rows]

    def in_flight_at(self, at_s: Times | float) -> Numbers:
        """Number of these attempts that are at their backends, at each of the given times.

        >>> attempts.in_flight_at(np.array([0.02, 0.07])).tolist()
        [1, 0]
        """
        start_s, end_s = np.sort(self["start_s"]), np.sort(self["end_s"])  # nan, not ended, sorts last
        counts: Numbers = np.searchsorted(start_s, at_s, side="right") - np.searchsorted(end_s, at_s, side="right")
        return counts

    def silences(self, start_s: float, end_s: float, at_least_s: float) -> list[tuple[float, float]]:
        """Times without an arrival within [start_s, end_s], each `at_least_s` long, as pairs of start and end.

        >>> [(round(start_s, 2), round(end_s, 2)) for start_s, end_s in attempts.silences(0.0, 1.0, at_least_s=0.5)]
        [(0.2, 1.0)]
        """
        inside = self["start_s"][(self["start_s"] >= start_s) & (self["start_s"] <= end_s)]
        points = np.concatenate([[start_s], np.sort(inside), [end_s]])
        longest = np.flatnonzero(np.diff(points) >= at_least_s)
        return [(float(points[index]), float(points[index + 1])) for index in longest]

    def longest_silence_s(self, start_s: float, end_s: float) -> float:
        """The longest time without an arrival within [start_s, end_s]."""
        return max(until_s - from_s for from_s, until_s in self.silences(start_s, end_s, at_least_s=0.0))
