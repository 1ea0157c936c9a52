"""Mutants of rings, membership and bounded loads, each with one fault, which its docstring states.

Those of a ring claim affinity only. Those of membership and of bounded loads claim bounded loads only: the bound moves
keys, so affinity could not be judged if it were claimed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import xxhash

from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.members import Members
from harness.balancer.picking.ring import HashRing
from harness.balancer.settings import Settings
from harness.claims.features import Affinity, BoundedLoad
from harness.gateway.protocol import Action, Backend, Event, MembershipChanged, Request
from tests.mutants.nothing import NOTHING_ON
from tests.mutants.policies import Conforming

VIRTUAL_NODES = 150
FEW_NODES, MANY_NODES = 40, 1200
FACTOR = 1.25

# --- rings ------------------------------------------------------------------------------------------------------


class OnRing(Conforming):
    """No fault: claims only the affinity of its ring."""

    claims = (Affinity(virtual_nodes=VIRTUAL_NODES),)


class SharesOutPoints(OnRing):
    """A ring of fixed size: each host's points depend on the number of hosts, so that every change moves other keys.

    It has few points, which allows wide bands: the wrong keys move, but not too many.
    """

    kills = (
        "affinity.leave.only-departed-keys-move",
        "affinity.each-leaves.moves-each-key-once",
        "affinity.join.only-to-the-newcomer",
    )
    claims = (Affinity(virtual_nodes=FEW_NODES),)

    def update_backends(self, backends: Sequence[Backend]) -> None:
        self._ring = HashRing(4 * FEW_NODES // len(backends))
        super().update_backends(backends)


class FewPoints(OnRing):
    """Claims 150 points and uses two."""

    kills = ("affinity.balance.within-band",)

    def __init__(self) -> None:
        super().__init__()
        self._ring = HashRing(2)


class NarrowHash(OnRing):
    """A point table indexed by 16 bits of hash: the last host added owns a slot, and removes it when it leaves.

    It has enough points for about 170 collisions.
    """

    kills = (
        "affinity.leave.only-departed-keys-move",
        "affinity.return.restores",
        "affinity.each-leaves.moves-each-key-once",
    )
    claims = (Affinity(virtual_nodes=MANY_NODES),)

    def __init__(self) -> None:
        super().__init__()
        self._owner_of: dict[int, str] = {}
        self._members: list[str] = []
        self._points: list[int] = []

    def update_backends(self, backends: Sequence[Backend]) -> None:
        super().update_backends(backends)
        names = [backend.id for backend in backends]
        for departed in [name for name in self._members if name not in names]:
            for point in _narrow_points(departed):
                self._owner_of.pop(point, None)
        for name in [name for name in names if name not in self._members]:
            self._owner_of.update(dict.fromkeys(_narrow_points(name), name))
        self._members = names
        self._points = sorted(self._owner_of)

    def pick(self, request: Request) -> str | None:
        index = bisect_left(self._points, _narrow(request.model))
        return self._owner_of[self._points[index % len(self._points)]]


def _narrow(text: str) -> int:
    return xxhash.xxh64_intdigest(text.encode()) & 0xFFFF


def _narrow_points(name: str) -> list[int]:
    return [_narrow(f"{name}#{number}") for number in range(MANY_NODES)]


# --- membership -------------------------------------------------------------------------------------------------


class Bounding(ReferenceGateway):
    """No fault: the reference with bounded loads only."""

    claims: tuple[BoundedLoad, ...] = (BoundedLoad(factor=FACTOR),)
    factor: float | None = FACTOR

    def __init__(self, random: Random) -> None:
        super().__init__(self.all_settings(), random)

    def all_settings(self) -> Settings:
        """All features off except the bound."""
        return replace(NOTHING_ON, bounded_load=self.factor)


class KeepsWhoLeft(Bounding):
    """Adds backends that join and never removes one that leaves."""

    kills = ("membership.leave.gets-nothing",)

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._ever: dict[str, Backend] = {}

    def handle(self, event: Event, now_s: float) -> list[Action]:
        if isinstance(event, MembershipChanged):
            self._ever.update((backend.id, backend) for backend in event.backends)
            event = MembershipChanged(tuple(self._ever.values()))
        return super().handle(event, now_s)


class OneChangeBehind(Bounding):
    """Delays a change that adds a backend until the next change."""

    kills = ("membership.join.gets-share",)

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._known: frozenset[str] = frozenset()
        self._delayed = False

    def handle(self, event: Event, now_s: float) -> list[Action]:
        if isinstance(event, MembershipChanged):
            names = frozenset(backend.id for backend in event.backends)
            self._delayed = bool(self._known and names - self._known and not self._delayed)
            if self._delayed:
                return []
            self._known = names
        return super().handle(event, now_s)


# --- bounded loads ----------------------------------------------------------------------------------------------


class NoBound(Bounding):
    """Plain consistent hashing: the hot key's home gets all of its requests."""

    kills = ("bounded-load.hot-key.capped",)
    factor = None


class BoundsTwice(Bounding):
    """Adds 1 to the factor."""

    kills = ("bounded-load.hot-key.capped",)
    factor = 1.0 + FACTOR


class RejectsAtItsCap(Bounding):
    """Checks the cap after the choice: a full backend's requests are rejected, although others have capacity."""

    kills = ("bounded-load.spill.not-rejected", "integrity.rush.nothing-lost")

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._members = _HomeOnly(self.all_settings(), random)


class _HomeOnly(Members):
    def _pick_by_ring(self, key: str, tried: frozenset[str], now_s: float) -> str | None:
        assert self._bound is not None
        home = list(self._ring.nearest(key, 1))
        total = sum(map(self._loads.in_flight, self._names)) + 1
        return self._bound.choose(home, self._loads.in_flight, total, len(self._names))


class StaysWhereItSpilled(Bounding):
    """Treats the backend that a key spilled to as the key's home."""

    kills = ("bounded-load.spill.comes-home",)

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._members = _Moves(self.all_settings(), random)


class _Moves(Members):
    def __init__(self, settings: Settings, random: Random) -> None:
        super().__init__(settings, random)
        self._moved: dict[str, str] = {}

    def _pick_by_ring(self, key: str, tried: frozenset[str], now_s: float) -> str | None:
        assert self._bound is not None
        order = list(self._ring.nearest(key, len(self._names)))
        home = order[0]
        moved = self._moved.get(key)
        if moved in order:
            order = [moved, *(name for name in order if name not in (moved, home)), home]
        total = sum(map(self._loads.in_flight, self._names)) + 1
        chosen = self._bound.choose(order, self._loads.in_flight, total, len(self._names))
        if chosen is not None and chosen != home:
            self._moved[key] = chosen
        return chosen
