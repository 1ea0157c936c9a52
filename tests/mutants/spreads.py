"""Mutants that distribute updates by load, each with one fault."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.picking.policies import LeastConnections, TwoChoices
from harness.claims.features import Spread
from tests.mutants.nothing import NOTHING_ON


class Spreading(ReferenceGateway):
    """No fault: the reference with two choices only."""

    claims: tuple[Spread, ...] = (Spread(policy="two_choices"),)

    def __init__(self, random: Random) -> None:
        super().__init__(NOTHING_ON, random)


class ConstantLoad(Spreading):
    """Treats every backend as equally loaded, so that the better of two is the first."""

    kills = ("spread.loaded.avoided",)

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._members._policy = TwoChoices(random, lambda backend, now_s: 1.0)


class NeverCountsDown(Spreading):
    """Counts requests that were sent and ignores those that ended, so that "in flight" is the total ever sent."""

    kills = ("spread.loaded.avoided",)
    claims = (Spread(policy="least_connections"),)

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._sent: dict[str, int] = {}
        self._members._policy = _Counting(random, self._sent)


class _Counting(LeastConnections):
    def __init__(self, generator: Random, sent: dict[str, int]) -> None:
        super().__init__(generator, lambda backend: sent.get(backend, 0))
        self._sent = sent

    def pick(self, candidates: Sequence[str], now_s: float) -> str | None:
        chosen = super().pick(candidates, now_s)
        if chosen is not None:
            self._sent[chosen] = self._sent.get(chosen, 0) + 1
        return chosen
