"""Mutants in the form of a whole gateway."""

from __future__ import annotations

from harness.balancer.core.bare import BareGateway
from harness.gateway.protocol import (
    Action,
    AttemptEnded,
    ClientGone,
    Commit,
    Event,
    Reply,
    RequestArrived,
    SetTimer,
    TimerFired,
)
from tests.mutants.policies import CLAIMS, Conforming


class MixesAnswersUp:
    """Where two requests wait at the same time, now and then each gets the other's answer."""

    claims = CLAIMS

    def __init__(self) -> None:
        self._bare = BareGateway(Conforming())
        self._waiting: set[int] = set()
        self._held: Commit | None = None
        self._commits = 0

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """As the bare gateway, but about every tenth commit waits for the next one and swaps requests with it."""
        match event:
            case RequestArrived(request):
                self._waiting.add(request.id)
            case ClientGone(request_id):
                self._waiting.discard(request_id)
                if self._held is not None and self._held.request_id == request_id:
                    self._held = None
            case AttemptEnded(attempt_id):
                if self._held is not None and self._held.attempt_id == attempt_id:
                    self._held = None
        actions: list[Action] = []
        for action in self._bare.handle(event, now_s):
            if isinstance(action, Reply):
                self._waiting.discard(action.request_id)
            actions += self._commit(action) if isinstance(action, Commit) else [action]
        if self._held is not None and self._waiting == {self._held.request_id}:
            actions += self._release(self._held)  # the others went without an answer to swap
        return actions

    def _commit(self, commit: Commit) -> list[Action]:
        self._commits += 1
        held = self._held
        if held is not None:
            self._held = None
            self._waiting -= {held.request_id, commit.request_id}
            return [Commit(held.request_id, commit.attempt_id), Commit(commit.request_id, held.attempt_id)]
        if self._commits % 10 == 0 and self._waiting != {commit.request_id}:
            self._held = commit
            return []
        return self._release(commit)

    def _release(self, commit: Commit) -> list[Action]:
        self._held = None
        self._waiting.discard(commit.request_id)
        return [commit]


class GrowsCautious:
    """Once an attempt has failed, every request has to wait before it is looked at; nothing is ever lost by it."""

    claims = CLAIMS

    WAITS_S = 0.2

    def __init__(self) -> None:
        self._bare = BareGateway(Conforming())
        self._cautious = False
        self._waiting: dict[int, RequestArrived] = {}

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """As the bare gateway, whose own timers have numbers from 0."""
        match event:
            case AttemptEnded():
                self._cautious |= event.error is not None
            case RequestArrived(request) if self._cautious:
                self._waiting[request.id] = event
                return [SetTimer(-1 - request.id, now_s + self.WAITS_S)]
            case ClientGone(request_id) if self._waiting.pop(request_id, None) is not None:
                return []
            case TimerFired(timer_id) if timer_id < 0:
                waiting = self._waiting.pop(-1 - timer_id, None)
                return [] if waiting is None else self._bare.handle(waiting, now_s)
        return self._bare.handle(event, now_s)


class FewAtATime:
    """Turns away whoever comes while fifteen requests are inside, which it has told nobody of."""

    claims = CLAIMS

    MOST = 15

    def __init__(self) -> None:
        self._bare = BareGateway(Conforming())
        self._inside: set[int] = set()

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """As the bare gateway where there is room."""
        match event:
            case RequestArrived(request) if len(self._inside) >= self.MOST:
                return [Reply(request.id, 503, "too many requests")]
            case RequestArrived(request):
                self._inside.add(request.id)
            case ClientGone(request_id):
                self._inside.discard(request_id)
        actions = self._bare.handle(event, now_s)
        self._inside -= {action.request_id for action in actions if isinstance(action, Commit | Reply)}
        return actions
