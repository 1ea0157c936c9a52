"""The reference balancer whole: picks, passive ejection and readiness as one state machine without I/O.

Inference goes to the owner of its model on the hash ring, updates to the less loaded of two. A backend that is not
ready or ejected is passed over, on the ring in favour of the next one. One attempt per request.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from harness.balancer.ejection import Ejection
from harness.balancer.protocol import (
    Action,
    AttemptEnded,
    Backend,
    Cancel,
    CheckUpResult,
    ClientGone,
    Commit,
    Event,
    Exit,
    MembershipChanged,
    Reply,
    Request,
    RequestArrived,
    ResponseHead,
    Send,
    ShutdownAsked,
    TimerFired,
)
from harness.balancer.readiness import Readiness
from harness.balancer.ring import HashRing
from harness.balancer.two_choices import less_loaded_of_two
from harness.model import Kind

ERROR_STATUS = {"refused": 502, "reset": 502, "timeout": 504, "aborted": 499}
"""Status of the balancer's own answer where an attempt brought none."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All numbers of the reference. `ejection` and `health_checks` are switches."""

    virtual_nodes: int = 150
    attempt_timeout_s: float = 10.0
    ejection: bool = True
    ejection_failures: int = 3
    ejection_open_s: float = 1.0
    health_checks: bool = True
    check_interval_s: float = 0.5
    check_timeout_s: float = 1.0
    check_unhealthy: int = 2
    check_healthy: int = 1


@dataclass(slots=True)
class _Attempt:
    """A ticket: made by a pick, settled exactly once, by its `AttemptEnded`."""

    request_id: int
    backend: str
    status: int = 0
    committed: bool = False
    current: bool = True
    """Whether its backend has been a member ever since; what is older says nothing about one that returned."""


class ReferenceGateway:
    """The reference balancer; see the module. Tables are empty when nothing is in flight."""

    def __init__(self, settings: Settings, generator: Random) -> None:
        self._settings = settings
        self._random = generator
        self._ring = HashRing(settings.virtual_nodes)
        self._members: tuple[str, ...] = ()
        self._in_flight: dict[str, int] = {}
        self._attempts: dict[int, _Attempt] = {}
        self._attempt_of: dict[int, int] = {}
        self._next_id = 0
        self._stopping = False
        self._ejection = Ejection(settings.ejection_failures, settings.ejection_open_s)
        self._readiness = Readiness(
            settings.check_interval_s,
            settings.check_timeout_s,
            settings.check_unhealthy,
            settings.check_healthy,
        )

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight and no table remembers a request."""
        return not (self._attempts or self._attempt_of or any(self._in_flight.values()))

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """See harness.balancer.protocol.Gateway."""
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
            case CheckUpResult(check_id, _, ok):
                self._readiness.result(check_id, ok)
                return []
            case MembershipChanged(backends):
                return self._membership(backends, now_s)
            case TimerFired(timer_id):
                return self._readiness.timer_fired(timer_id, now_s)
            case ShutdownAsked():
                self._stopping = True
                return [Exit()] if self.idle else []

    def _membership(self, backends: tuple[Backend, ...], now_s: float) -> list[Action]:
        self._members = tuple(backend.id for backend in backends)
        members = frozenset(self._members)
        self._ring.set_members(members)
        self._ejection.keep_only(members)
        for attempt in self._attempts.values():
            attempt.current &= attempt.backend in members
        for name in members:
            self._in_flight.setdefault(name, 0)
        for name in [name for name, count in self._in_flight.items() if name not in members and not count]:
            del self._in_flight[name]
        return self._readiness.set_backends(self._members, now_s) if self._settings.health_checks else []

    def _eligible(self, name: str, now_s: float) -> bool:
        if self._settings.health_checks and not self._readiness.ready(name):
            return False
        return not (self._settings.ejection and self._ejection.ejected(name, now_s))

    def _pick(self, request: Request, now_s: float) -> str | None:
        if request.kind is Kind.INFERENCE and request.model:
            return self._ring.owner(request.model, lambda name: self._eligible(name, now_s))
        candidates = [name for name in self._members if self._eligible(name, now_s)]
        return less_loaded_of_two(candidates, self._in_flight.__getitem__, self._random)

    def _request(self, request: Request, now_s: float) -> list[Action]:
        backend = self._pick(request, now_s)
        if backend is None:
            return [Reply(request.id, 503, "no backend is ready", retry_after_s=self._settings.ejection_open_s)]
        self._next_id += 1
        self._attempts[self._next_id] = _Attempt(request.id, backend)
        self._attempt_of[request.id] = self._next_id
        self._in_flight[backend] += 1
        return [Send(self._next_id, request.id, backend, self._settings.attempt_timeout_s)]

    def _head(self, attempt_id: int, status: int) -> list[Action]:
        attempt = self._attempts.get(attempt_id)
        if attempt is None or self._attempt_of.get(attempt.request_id) != attempt_id:
            return []
        attempt.status = status
        attempt.committed = True
        return [Commit(attempt.request_id, attempt_id)]

    def _ended(self, attempt_id: int, error: str | None, now_s: float) -> list[Action]:
        attempt = self._attempts.pop(attempt_id, None)
        if attempt is None:
            return []
        waiting = self._attempt_of.pop(attempt.request_id, None) is not None
        self._in_flight[attempt.backend] -= 1
        if attempt.backend not in self._members and not self._in_flight[attempt.backend]:
            del self._in_flight[attempt.backend]
        if self._settings.ejection and error != "aborted" and attempt.current:
            self._ejection.settle(attempt.backend, error is None and attempt.status < 500, now_s)
        actions: list[Action] = []
        if waiting and not attempt.committed and error is not None:
            reason = f"attempt at {attempt.backend}: {error}"
            actions.append(Reply(attempt.request_id, ERROR_STATUS[error], reason))
        if self._stopping and self.idle:
            actions.append(Exit())
        return actions
