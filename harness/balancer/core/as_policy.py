"""The reference as a policy for the bare gateway: backend selection behind the three policy methods.

Ring, bounded loads, sessions, breakers, health scores and two choices are on. Attempts, retries, hedges, limits and
health checks belong to the gateway around it; the bare gateway makes a single attempt and has none of the others.

`report_result` names a backend but no request, so it settles the oldest open ticket of that backend. The counts are
correct in any order; a breaker may at worst attribute a result to an older call than its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from harness.balancer.core.bare import settled_from_error
from harness.balancer.core.settings_to_claims import claims_from_settings
from harness.balancer.members import Members, Sent
from harness.balancer.settings import Settings
from harness.claims.features import Feature, HealthShare
from harness.gateway.protocol import Backend, NowFunction, Request

NO_CHECK_ID = 0


class _PolicyMembers(Members):
    """Members with a set of backends that the bare gateway reported as not ready."""

    unready: frozenset[str] = frozenset()

    def eligible(self, name: str, now_s: float) -> bool:
        """See Members; backends that are not ready are not eligible."""
        return name not in self.unready and super().eligible(name, now_s)

    def set_unready(self, unready: frozenset[str], now_s: float) -> None:
        """Replace the set of backends that are not ready."""
        changed, self.unready = self.unready ^ unready, unready
        for name in changed:
            self._update_eligibility(name, now_s)


def claims_as_policy(settings: Settings) -> tuple[Feature, ...]:
    """Claims of a policy with these settings, which distributes no traffic by health alone."""
    return tuple(claim for claim in claims_from_settings(settings) if not isinstance(claim, HealthShare))


class ReferencePolicy:
    """The reference balancer as harness.gateway.protocol.Policy; see the module. `now` is the world's clock.

    A subclass may replace `settings`, and with them its `claims`.
    """

    settings = Settings(health_checks=None, hedge=None, retry=None)
    claims = claims_as_policy(settings)

    def __init__(self, now: NowFunction, random: Random) -> None:
        self._now = now
        self._members = _PolicyMembers(self.settings, random)
        self._snapshots: dict[str, Backend] = {}
        self._tickets: dict[str, deque[Sent]] = {}

    @property
    def idle(self) -> bool:
        """Whether no ticket is open."""
        return not self._tickets and self._members.idle

    def pick(self, request: Request) -> str | None:
        """See `Policy.pick`. Opens a ticket."""
        now_s = self._now()
        name = self._members.pick(request, frozenset(), now_s)
        if name is not None:
            self._tickets.setdefault(name, deque()).append(self._members.begin(name, request.prompt_tokens, now_s))
        return name

    def update_backends(self, backends: Sequence[Backend]) -> None:
        """See `Policy.update_backends`. Changed figures count as a load report; memory total 0: unknown."""
        now_s = self._now()
        before, self._snapshots = self._snapshots, {backend.id: backend for backend in backends}
        if _configured(before) != _configured(self._snapshots):
            self._members.set_backends(tuple(backends), now_s)
        self._members.set_unready(frozenset(item.id for item in backends if not item.ready), now_s)
        for name, backend in self._snapshots.items():
            if backend.memory_total_mb and _reported(backend) != _reported(before.get(name)):
                self._members.health_check_result(NO_CHECK_ID, name, True, backend, now_s)

    def report_result(self, backend_id: str, latency_s: float, error: str | None) -> None:
        """See `Policy.report_result`. Settles the oldest open ticket of that backend, if any."""
        tickets = self._tickets.get(backend_id)
        if not tickets:
            return
        sent = tickets.popleft()
        if not tickets:
            del self._tickets[backend_id]
        now_s = self._now()
        self._members.end(replace(sent, started_s=now_s - latency_s), settled_from_error(error), now_s)


def _configured(backends: dict[str, Backend]) -> list[tuple[str, str, float]]:
    return [(backend.id, backend.address, backend.weight) for backend in backends.values()]


def _reported(backend: Backend | None) -> Backend | None:
    """A backend's own report, without the fields that the gateway adds."""
    return None if backend is None else replace(backend, in_flight=0, health_score=1.0, weight=1.0, address="")
