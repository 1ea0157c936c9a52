"""A bare gateway around a user's policy: one attempt per request, no retries, hedges, breakers or ejection.

Only the policy's own decisions are judged that way. `/health` is polled only to fill the backend snapshots passed to
the policy. Their health scores are computed here with the reference's formula; the policy is free to ignore them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.balancer.core.exchange import ERROR_STATUS
from harness.balancer.health.breaker import Settled
from harness.balancer.health.health_score import HealthScore, HealthSettings
from harness.gateway.protocol import (
    Action,
    AttemptEnded,
    Backend,
    Cancel,
    ClientGone,
    Commit,
    Event,
    Exit,
    HealthCheckResult,
    MembershipChanged,
    Policy,
    Reply,
    Request,
    RequestArrived,
    ResponseHead,
    Send,
    SendHealthCheck,
    SetTimer,
    ShutdownAsked,
    TimerFired,
)

POLL_TIMER = 1


def settled_from_error(error: str | None) -> Settled:
    """Outcome of an attempt for its backend's health. ValueError for an `error` unknown to the Policy protocol."""
    if error is None:
        return Settled.OK
    if error == "aborted":
        return Settled.ABORTED
    if error in ("refused", "reset", "timeout"):
        return Settled.FAILED
    status = error.removeprefix("status:")
    if status == error or not status.isdecimal():
        raise ValueError(f"error {error!r}: expected None, refused, reset, timeout, aborted or status:NNN")
    return Settled.FAILED if int(status) >= 500 else Settled.NEUTRAL


class WrongPickError(Exception):
    """A policy picked a value that is no member's id; an error answer to the client would hide the defect."""


@dataclass(slots=True)
class _Pick:
    request_id: int
    backend: str
    started_s: float
    status: int = 0
    committed: bool = False


class BareGateway:
    """Runs `policy` behind the protocol. Polls health every `poll_s`; attempts time out after `attempt_timeout_s`."""

    def __init__(self, policy: Policy, attempt_timeout_s: float = 10.0, poll_s: float = 0.5) -> None:
        self._policy = policy
        self._attempt_timeout_s = attempt_timeout_s
        self._poll_s = poll_s
        self._backends: dict[str, Backend] = {}
        self._health = HealthScore(HealthSettings())
        self._picks: dict[int, _Pick] = {}
        self._attempt_of: dict[int, int] = {}
        self._next_id = 0
        self._stopping = False
        self._polling = False

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight."""
        return not (self._picks or self._attempt_of)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """See harness.gateway.protocol.Gateway."""
        match event:
            case RequestArrived(request):
                return self._request(request, now_s)
            case ResponseHead(attempt_id, status):
                return self._head(attempt_id, status)
            case AttemptEnded(attempt_id, error):
                return self._ended(attempt_id, error, now_s)
            case ClientGone(request_id):
                gone = self._attempt_of.pop(request_id, None)
                return [] if gone is None else [Cancel(gone)]
            case MembershipChanged(backends):
                return self._membership(backends, now_s)
            case TimerFired(timer_id) if timer_id == POLL_TIMER:
                return self._poll(now_s)
            case HealthCheckResult(_, backend_id, ok, report):
                self._reported(backend_id, ok, report, now_s)
                return []
            case ShutdownAsked():
                self._stopping = True
                return [Exit()] if self.idle else []
            case _:
                return []

    def _membership(self, backends: tuple[Backend, ...], now_s: float) -> list[Action]:
        self._backends = {
            backend.id: replace(self._backends.get(backend.id, backend), address=backend.address, weight=backend.weight)
            for backend in backends
        }
        self._health.keep_only(frozenset(self._backends))
        self._update_policy(now_s)
        if self._polling:
            return []
        self._polling = True
        return [SetTimer(POLL_TIMER, now_s)]

    def _poll(self, now_s: float) -> list[Action]:
        actions: list[Action] = [SetTimer(POLL_TIMER, now_s + self._poll_s)]
        for name in self._backends:
            self._next_id += 1
            actions.append(SendHealthCheck(self._next_id, name, self._poll_s))
        return actions

    def _reported(self, name: str, ok: bool, report: Backend | None, now_s: float) -> None:
        known = self._backends.get(name)
        if known is None:
            return
        figures = known
        if report is not None:
            figures = replace(report, id=name, address=known.address, weight=known.weight)
            self._health.report(name, report.memory_total_mb, report.memory_used_mb, report.memory_evictable_mb, now_s)
        self._backends[name] = replace(figures, ready=ok)
        self._update_policy(now_s)

    def _update_policy(self, now_s: float) -> None:
        in_flight = dict.fromkeys(self._backends, 0)
        for pick in self._picks.values():
            if pick.backend in in_flight:
                in_flight[pick.backend] += 1
        for name, count in in_flight.items():
            self._health.connections(name, count)
        self._policy.update_backends(
            tuple(
                replace(backend, in_flight=in_flight[name], health_score=self._health.score(name, now_s))
                for name, backend in self._backends.items()
            )
        )

    def _request(self, request: Request, now_s: float) -> list[Action]:
        backend = self._policy.pick(request)
        if backend is None:
            return [Reply(request.id, 503, "the policy picked no backend")]
        # The policy received every change before this pick, so the wrong pick cannot be due to a race.
        if not isinstance(backend, str) or backend not in self._backends:
            members = ", ".join(self._backends) or "none"
            policy = type(self._policy).__name__
            raise WrongPickError(f"{policy}.pick returned {backend!r}, which is no member; members: {members}")
        self._next_id += 1
        self._picks[self._next_id] = _Pick(request.id, backend, now_s)
        self._attempt_of[request.id] = self._next_id
        return [Send(self._next_id, request.id, backend, self._attempt_timeout_s)]

    def _head(self, attempt_id: int, status: int) -> list[Action]:
        pick = self._picks.get(attempt_id)
        if pick is None or self._attempt_of.get(pick.request_id) != attempt_id:
            return []
        pick.status = status
        pick.committed = True
        return [Commit(pick.request_id, attempt_id)]

    def _ended(self, attempt_id: int, error: str | None, now_s: float) -> list[Action]:
        pick = self._picks.pop(attempt_id, None)
        if pick is None:
            return []
        client_waits = self._attempt_of.pop(pick.request_id, None) is not None
        reported_error = f"status:{pick.status}" if error is None and pick.status >= 400 else error
        latency_s = now_s - pick.started_s
        settled = settled_from_error(reported_error)
        if settled in (Settled.OK, Settled.FAILED):
            self._health.settle(pick.backend, settled is Settled.OK, latency_s, now_s)
        self._policy.report_result(pick.backend, latency_s, reported_error)
        actions: list[Action] = []
        if client_waits and not pick.committed and error is not None:
            actions.append(Reply(pick.request_id, ERROR_STATUS[error], f"attempt at {pick.backend}: {error}"))
        if self._stopping and self.idle:
            actions.append(Exit())
        return actions
