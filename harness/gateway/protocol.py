"""Events and actions of a balancer without I/O, and the three methods of a policy.

A gateway is told what happened (`handle(event, now_s)`) and answers with what is to be done. Two shells carry that
out: the simulator's and the aiohttp one of the live world, so the very same code is judged in both. The shells' rules:

- Every `Send` is followed by exactly one `AttemptEnded`, however the attempt ended, also when it was cancelled.
- Events are queued, never re-entrant. Ids of attempts, timers and checks are the gateway's own; stale ones are ignored.
- After `Commit` the shell streams the answer to the client by itself; if the backend breaks off then, the shell breaks
  the client's transfer too, so that a cut answer is never taken for a whole one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from harness.gateway.expected_answer import STATUS_200, ExpectedAnswer
from harness.scenario.fast_dataclass import fast_dataclass
from harness.scenario.model import Kind


@fast_dataclass
class Request:
    """A client's request, as far as a balancer may decide on it. `connection` numbers the client's connection.

    `key` is the affinity key wherever the target claims that it travels: another header, a cookie, a field of the body
    or the beginning of the prompt. Where that is the model or the session, it equals `model` or `session`.
    """

    id: int
    connection: int
    kind: Kind
    method: str
    model: str
    session: str = ""
    urgency: str = "normal"
    prompt_tokens: int = 0
    payload_bytes: int = 0
    key: str = ""


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend as the balancer knows it: configured (id, address, weight) and last reported (the rest).

    `loaded_models`, memory in MB and the queue figures are from the last load report; empty or 0 before the first.
    `health_score`, 0 to 1, is no part of a report: the bare gateway works it out for the policy in it (see
    harness.balancer.health.health_score) from what it sees of answers, reports and its own requests in flight.
    """

    id: str
    address: str
    weight: float = 1.0
    ready: bool = True
    memory_total_mb: float = 0.0
    memory_used_mb: float = 0.0
    memory_evictable_mb: float = 0.0
    queue_depth: int = 0
    running: int = 0
    in_flight: int = 0
    pending_tokens: int = 0
    loaded_models: tuple[str, ...] = ()
    health_score: float = 1.0


class NowFunction:
    """A clock handed to code that asks for one: call it for the seconds of the world that it runs in."""

    __slots__ = ("now_s",)

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


# --- events -----------------------------------------------------------------------------------------------


@fast_dataclass
class RequestArrived:
    """A client's request is here, head and body."""

    request: Request


@fast_dataclass
class ResponseHead:
    """A backend answered with a status; the body waits until the attempt is committed or cancelled.

    `retry_after_s`: its Retry-After header, where that is a number of seconds.
    """

    attempt_id: int
    status: int
    retry_after_s: float | None = None


@fast_dataclass
class FirstByte:
    """The first byte of an attempt's body is here, or its end if it has none. Follows `ResponseHead`."""

    attempt_id: int


@fast_dataclass
class AttemptEnded:
    """An attempt is over. `error`: None (the answer came whole), refused, reset, timeout or aborted (cancelled)."""

    attempt_id: int
    error: str | None


@fast_dataclass
class ClientGone:
    """The client of a request left before its answer was complete."""

    request_id: int


@fast_dataclass
class HealthCheckResult:
    """A health check's answer: `ok` if it is as expected, with the backend's report of itself where it sent one."""

    check_id: int
    backend_id: str
    ok: bool
    report: Backend | None = None


@fast_dataclass
class MembershipChanged:
    """The list of backends, at the start and after every change, in the order of the configuration."""

    backends: tuple[Backend, ...]


@fast_dataclass
class TimerFired:
    """A timer that the gateway set is due."""

    timer_id: int


@fast_dataclass
class ShutdownAsked:
    """The process was asked to stop: finish what is in flight, then `Exit`."""


Event = (
    RequestArrived
    | ResponseHead
    | FirstByte
    | AttemptEnded
    | ClientGone
    | HealthCheckResult
    | MembershipChanged
    | TimerFired
    | ShutdownAsked
)


# --- actions ----------------------------------------------------------------------------------------------


@fast_dataclass
class Send:
    """Send a request to a backend as a new attempt; after `timeout_s` without its end it ends with `timeout`."""

    attempt_id: int
    request_id: int
    backend_id: str
    timeout_s: float


@fast_dataclass
class Cancel:
    """Give up an attempt: close its connection."""

    attempt_id: int


@fast_dataclass
class Commit:
    """Answer a request with what an attempt brings, status and body."""

    request_id: int
    attempt_id: int


@fast_dataclass
class Reply:
    """Answer a request with a status of the balancer's own; `retry_after_s` becomes a Retry-After header."""

    request_id: int
    status: int
    reason: str
    retry_after_s: float | None = None


@fast_dataclass
class SetTimer:
    """Fire a timer at `at_s` (absolute); setting it again moves it."""

    timer_id: int
    at_s: float


@fast_dataclass
class CancelTimer:
    """Forget a timer."""

    timer_id: int


@fast_dataclass
class SendHealthCheck:
    """Ask a backend's health route; without an answer as `expected` within `timeout_s` the result is not ok."""

    check_id: int
    backend_id: str
    timeout_s: float
    expected: ExpectedAnswer = STATUS_200


@fast_dataclass
class BackendDrained:
    """A backend that left has nothing of ours in flight any more."""

    backend_id: str


@fast_dataclass
class Exit:
    """Nothing is in flight any more: the process may end."""


Action = Send | Cancel | Commit | Reply | SetTimer | CancelTimer | SendHealthCheck | BackendDrained | Exit


class Gateway(Protocol):
    """A whole balancer without I/O."""

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """What to do about `event`, which happened at `now_s` (seconds on a clock that never goes back)."""
        ...


@dataclass(frozen=True, slots=True)
class MemberReport:
    """What a gateway knows of a member now, for people: None where it has no such mechanism.

    `ready`: may get traffic. `breaker`: closed, open or half-open. `score`: its health, 0 to 1.
    """

    ready: bool
    breaker: str | None = None
    score: float | None = None


@runtime_checkable
class ReportsMembers(Protocol):
    """A gateway that tells what it knows of its members."""

    def condition(self, backend_id: str, now_s: float) -> MemberReport | None:
        """What is known of a member; None of anybody else. Changes nothing."""
        ...


class Policy(Protocol):
    """The part of a balancer that picks: the three methods a stranger's class needs to be a target."""

    def pick(self, request: Request) -> str | None:
        """Id of the backend for `request`, or None (answered with 503). Anything but a member's id ends the run."""
        ...

    def update_backends(self, backends: Sequence[Backend]) -> None:
        """The backends as they are now: at the start, at each membership change and at each load report."""
        ...

    def report_result(self, backend_id: str, latency_s: float, error: str | None) -> None:
        """How an attempt went, once for each pick. `error`: None, refused, reset, timeout, aborted or status:NNN."""
        ...
