"""Events and actions of a balancer without I/O, and the three methods of a policy.

A gateway receives events (`handle(event, now_s)`) and returns actions. Two drivers carry the actions out, the
simulator's and the HTTP driver of the live world, so the same code is judged in both. Rules of the drivers:

- Every `Send` is followed by exactly one `AttemptEnded`, however the attempt ended, also after `Cancel`.
- Events are queued; `handle` is never re-entered. The gateway chooses the ids of attempts, timers and checks; the
  driver may still deliver events for ids that are over, and gateways ignore them.
- After `Commit` the driver streams the answer to the client without further actions. If the backend then breaks off,
  the driver breaks the client's transfer too, so that a truncated answer never looks complete.
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
    """The parts of a client's request that a balancer may base decisions on.

    `connection`: number of the client's connection. `key`: the affinity key, read from where the target claims that it
    travels (another header, a cookie, a field of the body or the beginning of the prompt); equal to `model` or
    `session` if the target claims one of those.
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
    """A backend as the balancer knows it: configuration (id, address, weight) and its last load report (the rest).

    `loaded_models`, memory in MB and the queue figures are from the last load report; empty or 0 before the first.
    `health_score`, 0 to 1, is not part of a report: the bare gateway computes it for its policy (see
    harness.balancer.health.health_score) from answers, reports and its own requests in flight.
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
    """A clock for balancers: calling it returns the current time of the world, in seconds."""

    __slots__ = ("now_s",)

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


# --- events -----------------------------------------------------------------------------------------------


@fast_dataclass
class RequestArrived:
    """A client's request was received completely, head and body."""

    request: Request


@fast_dataclass
class ResponseHead:
    """A backend answered with a status; its body is held back until the attempt is committed or cancelled.

    `retry_after_s`: its Retry-After header, if that is a number of seconds.
    """

    attempt_id: int
    status: int
    retry_after_s: float | None = None


@fast_dataclass
class FirstByte:
    """The first byte of an attempt's body was received, or its end if it is empty. Follows `ResponseHead`."""

    attempt_id: int


@fast_dataclass
class AttemptEnded:
    """An attempt is over. `error`: None (complete answer), refused, reset, timeout or aborted (cancelled)."""

    attempt_id: int
    error: str | None


@fast_dataclass
class ClientGone:
    """The client of a request disconnected before its answer was complete."""

    request_id: int


@fast_dataclass
class HealthCheckResult:
    """Result of a health check: `ok` if the answer met `SendHealthCheck.expected`; `report` if the backend sent one."""

    check_id: int
    backend_id: str
    ok: bool
    report: Backend | None = None


@fast_dataclass
class MembershipChanged:
    """The complete list of backends in configuration order, sent at the start and after every change."""

    backends: tuple[Backend, ...]


@fast_dataclass
class TimerFired:
    """A timer set by the gateway is due."""

    timer_id: int


@fast_dataclass
class ShutdownAsked:
    """The process shall stop: finish the requests in flight, then return `Exit`."""


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
    """Send a request to a backend as a new attempt, which ends with `timeout` if it takes longer than `timeout_s`."""

    attempt_id: int
    request_id: int
    backend_id: str
    timeout_s: float


@fast_dataclass
class Cancel:
    """Abort an attempt and close its connection."""

    attempt_id: int


@fast_dataclass
class Commit:
    """Answer a request with the status and body of an attempt."""

    request_id: int
    attempt_id: int


@fast_dataclass
class Reply:
    """Answer a request with a status generated by the balancer; `retry_after_s` becomes a Retry-After header."""

    request_id: int
    status: int
    reason: str
    retry_after_s: float | None = None


@fast_dataclass
class SetTimer:
    """Fire a timer at `at_s` (absolute). Setting it again moves it."""

    timer_id: int
    at_s: float


@fast_dataclass
class CancelTimer:
    """Cancel a timer."""

    timer_id: int


@fast_dataclass
class SendHealthCheck:
    """Request a backend's health route. The result is ok if the answer meets `expected` within `timeout_s`."""

    check_id: int
    backend_id: str
    timeout_s: float
    expected: ExpectedAnswer = STATUS_200


@fast_dataclass
class BackendDrained:
    """A backend that left has no more attempts of this gateway in flight."""

    backend_id: str


