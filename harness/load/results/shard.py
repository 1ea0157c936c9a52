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
"""Cap on requests under way. Arrivals beyond it are never sent, and recorded as NOT_SENT: a generator with 11,000 open
connections finished 71 % of its load and measured itself. The load stays open-loop."""

SPARE_DESCRIPTORS = 100


class Shard:
    """The state of one job. Arrivals and virtual users are drawn here; an engine reports sends and results.

    `lasts_s` is the maximum length from second 0. `dropped` counts arrivals that were not sent because too many
    requests were in flight, `leaving` has the numbers of sent requests whose clients abort before their timeout.
    ValueError for a job that cannot be played.
    """

    def __init__(self, job: LoadJob) -> None:
        everything = draw(job.load, job.seed)
        self.job = job
        self.arrivals = shard_of(everything, job.worker, job.workers)
        self.crowd = VirtualUsers(job.load, job.seed, len(everything), job.worker, job.workers)
        self.ledger = Ledger(job.start_s, job.backends, open_ended=not job.backends)
        self.dropped = 0
        self.leaving: set[int] = set()
        self._sent: set[int] = set()
        self._under_way = 0
        self._over = False
        self._most = most_in_flight()
        if len(self.crowd.users) > self._most:
            raise ValueError(f"{len(self.crowd.users)} chats: at most {self._most} connections may be open here")
        asked = [*self.arrivals, *self.crowd.requests]
        for one in forms_of(asked):
            self.request(one)  # one of each form, so that an impossible job fails before any request is sent
        last_s = max((arrival.at_s for arrival in self.arrivals), default=0.0)
        chats_end_s = max((stream.end_s for stream in job.load.streams if stream.chats), default=0.0)
        longest_s = max((arrival.timeout_s for arrival in asked), default=0.0)
        self.lasts_s = max(last_s, chats_end_s) + longest_s + SPARE_S

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
        return self._under_way >= self._most

    def request(self, arrival: Arrival) -> WireRequest:
        """What `arrival` says on the wire. ValueError if it cannot be said."""
        job = self.job
        return request_of(arrival, job.load.key_carrier, job.seed, job.nonce, job.protocol)

    def begun(self, arrival: Arrival) -> None:
        """It is sent now."""
        self._sent.add(arrival.number)
        self._under_way += 1
        if arrival.patience_s < arrival.timeout_s:
            self.leaving.add(arrival.number)

    def ended(self, arrival: Arrival, own: str, answer: ExchangeResult, could_s: float) -> None:
        """So it ended. `own` is its tag, `could_s` when it could have been sent at the earliest."""
        self._under_way -= 1
        self.ledger.lateness_s.append(answer.sent_s - could_s)
        self.ledger.add(arrival, own, answer)

    def add_unsent(self) -> None:
        """A record for every arrival that was not sent; nothing more will be. A second time does nothing."""
        if not self._over:
            self._over = True
            self.ledger.add_unsent(arrival for arrival in self.arrivals if arrival.number not in self._sent)


def most_in_flight() -> int:
    """The cap: `MOST_IN_FLIGHT`, or less where this process may not open so many connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_IN_FLIGHT
    return max(1, min(MOST_IN_FLIGHT, soft - SPARE_DESCRIPTORS))
