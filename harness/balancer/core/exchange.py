"""One request inside the reference balancer: its attempts, and what still may become of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.balancer.health.breaker import Settled
from harness.balancer.members import Sent
from harness.gateway.protocol import Request

OK = Settled.OK

ERROR_STATUS = {"refused": 502, "reset": 502, "timeout": 504, "aborted": 499}
"""Status of the balancer's own answer where an attempt brought none."""

RETRY_AFTER_S = 1.0
"""What the balancer's own 503 tells its client to wait."""


@dataclass(slots=True)
class Attempt:
    """One attempt; `status` 0 until its head is here. `hedge`: it joined one that was slow.

    `cut_short`: the request's deadline gave it less than the time of an attempt.
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
        """What the attempt says of its backend. An error status counts even if the attempt was cancelled for it."""
        if error is None and self.status < 400:
            return OK
        if error == "timeout" and self.cut_short and self.status < 500:
            return Settled.NEUTRAL  # our own deadline, not the backend's slowness
        if self.status >= 500 or error in ("refused", "reset", "timeout"):
            return Settled.FAILED
        return Settled.NEUTRAL if error is None else Settled.ABORTED


@dataclass(slots=True)
class Exchange:
    """A client's request that has no answer yet, or whose answer is on its way.

    `attempts` are those whose answer may become its own. `underway` counts all that have not ended, `sent` all that
    were ever sent, hedges aside. `begun` once it was admitted. `timers` are those that wait for it, by purpose;
    `retry_waits`: a retry was granted and waits in backoff.
    """

    request: Request
    arrived_s: float
    attempts: dict[int, Attempt] = field(default_factory=dict)
    tried: frozenset[str] = frozenset()
    sent: int = 0
    underway: int = 0
    begun: bool = False
    answered: bool = False
    retry_waits: bool = False
    timers: dict[str, int] = field(default_factory=dict)
