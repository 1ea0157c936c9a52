"""Mutants of health checks: the reference with health checks only."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from random import Random

from harness.balancer.core.gateway import ReferenceGateway
from harness.claims.features import Feature
from harness.gateway.protocol import Action, Event, HealthCheckResult, SendHealthCheck
from tests.mutants.health_shares import CHECKED
from tests.mutants.nothing import CHECKS, NOTHING_ON


class Checking(ReferenceGateway):
    """No fault."""

    claims: tuple[Feature, ...] = (CHECKED,)

    def __init__(self, random: Random) -> None:
        super().__init__(replace(NOTHING_ON, health_checks=CHECKS), random)


class OneAfterTheOther(Checking):
    """Checks one backend at a time: while one hangs, the others wait."""

    kills = ("health.check-ups.independent",)

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._waiting: deque[SendHealthCheck] = deque()
        self._pending: SendHealthCheck | None = None

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Send a health check only when the previous one has ended; queue at most one per backend."""
        if isinstance(event, HealthCheckResult):
            self._pending = None
        actions: list[Action] = []
        for action in super().handle(event, now_s):
            if not isinstance(action, SendHealthCheck):
                actions.append(action)
            elif action.backend_id not in {check.backend_id for check in (*self._waiting, self._pending) if check}:
                self._waiting.append(action)
        if self._pending is None and self._waiting:
            self._pending = self._waiting.popleft()
            actions.append(self._pending)
        return actions
