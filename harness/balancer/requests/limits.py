"""Rate and concurrency limits, and the bounded queue in front of them.

**Buckets.** A token bucket polices: what finds too little in it is refused with 429 at once. A leaky bucket shapes:
what comes too early waits in the queue, and requests leave one after the other at its rate, without bursts. Both are
kept as the one time at which the bucket would be as it was at first, so there is no level to refill: asking changes
nothing, however often (seen broken: svix/diom#115), and nothing is earned twice (matrix-org/synapse#13018). Each limit
has a bucket of its own (BerriAI/litellm#24677). A token bucket lets through burst + rate t at most in any time t.
Source: the generic cell rate algorithm, ITU-T I.371.

**Admission.** All limits are tested before any is debited, and test and debit are one step (seen broken:
BerriAI/litellm#18730). What waits has debited nothing yet; it does when it is admitted. The queue is ordered by urgency
and then by arrival, and nobody overtakes, so that large requests aren't starved by small ones. When it is full a
newcomer takes the place of the youngest of the lowest urgency, if that is lower than its own; else it is refused. Nor
is anyone policed in favour of one that waits with less urgency. What is gone before its turn is never admitted.

Overflow of a rate is 429, of concurrency or the queue 503, both with a time after which to try again (RFC 6585, RFC
9110); a request that no waiting would get through its token bucket is 413 and has none.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

URGENCIES = ("critical", "high", "normal")
"""In the order of the queue; what is none of these counts as normal."""


@dataclass(frozen=True, slots=True)
class BucketSettings:
    """A rate per second, in requests or model tokens. `burst` (same unit) is of a token bucket alone."""

    rate_per_s: float
    burst: float = 1.0
    kind: Literal["token", "leaky"] = "token"

    def __post_init__(self) -> None:
        if not (self.rate_per_s > 0 and self.burst > 0):
            raise ValueError(f"rate_per_s {self.rate_per_s} and burst {self.burst}: expected above 0")
        if self.kind not in ("token", "leaky"):
            raise ValueError(f"kind {self.kind!r}: expected token or leaky")


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """What limits requests; None is no limit.

    `requests` and `tokens`: rates of requests and of model tokens. `concurrency`: requests admitted and not ended.
    `queue`: most that may wait. `retry_after_s`: what a 503 tells.
    """

    requests: BucketSettings | None = None
    tokens: BucketSettings | None = None
    concurrency: int | None = None
    queue: int = 0
    retry_after_s: float = 1.0

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"concurrency {self.concurrency}: expected 1 or more, or none")
        if self.queue < 0 or not self.retry_after_s > 0:
            raise ValueError(f"queue {self.queue} and retry_after_s {self.retry_after_s}: expected 0 or more, above 0")


class Bucket:
    """One rate limit; see the module. Full (or, if leaky, free) at first."""

    def __init__(self, settings: BucketSettings) -> None:
        self._rate_per_s = settings.rate_per_s
        self._burst = settings.burst
        self._full_s = -math.inf
        self.polices = settings.kind == "token"
        """Whether what comes too early is refused, rather than made to wait."""

    def fits(self, amount: float) -> bool:
        """Whether `amount` could ever pass."""
        return not self.polices or amount <= self._burst

    def ready_s(self, amount: float, ahead: float = 0.0) -> float:
        """The time from which `amount` passes, once an amount of `ahead` has gone before; it may be long past."""
        lacking = ahead + amount - self._burst if self.polices else ahead
        return self._full_s + lacking / self._rate_per_s

    def take(self, amount: float, now_s: float) -> None:
        """Debit `amount`, at or after its `ready_s`."""
        self._full_s = max(self._full_s, now_s) + amount / self._rate_per_s


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request may go now."""


ADMITTED = Admitted()


