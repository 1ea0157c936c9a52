"""The reference as a policy: what it knows of its members behind the three methods, for the bare gateway.

Ring, bounded loads, sessions, breakers, health scores and two choices are on. Attempts, retries, hedges, limits and
health checks are those of the gateway around it, and the bare one has a single attempt and nothing else.

`report_result` names a backend and no request, so it settles the oldest open ticket of that backend: the counts are
right whatever the order, and a breaker may at worst take an older call's place for a newer one's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from harness.balancer.core.bare import settled_by
from harness.balancer.core.settings_to_claims import claimed
from harness.balancer.members import Members, Sent
from harness.balancer.settings import Settings
from harness.claims.features import HealthShare
from harness.gateway.protocol import Backend, NowFunction, Request

SETTINGS = Settings(checks=None, hedge=None, retry=None)
NO_REPORT = 0


class _Known(Members):
    """Members of which some are said not to be ready."""

    unready: frozenset[str] = frozenset()

    def eligible(self, name: str, now_s: float) -> bool:
        """See Members; who is not ready gets nothing."""
        return name not in self.unready and super().eligible(name, now_s)

    def seen_ready(self, unready: frozenset[str], now_s: float) -> None:
        """Take note of who is not ready now."""
        changed, self.unready = self.unready ^ unready, unready
        for name in changed:
            self._look(name, now_s)


class ReferencePolicy:
    """The reference balancer as harness.gateway.protocol.Policy; see the module. `now` is the world's clock."""

    # By health alone nothing is handed out, as two choices are on and nobody can switch them off.
    claims = tuple(claim for claim in claimed(SETTINGS) if not isinstance(claim, HealthShare))

    def __init__(self, now: NowFunction, random: Random) -> None:
        self._now = now
        self._members = _Known(SETTINGS, random)
        self._shown: dict[str, Backend] = {}
        self._open: dict[str, deque[Sent]] = {}

    @property
    def idle(self) -> bool:
        """Whether no ticket is open."""
        return not self._open and self._members.idle

    def pick(self, request: Request) -> str | None:
        """See Policy. Opens a ticket."""
        now_s = self._now()
        name = self._members.pick(request, frozenset(), now_s)
        if name is not None:
            self._open.setdefault(name, deque()).append(self._members.begin(name, request.prompt_tokens, now_s))
        return name

    def update_backends(self, backends: Sequence[Backend]) -> None:
        """See Policy. Counts as a report of those whose figures have changed; all zero is none."""
        now_s = self._now()
        before, self._shown = self._shown, {backend.id: backend for backend in backends}
        if _configured(before) != _configured(self._shown):
            self._members.set_backends(tuple(backends), now_s)
        self._members.seen_ready(frozenset(item.id for item in backends if not item.ready), now_s)
        for name, backend in self._shown.items():
            if backend.memory_total_mb and _reported(backend) != _reported(before.get(name)):
                self._members.checked(NO_REPORT, name, True, backend, now_s)

    def report_result(self, backend_id: str, latency_s: float, error: str | None) -> None:
        """See Policy. Settles the oldest open ticket of that backend; without one there is nothing to settle."""
        tickets = self._open.get(backend_id)
        if not tickets:
            return
        sent = tickets.popleft()
        if not tickets:
            del self._open[backend_id]
        now_s = self._now()
        self._members.end(replace(sent, started_s=now_s - latency_s), settled_by(error), now_s)


def _configured(backends: dict[str, Backend]) -> list[tuple[str, str, float]]:
    return [(backend.id, backend.address, backend.weight) for backend in backends.values()]


def _reported(backend: Backend | None) -> Backend | None:
    """What a backend said of itself, without what the gateway adds."""
    return None if backend is None else replace(backend, in_flight=0, health_score=1.0, weight=1.0, address="")