@fast_dataclass
class Exit:
    """Nothing is in flight; the process may end."""


Action = Send | Cancel | Commit | Reply | SetTimer | CancelTimer | SendHealthCheck | BackendDrained | Exit


class Gateway(Protocol):
    """A complete balancer without I/O.

    A minimal one sends each request to the first backend and commits the answer:

    >>> class FirstBackend:
    ...     def __init__(self) -> None:
    ...         self.backends: tuple[Backend, ...] = ()
    ...         self.request_of: dict[int, int] = {}
    ...
    ...     def handle(self, event: Event, now_s: float) -> list[Action]:
    ...         match event:
    ...             case MembershipChanged(backends):
    ...                 self.backends = backends
    ...             case RequestArrived(request) if not self.backends:
    ...                 return [Reply(request.id, 503, "no backends")]
    ...             case RequestArrived(request):
    ...                 attempt_id = len(self.request_of) + 1
    ...                 self.request_of[attempt_id] = request.id
    ...                 return [Send(attempt_id, request.id, self.backends[0].id, timeout_s=2.0)]
    ...             case ResponseHead(attempt_id):
    ...                 return [Commit(self.request_of[attempt_id], attempt_id)]
    ...         return []
    >>> gateway: Gateway = FirstBackend()
    >>> gateway.handle(MembershipChanged((Backend("gpu-0", "127.0.0.1:9001"),)), 0.0)
    []
    >>> gateway.handle(RequestArrived(Request(7, 1, Kind.INFERENCE, "POST", "llama")), 0.1)
    [Send(attempt_id=1, request_id=7, backend_id='gpu-0', timeout_s=2.0)]
    >>> gateway.handle(ResponseHead(1, 200), 0.2)
    [Commit(request_id=7, attempt_id=1)]

    A complete one also returns `Reply` when an attempt ends without a head, `Cancel` after `ClientGone`, and `Exit`
    when nothing is in flight after `ShutdownAsked`.
    """

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Process `event`, which occurred at `now_s` (seconds, monotonic); returns the actions to carry out."""
        ...


@dataclass(frozen=True, slots=True)
class MemberReport:
    """Current state of a member, for display; fields are None if the gateway has no such mechanism.

    `ready`: may receive traffic. `breaker`: closed, open or half-open. `score`: health score, 0 to 1.
    """

    ready: bool
    breaker: str | None = None
    score: float | None = None


@runtime_checkable
class ReportsMembers(Protocol):
    """A gateway that reports the state of its members."""

    def condition(self, backend_id: str, now_s: float) -> MemberReport | None:
        """State of a member; None for other ids. Changes no state."""
        ...


class Policy(Protocol):
    """Backend selection alone: the three methods that a user's class needs to be a target.

    >>> class RoundRobin:
    ...     def __init__(self) -> None:
    ...         self.backends: Sequence[Backend] = ()
    ...         self.picks = 0
    ...
    ...     def pick(self, request: Request) -> str | None:
    ...         self.picks += 1
    ...         return self.backends[self.picks % len(self.backends)].id if self.backends else None
    ...
    ...     def update_backends(self, backends: Sequence[Backend]) -> None:
    ...         self.backends = [backend for backend in backends if backend.ready]
    ...
    ...     def report_result(self, backend_id: str, latency_s: float, error: str | None) -> None:
    ...         pass
    >>> policy: Policy = RoundRobin()
    >>> policy.update_backends([Backend("gpu-0", "127.0.0.1:9001"), Backend("gpu-1", "127.0.0.1:9002")])
    >>> [policy.pick(Request(number, 1, Kind.INFERENCE, "POST", "llama")) for number in range(4)]
    ['gpu-1', 'gpu-0', 'gpu-1', 'gpu-0']
    >>> policy.report_result("gpu-1", latency_s=0.2, error=None)
    """

    def pick(self, request: Request) -> str | None:
        """Id of the backend for `request`, or None to answer 503. Any value that is no member's id ends the run."""
        ...

    def update_backends(self, backends: Sequence[Backend]) -> None:
        """Receives all backends: at the start, at each membership change and at each load report."""
        ...

    def report_result(self, backend_id: str, latency_s: float, error: str | None) -> None:
        """Receives the result of each pick once. `error`: None, refused, reset, timeout, aborted or status:NNN."""
        ...
