"""A worker's shard of a job and its state: the common part of both engines.

Pure except for reading the limit of open files. No gevent, asyncio or clock.
"""

from __future__ import annotations

import resource

from harness.load.job import LoadJob
from harness.load.results.answer import ExchangeResult, Ledger
from harness.load.wire import WireRequest, forms_of, request_of
from harness.scenario.arrivals import Arrival, draw, shard_of
from harness.scenario.closed_loop import VirtualUsers

SPARE_S = 2.0
"""Time in seconds from the last possible timeout to the forced end of a job."""

MOST_IN_FLIGHT = 10_000
"""Cap on requests in flight. Arrivals beyond it are never sent, and recorded as NOT_SENT: with 11,000 open connections
the generator completed 71 % of a load, and the latencies were its own. The load stays open-loop."""

SPARE_DESCRIPTORS = 100


class Shard:
    """The state of one job. Arrivals and virtual users are drawn here; an engine reports sends and results.

    `lasts_s` is the maximum length from second 0. `dropped` counts arrivals that were not sent because too many
    requests were in flight, `leaving` has the numbers of sent requests whose clients abort before their timeout.
    ValueError for an impossible job.
    """

    def __init__(self, job: LoadJob) -> None:
        arrivals = draw(job.load, job.seed)
        self.job = job
        self.arrivals = shard_of(arrivals, job.worker, job.workers)
        self.virtual_users = VirtualUsers(job.load, job.seed, len(arrivals), job.worker, job.workers)
        self.ledger = Ledger(job.start_s, job.backends, open_ended=not job.backends)
        self.dropped = 0
        self.leaving: set[int] = set()
        self._sent: set[int] = set()
        self._in_flight = 0
        self._complete = False
        self._most = most_in_flight()
        users = len(self.virtual_users.users)
        if users > self._most:
            raise ValueError(f"{users} virtual users: this process can open at most {self._most} connections")
        requested = [*self.arrivals, *self.virtual_users.requests]
        for arrival in forms_of(requested):
            self.request(arrival)  # one of each form, so that an impossible job fails before any request is sent
        last_s = max((arrival.at_s for arrival in self.arrivals), default=0.0)
        closed_loops_end_s = max((stream.end_s for stream in job.load.streams if stream.chats), default=0.0)
        longest_s = max((arrival.timeout_s for arrival in requested), default=0.0)
        self.lasts_s = max(last_s, closed_loops_end_s) + longest_s + SPARE_S

    @property
    def ends_s(self) -> float:
        """Forced end of the job on CLOCK_MONOTONIC, even with requests in flight."""
        return self.ledger.start_s + self.lasts_s

    @property
    def sent(self) -> int:
        """Number of requests sent so far."""
        return len(self._sent)

    @property
    def full(self) -> bool:
        """Whether the cap of requests in flight is reached."""
        return self._in_flight >= self._most

    def request(self, arrival: Arrival) -> WireRequest:
        """The HTTP request of `arrival`. ValueError if there is none (harness.load.wire.request_of)."""
        job = self.job
        return request_of(arrival, job.load.key_carrier, job.seed, job.nonce, job.protocol)

    def request_sent(self, arrival: Arrival) -> None:
        """Count the request of `arrival` as sent and in flight. An engine calls it just before the exchange."""
        self._sent.add(arrival.number)
        self._in_flight += 1
        if arrival.patience_s < arrival.timeout_s:
            self.leaving.add(arrival.number)

    def request_ended(self, arrival: Arrival, own: str, answer: ExchangeResult, earliest_s: float) -> None:
        """Record the result of a request counted by `request_sent`.

        `own` is its tag. `earliest_s` is its earliest possible send time, from which the generator delay counts.
        """
        self._in_flight -= 1
        self.ledger.delays_s.append(answer.sent_s - earliest_s)
        self.ledger.add(arrival, own, answer)

    def add_unsent(self) -> None:
        """Record every arrival that was not sent. Call it after the last send; further calls have no effect."""
        if not self._complete:
            self._complete = True
            self.ledger.add_unsent(arrival for arrival in self.arrivals if arrival.number not in self._sent)


def most_in_flight() -> int:
    """The cap on requests in flight: `MOST_IN_FLIGHT`, or less if the limit of open files is lower."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_IN_FLIGHT
    return max(1, min(MOST_IN_FLIGHT, soft - SPARE_DESCRIPTORS))
