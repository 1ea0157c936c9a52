"""Minimal gateways for the tests of the driver, so that only the driver is tested."""

from __future__ import annotations

from dataclasses import dataclass

from harness.gateway.protocol import (
    Action,
    AttemptEnded,
    Cancel,
    ClientGone,
    Commit,
    Event,
    Exit,
    MembershipChanged,
    Reply,
    RequestArrived,
    ResponseHead,
    Send,
    ShutdownAsked,
)

STATUS = {"refused": 502, "reset": 502, "timeout": 504}


@dataclass(slots=True)
class _Attempt:
    request_id: int
    backend: str
    committed: bool = False
    wanted: bool = True


class Plain:
    """Sends every request once, to the first member, and commits at the head."""

    timeout_s = 60.0
    strict = False

    def __init__(self) -> None:
        self._members: tuple[str, ...] = ()
        self._failed: set[str] = set()
        self._attempts: dict[int, _Attempt] = {}
        self._next_id = 0
        self._stopping = False

    def handle(self, event: Event, now_s: float) -> list[Action]:
        match event:
            case MembershipChanged(backends=backends):
                self._members = tuple(backend.id for backend in backends)
                self._failed.clear()
            case RequestArrived(request=request):
                return [self._begun(request.id)]
            case ResponseHead(attempt_id=attempt_id):
                attempt = self._attempts[attempt_id]
                attempt.committed = True
                return [Commit(attempt.request_id, attempt_id)] if attempt.wanted else []
            case AttemptEnded(attempt_id=attempt_id, error=error):
                return self._ended(attempt_id, error)
            case ClientGone(request_id=request_id):
                mine = {number: each for number, each in self._attempts.items() if each.request_id == request_id}
                for attempt in mine.values():
                    attempt.wanted = False
                return [Cancel(number) for number in mine]
            case ShutdownAsked():
                self._stopping = True
                return [] if self._attempts else [Exit()]
        return []

    def _begun(self, request_id: int) -> Action:
        backend = next((name for name in self._members if name not in self._failed), None)
        if backend is None:
            return Reply(request_id, 503, "no backend is ready", retry_after_s=1.4)
        self._next_id += 1
        self._attempts[self._next_id] = _Attempt(request_id, backend)
        return Send(self._next_id, request_id, backend, self.timeout_s)

    def _ended(self, attempt_id: int, error: str | None) -> list[Action]:
        attempt = self._attempts.pop(attempt_id)
        actions: list[Action] = []
        if error in STATUS:
            if self.strict:
                self._failed.add(attempt.backend)
            if attempt.wanted and not attempt.committed:
                reason = f"attempt at {attempt.backend}: {error}"
                actions.append(Reply(attempt.request_id, STATUS[error], reason))
        if self._stopping and not self._attempts:
            actions.append(Exit())
        return actions


class Impatient(Plain):
    """Uses short timeouts."""

    timeout_s = 0.3


class Strict(Plain):
    """Sends nothing more to a backend after a failed attempt, until the members change."""

    strict = True
