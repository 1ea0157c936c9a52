"""State of one request inside the reference balancer: its attempts, timers and progress."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.balancer.health.breaker import Settled
from harness.balancer.members import Sent
from harness.gateway.protocol import Request

OK = Settled.OK

ERROR_STATUS = {"refused": 502, "reset": 502, "timeout": 504, "aborted": 499}
"""Status of the balancer's own answer by the error of an attempt that brought none."""

RETRY_AFTER_S = 1.0
"""Retry-After of the balancer's own 503 answers, in seconds."""


@dataclass(slots=True)
class Attempt:
    """One attempt. `status`: 0 until its head arrives. `hedge`: sent beside a slow attempt.

    `cut_short`: the request's deadline left it less time than the attempt timeout.
    """

    id: int
    request_id: int
    sent: Sent
    hedge: bool = False
    cut_short: bool = False
    status: int = 0
    retry_after_s: float | None = None
    committed: bool = False

    def settled(self, error: str | None) -> Settled:
        """Outcome for its backend's health. An error status counts even if the attempt was cancelled because of it."""
        if error is None and self.status < 400:
            return OK
        if error == "timeout" and self.cut_short and self.status < 500:
            return Settled.NEUTRAL  # caused by the request's deadline, not by a slow backend
        if self.status >= 500 or error in ("refused", "reset", "timeout"):
            return Settled.FAILED
        return Settled.NEUTRAL if error is None else Settled.ABORTED


@dataclass(slots=True)
class Exchange:
    """A client's request that is unanswered or whose answer is being transferred.

    `attempts`: attempts whose answer may still be committed. `in_flight`: number of attempts that have not ended.
    `sent`: number of attempts sent, without hedges. `timers`: ids of its timers by purpose. `retry_waits`: a retry was
    granted and waits in backoff.
    """

    request: Request
    arrived_s: float
    attempts: dict[int, Attempt] = field(default_factory=dict)
    tried: frozenset[str] = frozenset()
    sent: int = 0
    in_flight: int = 0
    admitted: bool = False
    answered: bool = False
    retry_waits: bool = False
    timers: dict[str, int] = field(default_factory=dict)
