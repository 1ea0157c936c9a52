"""Mutants whose health checks are wrong: the reference with nothing on but those."""

from __future__ import annotations

from collections import deque
from random import Random

from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.settings import Settings
from harness.claims.features import Feature
from harness.gateway.protocol import Action, Event, HealthCheckResult, SendHealthCheck
from tests.mutants.health_shares import CHECKED


class Checking(ReferenceGateway):
    """No fault."""

    claims: tuple[Feature, ...] = (CHECKED,)

    def __init__(self, random: Random) -> None:
        super().__init__(Settings(bounded_load=None, breaker=None, health=None, hedge=None, retry=None), random)


class OneAfterTheOther(Checking):
    """Checks one backend at a time: while one hangs, the others wait."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._waiting: deque[SendHealthCheck] = deque()
        self._out: SendHealthCheck | None = None

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """As ever, but a health check leaves only when the one before it is over; nobody waits twice."""
        if isinstance(event, HealthCheckResult):
            self._out = None
        actions: list[Action] = []
        for action in super().handle(event, now_s):
            if not isinstance(action, SendHealthCheck):
                actions.append(action)
            elif action.backend_id not in {check.backend_id for check in (*self._waiting, self._out) if check}:
                self._waiting.append(action)
        if self._out is None and self._waiting:
            self._out = self._waiting.popleft()
            actions.append(self._out)
        return actions
