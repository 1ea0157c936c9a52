"""Mutants that implement a policy. Each has one fault, which its docstring states."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from random import Random

from harness.balancer.picking.ring import HashRing
from harness.claims.features import Affinity, Failover, Feature, Spread
from harness.gateway.protocol import Backend, Request
from harness.scenario.model import Kind

CLAIMS = (Affinity(virtual_nodes=150), Failover(within_s=5.0), Spread(policy="round_robin"))

REMAPS = (
    "affinity.each-leaves.moves-each-key-once",
    "affinity.join.share",
    "affinity.join.only-to-the-newcomer",
)
"""Properties that fail on a mapping that moves more keys than a membership change requires."""


class Conforming:
    """No fault: a ring for inference, round robin for updates; excludes backends that fail three times.

    If that excludes all backends, all are candidates again: some may have recovered, and none can be worse.
    """

    claims: tuple[Feature, ...] = CLAIMS

    def __init__(self) -> None:
        self._ring = HashRing(150)
        self._names: list[str] = []
        self._failures: dict[str, int] = {}
        self._turn = 0

    def update_backends(self, backends: Sequence[Backend]) -> None:
        self._names = [backend.id for backend in backends]
        self._ring.set_members(self._names)
        for backend in backends:
            if not backend.ready:
                self._failures[backend.id] = 3

    def report_result(self, backend_id: str, latency_s: float, error: str | None) -> None:
        self._failures[backend_id] = 0 if error is None else self._failures.get(backend_id, 0) + 1

    def pick(self, request: Request) -> str | None:
        if request.kind is Kind.UPDATE:
            return self._in_turn()
        return self._ring.owner(request.model, self._healthy)

    def _healthy(self, name: str) -> bool:
        return not self._failing(name) or all(map(self._failing, self._names))

    def _failing(self, name: str) -> bool:
        return self._failures.get(name, 0) >= 3

    def _in_turn(self) -> str | None:
        if not self._names:
            return None
        self._turn = (self._turn + 1) % len(self._names)
        return self._names[self._turn]


class Modulo(Conforming):
    """Hashes a key modulo the number of backends, so that nearly every key moves when one leaves."""

    kills = ("affinity.leave.only-departed-keys-move", "affinity.leave.share", *REMAPS)

    def pick(self, request: Request) -> str | None:
        if request.kind is Kind.UPDATE:
            return self._in_turn()
        names = sorted(name for name in self._names if self._healthy(name))
        return names[zlib.crc32(request.model.encode()) % len(names)] if names else None


class NeverEjects(Conforming):
    """Keeps sending requests to a failing backend."""

    kills = ("health.failover.within-bound",)

    def _healthy(self, name: str) -> bool:
        return True


class ListOrder(Conforming):
    """Puts points on the ring by position in the list instead of by name."""

    kills = ("affinity.leave.only-departed-keys-move", "affinity.leave.share", "affinity.return.restores", *REMAPS)

    def update_backends(self, backends: Sequence[Backend]) -> None:
        super().update_backends(backends)
        self._ring.set_members(str(position) for position in range(len(self._names)))

    def pick(self, request: Request) -> str | None:
        if request.kind is Kind.UPDATE:
            return self._in_turn()
        position = self._ring.owner(request.model, lambda index: self._healthy(self._names[int(index)]))
        return None if position is None else self._names[int(position)]


class PicksAtRandom(Conforming):
    """Ignores the key."""

    kills = (
        "affinity.repeat.same-backend",
        "affinity.leave.only-departed-keys-move",
        "affinity.leave.share",
        "affinity.return.restores",
        "cache.affinity.hit-rate",
        "spread.one-connection.even",
        *REMAPS,
    )

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random

    def pick(self, request: Request) -> str | None:
        names = [name for name in self._names if self._healthy(name)]
        return self._random.choice(names) if names else None


class SticksToConnection(Conforming):
    """Balances connections, not requests: all requests of a connection go to its first backend."""

    kills = ("spread.one-connection.even",)

    def __init__(self) -> None:
        super().__init__()
        self._homes: dict[int, str] = {}

    def pick(self, request: Request) -> str | None:
        if request.kind is not Kind.UPDATE:
            return super().pick(request)
        home = self._homes.get(request.connection)
        if home not in self._names:
            home = self._in_turn()
            if home is not None:
                self._homes[request.connection] = home
        return home
