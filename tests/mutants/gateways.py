"""Mutants that implement the whole gateway protocol."""

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
from tests.mutants.chaos import ANSWERS_BELONG
from tests.mutants.policies import CLAIMS, Conforming


class MixesAnswersUp:
    """While two requests wait at the same time, each sometimes gets the other's answer."""

    kills = ("integrity.answer-belongs-to-request", "integrity.rush.answers-belong", *ANSWERS_BELONG)
    claims = CLAIMS

    def __init__(self) -> None:
        self._bare = BareGateway(Conforming())
        self._waiting: set[int] = set()
        self._held: Commit | None = None
        self._commits = 0

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Like the bare gateway, but about every tenth commit waits for the next one and swaps requests with it."""
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
            actions += self._release(self._held)  # the other requests ended without an answer to swap
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
    """Once an attempt has failed, delays every request; no request is lost."""

    kills = ("chaos.node-crash.crowd-keeps-its-pace",)
    claims = CLAIMS

    DELAY_S = 0.2

    def __init__(self) -> None:
        self._bare = BareGateway(Conforming())
        self._delaying = False
        self._waiting: dict[int, RequestArrived] = {}

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Like the bare gateway, whose own timers have numbers from 0."""
        match event:
            case AttemptEnded():
                self._delaying |= event.error is not None
            case RequestArrived(request) if self._delaying:
                self._waiting[request.id] = event
                return [SetTimer(-1 - request.id, now_s + self.DELAY_S)]
            case ClientGone(request_id) if self._waiting.pop(request_id, None) is not None:
                return []
            case TimerFired(timer_id) if timer_id < 0:
                waiting = self._waiting.pop(-1 - timer_id, None)
                return [] if waiting is None else self._bare.handle(waiting, now_s)
        return self._bare.handle(event, now_s)


class FewAtATime:
    """Rejects every request while fifteen are in progress, a limit that it does not claim."""

    kills = ("integrity.rush.nothing-lost", "chaos.grey-failure.nothing-lost")
    claims = CLAIMS

    MAX_REQUESTS = 15

    def __init__(self) -> None:
        self._bare = BareGateway(Conforming())
        self._in_progress: set[int] = set()

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Like the bare gateway below the limit."""
        match event:
            case RequestArrived(request) if len(self._in_progress) >= self.MAX_REQUESTS:
                return [Reply(request.id, 503, "too many requests")]
            case RequestArrived(request):
                self._in_progress.add(request.id)
            case ClientGone(request_id):
                self._in_progress.discard(request_id)
        actions = self._bare.handle(event, now_s)
        self._in_progress -= {action.request_id for action in actions if isinstance(action, Commit | Reply)}
        return actions
