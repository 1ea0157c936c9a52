"""Mutants of health-weighted shares, each with one fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.core.settings_to_claims import claim_of
from harness.balancer.health.health_score import Components, HealthScore, HealthSettings
from harness.balancer.health.readiness import Readiness
from harness.balancer.health.windows import LatencyWindow
from harness.balancer.picking.policies import WeightedRandom
from harness.claims.features import Feature, HealthChecks, HealthShare
from harness.gateway.protocol import Backend
from tests.mutants.nothing import CHECKS, NOTHING_ON

HEALTH = HealthSettings(window_s=2.0)

SHARE = claim_of(HealthShare, HEALTH)
CHECKED = claim_of(HealthChecks, CHECKS)


class Weighing(ReferenceGateway):
    """No fault: the reference with health scores and health checks only."""

    claims: tuple[Feature, ...] = (SHARE, CHECKED)
    score: type[HealthScore] = HealthScore

    def __init__(self, random: Random) -> None:
        settings = replace(NOTHING_ON, spread=None, health_checks=CHECKS, health_share=HEALTH)
        super().__init__(settings, random)
        self._members._health = self.score(HEALTH)


class _Gate(HealthScore):
    def score(self, backend: str, now_s: float) -> float:
        return 1.0 if super().score(backend, now_s) > 0.2 else 0.0


class GateInsteadOfWeight(Weighing):
    """Gives every backend with a score above 0.2 the same share."""

    kills = (
        "health-share.connections.by-their-weight",
        "health-share.errors.by-their-weight",
        "health-share.latency.by-its-weight",
        "health-share.memory.by-its-weight",
    )
    score = _Gate


class _IgnoresErrors(HealthScore):
    def settle(self, backend: str, ok: bool, latency_s: float, now_s: float) -> None:
        if ok:
            super().settle(backend, ok, latency_s, now_s)


class IgnoresErrors(Weighing):
    """Errors do not lower a score."""

    kills = ("health-share.errors.by-their-weight",)
    undetermined = ("health-share.connections.by-their-weight",)
    claims = (SHARE,)
    score = _IgnoresErrors


class _HalfOrNothing(HealthScore):
    def score(self, backend: str, now_s: float) -> float:
        parts = self.components(backend, now_s)
        return 0.0 if parts.errors < 0.5 else super().score(backend, now_s)


class ShutsOutErrors(Weighing):
    """A backend that fails more than half of its requests gets nothing until they have left the window."""

    kills = ("health-share.errors.by-their-weight",)
    undetermined = ("health-share.connections.by-their-weight",)
    claims = (SHARE,)
    score = _HalfOrNothing


class _LastLatency(LatencyWindow):
    __slots__ = ()

    def quantile_s(self, quantile: float, now_s: float) -> float | None:
        return self._entries[-1][1] if super().quantile_s(quantile, now_s) is not None else None


class _LastLatencyScore(HealthScore):
    def keep_only(self, backends: frozenset[str]) -> None:
        super().keep_only(backends)
        for measured in self._measurements.values():
            if not isinstance(measured.latencies, _LastLatency):
                measured.latencies = _LastLatency(span_s=HEALTH.window_s, minimum_calls=HEALTH.minimum_calls)


class LastLatencyAsP99(Weighing):
    """Uses the latency of the last answer as p99."""

    kills = ("health-share.latency.by-its-weight",)
    score = _LastLatencyScore


class _ResidentIsUsed(HealthScore):
    def report(
        self, backend: str, memory_total_mb: float, memory_used_mb: float, memory_evictable_mb: float, now_s: float
    ) -> None:
        super().report(backend, memory_total_mb, memory_used_mb, 0.0, now_s)


class ResidentCountsAsUsed(Weighing):
    """Idle weights in memory count as load, so that a warm backend looks unhealthy."""

    kills = ("health-share.warm.even",)
    score = _ResidentIsUsed


class _IgnoresMemory(HealthScore):
    def components(self, backend: str, now_s: float) -> Components:
        return super().components(backend, now_s)._replace(memory=1.0)


class IgnoresMemory(Weighing):
    """Memory in use does not lower a score."""

    kills = ("health-share.memory.by-its-weight",)
    score = _IgnoresMemory


class _IgnoresConnections(HealthScore):
    def components(self, backend: str, now_s: float) -> Components:
        return super().components(backend, now_s)._replace(connections=1.0)


class IgnoresConnections(Weighing):
    """Active connections do not lower a score."""

    kills = ("health-share.connections.by-their-weight",)
    score = _IgnoresConnections


class _Worst(HealthScore):
    def __init__(self, settings: HealthSettings) -> None:
        super().__init__(settings)
        self._worst: dict[str, float] = {}

    def score(self, backend: str, now_s: float) -> float:
        self._worst[backend] = min(self._worst.get(backend, 1.0), super().score(backend, now_s))
        return self._worst[backend]


class NeverRecovers(Weighing):
    """A score never rises."""

    kills = ("health-share.recovery.even",)
    claims = (SHARE,)
    score = _Worst


class NotReadyByFormula(Weighing):
    """Weights a backend that is not ready by its score like any other."""

    kills = ("health-share.not-ready.nothing",)

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._members._readiness = _AlwaysReady(CHECKS.interval_s, CHECKS.timeout_s, CHECKS.unhealthy, CHECKS.healthy)


class _AlwaysReady(Readiness):
    def ready(self, backend: str) -> bool:
        return True


class NeverReadyAgain(Weighing):
    """Ignores all health checks of a backend after the first that reports it not ready."""

    kills = ("health-share.not-ready.returns",)

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._members._readiness = _OutForGood(CHECKS.interval_s, CHECKS.timeout_s, CHECKS.unhealthy, CHECKS.healthy)


class _OutForGood(Readiness):
    def result(self, check_id: int, ok: bool, report: Backend | None = None, *, answered: bool | None = None) -> bool:
        name = self._checks.get(check_id, "")
        return super().result(check_id, ok and self.ready(name), report, answered=answered)


class _Best(WeightedRandom):
    def pick(self, candidates: Sequence[str], now_s: float) -> str | None:
        return max(candidates, key=self._weight, default=None)


class TakesTheBest(Weighing):
    """Sends everything to the highest score, and to the first in the list of several with that score."""

    kills = (
        "health-share.connections.by-their-weight",
        "health-share.healthy.even",
        "health-share.errors.by-their-weight",
        "health-share.recovery.even",
    )
    undetermined = ("health-share.latency.by-its-weight",)
    claims = (SHARE,)

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._members._policy = _Best(random, self._members._weight_now)
