"""Mutants in the form of a whole gateway."""

from __future__ import annotations

from harness.balancer.bare import BareGateway
from harness.balancer.protocol import Action, Commit, Event
from tests.mutants.policies import CLAIMS, Conforming


class MixesAnswersUp:
    """Where two requests wait at the same time, now and then each gets the other's answer."""

    claims = CLAIMS

    def __init__(self) -> None:
        self._bare = BareGateway(Conforming())
        self._held: Commit | None = None
        self._commits = 0

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """As the bare gateway, but every tenth commit waits for the next one and swaps requests with it."""
        actions: list[Action] = []
        for action in self._bare.handle(event, now_s):
            if not isinstance(action, Commit):
                actions.append(action)
                continue
            self._commits += 1
            if self._held is not None:
                actions.append(Commit(self._held.request_id, action.attempt_id))
                actions.append(Commit(action.request_id, self._held.attempt_id))
                self._held = None
            elif self._commits % 10 == 0:
                self._held = action
            else:
                actions.append(action)
        return actions
