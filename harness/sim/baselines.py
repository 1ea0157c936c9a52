"""Baseline policies, run in the simulator on the same arrivals, that properties compare a balancer with."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from harness.balancer.core.bare import BareGateway
from harness.balancer.picking.ring import HashRing
from harness.claims.features import Claims
from harness.gateway.protocol import Backend, Gateway, NowFunction, Request
from harness.targets.base import SimTarget


class RoundRobinBaseline:
    """Picks backends round-robin, ignoring the request."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._turn = -1

    def pick(self, request: Request) -> str | None:
        """The next backend."""
        if not self._names:
            return None
        self._turn = (self._turn + 1) % len(self._names)
        return self._names[self._turn]

    def update_backends(self, backends: Sequence[Backend]) -> None:
        """Store the backends' names; nothing else of them is used."""
        self._names = tuple(backend.id for backend in backends)

    def report_result(self, backend_id: str, latency_s: float, error: str | None) -> None:
        """Results are ignored."""


class RingBaseline(RoundRobinBaseline):
    """A hash ring for requests with a model, without retry or failover; other requests are sent round-robin."""

    def __init__(self) -> None:
        super().__init__()
        self._ring = HashRing(150)

    def pick(self, request: Request) -> str | None:
        """The owner of the request's model."""
        return self._ring.owner(request.model) if request.model else super().pick(request)

    def update_backends(self, backends: Sequence[Backend]) -> None:
        """Rebuild the ring from the backends' names."""
        super().update_backends(backends)
        self._ring.set_members(self._names)


BASELINES = {"ring": RingBaseline, "round_robin": RoundRobinBaseline}


class BaselineTarget(SimTarget):
    """A baseline policy in the bare gateway; simulator only."""

    def __init__(self, name: str, claims: Claims) -> None:
        self.name = name
        self.version = "baseline"
        self.claims = claims

    def gateway(self, off: frozenset[str], now: NowFunction, generator: Random) -> Gateway:
        """A bare gateway around the policy."""
        return BareGateway(BASELINES[self.name]())


def baseline_target(name: str, claims: Claims) -> SimTarget:
    """The target of baseline `name`. KeyError, listing the known names, if there is none."""
    if name not in BASELINES:
        raise KeyError(f"no baseline {name!r}; there are {sorted(BASELINES)}")
    return BaselineTarget(name, claims)
