"""Rate and concurrency limits, and the bounded queue in front of them.

**Buckets.** A token bucket polices: a request that finds too few tokens is rejected with 429 at once. A leaky bucket
shapes: a request that comes too early waits in the queue, and requests leave one by one at the bucket's rate, without
bursts. Both store a single time, at which the bucket would be back in its initial state, so there is no level to
refill: queries change no state, however frequent (seen broken: svix/diom#115), and no tokens are earned twice
(matrix-org/synapse#13018). Each limit has a separate bucket (BerriAI/litellm#24677). A token bucket passes at most
burst + rate t in any time t. Source: the generic cell rate algorithm, ITU-T I.371.

**Admission.** All limits are tested before any is debited, and test and debit are one step (seen broken:
BerriAI/litellm#18730). A queued request is debited when it is admitted. The queue is ordered by urgency, then by
arrival; there is no overtaking, so small requests do not starve large ones. If the queue is full, a new request
displaces the youngest request of the lowest queued urgency if that is lower than its own; else it is rejected. No
request is rejected by a token bucket while a request of lower urgency is queued. A request that leaves the queue is
never admitted.

Exceeding a rate is 429, exceeding concurrency or the queue is 503, both with a Retry-After time (RFC 6585, RFC 9110). A
request larger than its token bucket is 413, without a time, as waiting cannot help.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

URGENCIES = ("critical", "high", "normal")
"""In queue order; other values count as normal."""


@dataclass(frozen=True, slots=True)
class BucketSettings:
    """A rate per second, in requests or model tokens. `burst` (same unit) applies to token buckets only."""

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
    """Limits on requests; None is no limit.

    `requests` and `tokens`: rates of requests and of model tokens. `concurrency`: most requests admitted and not ended.
    `queue`: most requests waiting. `retry_after_s`: Retry-After of a 503.
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
    """One rate limit; see the module. Starts full (token bucket) or free (leaky bucket)."""

    def __init__(self, settings: BucketSettings) -> None:
        self._rate_per_s = settings.rate_per_s
        self._burst = settings.burst
        self._full_s = -math.inf
        self.rejects_early = settings.kind == "token"
        """Whether early requests are rejected rather than queued."""

    def fits(self, amount: float) -> bool:
        """Whether `amount` could ever pass."""
        return not self.rejects_early or amount <= self._burst

    def ready_s(self, amount: float, ahead: float = 0.0) -> float:
        """Earliest time at which `amount` passes after an amount of `ahead`; may lie in the past."""
        lacking = ahead + amount - self._burst if self.rejects_early else ahead
        return self._full_s + lacking / self._rate_per_s

    def take(self, amount: float, now_s: float) -> None:
        """Debit `amount`, at or after its `ready_s`."""
        self._full_s = max(self._full_s, now_s) + amount / self._rate_per_s


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request may start now."""


ADMITTED = Admitted()


@dataclass(frozen=True, slots=True)
class Rejected:
    """Decision to answer the request with `status`; `retry_after_s` (not rounded) is None if a retry cannot succeed."""

    status: int
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits. `shed`: id of a displaced request, which must be answered with `refused`."""

    shed: int | None = None
    refused: Rejected | None = None


class Admission:
    """Admits, queues and rejects requests. Times are seconds on the caller's monotonic clock."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._settings = settings
        self._by_request = None if settings.requests is None else Bucket(settings.requests)
        self._by_token = None if settings.tokens is None else Bucket(settings.tokens)
        self._running: set[int] = set()
        self._queues: dict[str, OrderedDict[int, int]] = {urgency: OrderedDict() for urgency in URGENCIES}
        """Tokens of each waiting request, by urgency, oldest request first."""
        self._queued = 0  # number of waiting requests

    @property
    def running(self) -> frozenset[int]:
        """Requests admitted and not ended."""
        return frozenset(self._running)

    @property
    def waiting(self) -> tuple[int, ...]:
        """Waiting requests in the order of their admission."""
        return tuple(request_id for urgency in URGENCIES for request_id in self._queues[urgency])

    def submit(self, request_id: int, urgency: str, tokens: int, now_s: float) -> Admitted | Queued | Rejected:
        """Decide on a request of `tokens` (0 or more) model tokens. ValueError if it runs or waits already."""
        if tokens < 0:
            raise ValueError(f"request {request_id} with {tokens} tokens: expected 0 or more")
        if request_id in self._running or (self._queued and request_id in self.waiting):
            raise ValueError(f"request {request_id} was submitted before and has not ended")
        ready_s = earliest_s = -math.inf
        for bucket, amount in self._buckets(tokens):
            if not bucket.fits(amount):
                return Rejected(413, None)
            bucket_s = bucket.ready_s(amount)
            ready_s = max(ready_s, bucket_s)
            if bucket.rejects_early:
                earliest_s = max(earliest_s, bucket_s)
        urgency = urgency if urgency in self._queues else "normal"
        rank = URGENCIES.index(urgency)
        if earliest_s > now_s and not self._any_waiting(URGENCIES[rank + 1 :]):
            return Rejected(429, earliest_s - now_s)
        if ready_s <= now_s and self._has_slot() and not self._any_waiting(URGENCIES[: rank + 1]):
            self._admit(request_id, tokens, now_s)
            return ADMITTED
        return self._enqueue(request_id, urgency, tokens, now_s)

    def ended(self, request_id: int, now_s: float) -> list[int]:
        """An admitted request ended, with any result. Returns the requests admitted now, in order."""
        self._running.discard(request_id)
        return self.due(now_s)

    def gone(self, request_id: int, now_s: float) -> list[int]:
        """A request's client left: remove it from the queue. Returns the requests admitted now, in order.

        An admitted request keeps its slot until `ended`, since its backend may still work on it.
        """
        for queue in self._queues.values():
            self._queued -= queue.pop(request_id, None) is not None
        return self.due(now_s)

    def due(self, now_s: float) -> list[int]:
        """Requests admitted now because time has passed, in order. To be called at `next_s`.

        Also to be called before `submit` if `next_s` has passed, as waiting requests come first.
        """
        admitted = []
        while (head := self._head()) is not None:
            request_id, queue = head
            if not self._may_start(queue[request_id], now_s):
                break
            self._admit(request_id, queue.pop(request_id), now_s)
            self._queued -= 1
            admitted.append(request_id)
        return admitted

    def next_s(self, now_s: float) -> float | None:
        """When the rates admit the next request, `now_s` at the earliest; None if none waits or all slots are taken."""
        head = self._head()
        if head is None or not self._has_slot():
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
        """Rejection if the queue is full: 429 if a slot is free and the rates require a wait, else 503."""
        if not self._has_slot():
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

    def _any_waiting(self, urgencies: tuple[str, ...]) -> bool:
        """Whether a request of these urgencies waits."""
        return self._queued > 0 and any(self._queues[urgency] for urgency in urgencies)

    def _has_slot(self) -> bool:
        return self._settings.concurrency is None or len(self._running) < self._settings.concurrency

    def _may_start(self, tokens: int, now_s: float) -> bool:
        return self._has_slot() and all(bucket.ready_s(amount) <= now_s for bucket, amount in self._buckets(tokens))

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