@dataclass(frozen=True, slots=True)
class Rejected:
    """Answer the request with `status`; `retry_after_s` (not rounded) is None if trying again is of no use."""

    status: int
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits. `shed`: the one that had to make room for it and is to be answered with `refused`."""

    shed: int | None = None
    refused: Rejected | None = None


class Admission:
    """Who may go, who waits and who is refused. Times are seconds on the caller's clock, which never goes back."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._settings = settings
        self._by_request = None if settings.requests is None else Bucket(settings.requests)
        self._by_token = None if settings.tokens is None else Bucket(settings.tokens)
        self._running: set[int] = set()
        self._queues: dict[str, OrderedDict[int, int]] = {urgency: OrderedDict() for urgency in URGENCIES}
        """Requests that wait, with their tokens, by urgency, the oldest first."""
        self._queued = 0  # in all of them

    @property
    def running(self) -> frozenset[int]:
        """Requests admitted and not ended."""
        return frozenset(self._running)

    @property
    def waiting(self) -> tuple[int, ...]:
        """Requests that wait, in the order in which they will be admitted."""
        return tuple(request_id for urgency in URGENCIES for request_id in self._queues[urgency])

    def ask(self, request_id: int, urgency: str, tokens: int, now_s: float) -> Admitted | Queued | Rejected:
        """Ask for a request of `tokens` (0 or more) model tokens. ValueError for one that runs or waits already."""
        if tokens < 0:
            raise ValueError(f"request {request_id} with {tokens} tokens: expected 0 or more")
        if request_id in self._running or (self._queued and request_id in self.waiting):
            raise ValueError(f"request {request_id} was asked for and has not ended")
        ready_s = early_s = -math.inf
        for bucket, amount in self._buckets(tokens):
            if not bucket.fits(amount):
                return Rejected(413, None)
            bucket_s = bucket.ready_s(amount)
            ready_s = max(ready_s, bucket_s)
            if bucket.polices:
                early_s = max(early_s, bucket_s)
        urgency = urgency if urgency in self._queues else "normal"
        rank = URGENCIES.index(urgency)
        if early_s > now_s and not self._waits(URGENCIES[rank + 1 :]):
            return Rejected(429, early_s - now_s)
        if ready_s <= now_s and self._has_place() and not self._waits(URGENCIES[: rank + 1]):
            self._admit(request_id, tokens, now_s)
            return ADMITTED
        return self._enqueue(request_id, urgency, tokens, now_s)

    def ended(self, request_id: int, now_s: float) -> list[int]:
        """An admitted request is over, however it ended. Those that are admitted now, in order."""
        self._running.discard(request_id)
        return self.due(now_s)

    def gone(self, request_id: int, now_s: float) -> list[int]:
        """The client of a request is gone: it waits no more. Those that are admitted now, in order.

        An admitted request keeps its place until `ended`, since its backend may be at work on it still.
        """
        for queue in self._queues.values():
            self._queued -= queue.pop(request_id, None) is not None
        return self.due(now_s)

    def due(self, now_s: float) -> list[int]:
        """Those that are admitted now because time has passed, in order; to be called at `next_s`.

        And before an `ask`, if that is past: those that wait come first.
        """
        admitted = []
        while (head := self._head()) is not None:
            request_id, queue = head
            if not self._may_go(queue[request_id], now_s):
                break
            self._admit(request_id, queue.pop(request_id), now_s)
            self._queued -= 1
            admitted.append(request_id)
        return admitted

    def next_s(self, now_s: float) -> float | None:
        """When time alone admits the next one, now at the earliest; None if nothing waits, or all for another's end."""
        head = self._head()
        if head is None or not self._has_place():
            return None
        request_id, queue = head
        return max([now_s, *(bucket.ready_s(amount) for bucket, amount in self._buckets(queue[request_id]))])

    def _enqueue(self, request_id: int, urgency: str, tokens: int, now_s: float) -> Queued | Rejected:
        if self._queued < self._settings.queue:
            self._queues[urgency][request_id] = tokens
            self._queued += 1
            return Queued()
        lowest = next((other for other in reversed(URGENCIES) if self._queues[other]), urgency)
        if URGENCIES.index(lowest) <= URGENCIES.index(urgency):
            return self._overflow(tokens, now_s)
        shed, shed_tokens = self._queues[lowest].popitem()
        self._queues[urgency][request_id] = tokens
        return Queued(shed, self._overflow(shed_tokens, now_s))

    def _overflow(self, tokens: int, now_s: float) -> Rejected:
        """What to say to one for whom there is no room: a rate is to blame where there is a place to run."""
        if not self._has_place():
            return Rejected(503, self._settings.retry_after_s)
        waiting = [amount for queue in self._queues.values() for amount in queue.values()]
        ready_s = [-math.inf]
        if self._by_request is not None:
            ready_s.append(self._by_request.ready_s(1, ahead=len(waiting)))
        if self._by_token is not None:
            ready_s.append(self._by_token.ready_s(tokens, ahead=sum(waiting)))
        wait_s = max(ready_s) - now_s
        return Rejected(429, wait_s) if wait_s > 0 else Rejected(503, self._settings.retry_after_s)

    def _head(self) -> tuple[int, OrderedDict[int, int]] | None:
        if not self._queued:
            return None
        queue = next(self._queues[urgency] for urgency in URGENCIES if self._queues[urgency])
        return next(iter(queue)), queue

    def _waits(self, urgencies: tuple[str, ...]) -> bool:
        """Whether any request of these urgencies waits."""
        return self._queued > 0 and any(self._queues[urgency] for urgency in urgencies)

    def _has_place(self) -> bool:
        return self._settings.concurrency is None or len(self._running) < self._settings.concurrency

    def _may_go(self, tokens: int, now_s: float) -> bool:
        return self._has_place() and all(bucket.ready_s(amount) <= now_s for bucket, amount in self._buckets(tokens))

    def _admit(self, request_id: int, tokens: int, now_s: float) -> None:
        for bucket, amount in self._buckets(tokens):
            bucket.take(amount, now_s)
        self._running.add(request_id)

    def _buckets(self, tokens: int) -> list[tuple[Bucket, float]]:
        buckets: list[tuple[Bucket, float]] = []
        if self._by_request is not None:
            buckets.append((self._by_request, 1.0))
        if self._by_token is not None:
            buckets.append((self._by_token, float(tokens)))
        return buckets
