"""Mutants that hand updates out by load, each wrong in one way."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.picking.policies import LeastConnections, TwoChoices
from harness.balancer.settings import Settings
from harness.claims.features import Spread


class Spreading(ReferenceGateway):
    """No fault: the reference with nothing on but two choices."""

    claims: tuple[Spread, ...] = (Spread(policy="two_choices"),)

    def __init__(self, random: Random) -> None:
        super().__init__(
            Settings(bounded_load=None, checks=None, breaker=None, health=None, hedge=None, retry=None, sessions=None),
            random,
        )


class ConstantLoad(Spreading):
    """Takes every backend for equally loaded, so that the better of two is the first."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._members._policy = TwoChoices(random, lambda backend, now_s: 1.0)


class NeverCountsDown(Spreading):
    """Counts what it sent and not what has ended, so that "in flight" is all there ever was."""

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
