"""Mutants that work until a fault occurs, and then make it worse."""

from __future__ import annotations

from harness.claims.features import Failover, Feature
from harness.gateway.protocol import NowFunction, Request
from tests.mutants.policies import Conforming

RECOVERS = tuple(
    f"chaos.{name}.recovers"
    for name in (
        "blackhole",
        "brown-out",
        "flapping",
        "grey-failure",
        "node-crash",
        "packet-misery",
        "rolling-restart",
        "thundering-return",
    )
)
ANSWERS_BELONG = tuple(name.replace("recovers", "answers-belong") for name in RECOVERS)
CONTAINED = tuple(f"chaos.{name}.contained" for name in ("blackhole", "brown-out", "flapping", "node-crash"))
NOTHING_LOST = ("chaos.grey-failure.nothing-lost", "chaos.packet-misery.nothing-lost")
FEW_REQUESTS_LEFT = ("chaos.rolling-restart.answers-belong", "chaos.thundering-return.answers-belong")

SLOW_S = 0.03
CLOSED_S = 1.5


class NeverForgives(Conforming):
    """Rejects forever the keys of a backend that once failed or was slow."""

    kills = (*RECOVERS, *NOTHING_LOST, *CONTAINED, "health.failover.within-bound", "integrity.rush.nothing-lost")
    undetermined = (*FEW_REQUESTS_LEFT, "integrity.rush.answers-belong")
    claims: tuple[Feature, ...] = (Failover(within_s=5.0),)

    def __init__(self) -> None:
        super().__init__()
        self._excluded: set[str] = set()

    def report_result(self, backend_id: str, latency_s: float, error: str | None) -> None:
        if error is not None or latency_s > SLOW_S:
            self._excluded.add(backend_id)

    def _healthy(self, name: str) -> bool:
        return True

    def pick(self, request: Request) -> str | None:
        choice = super().pick(request)
        return None if choice in self._excluded else choice


class AllForOne(Conforming):
    """Treats the failure of one backend as its own and rejects all requests for a while."""

    kills = (*CONTAINED, "integrity.rush.nothing-lost")
    undetermined = ("integrity.rush.answers-belong",)
    claims: tuple[Feature, ...] = (Failover(within_s=5.0),)

    def __init__(self, now: NowFunction) -> None:
        super().__init__()
        self._now = now
        self._closed_until_s = 0.0

    def report_result(self, backend_id: str, latency_s: float, error: str | None) -> None:
        super().report_result(backend_id, latency_s, error)
        if error is not None:
            self._closed_until_s = self._now() + CLOSED_S

    def pick(self, request: Request) -> str | None:
        return super().pick(request) if self._now() >= self._closed_until_s else None


class SulksAfterReset(Conforming):
    """Answers 503 forever after a connection reset, and ignores all other faults."""

    claims: tuple[Feature, ...] = (Failover(within_s=0.5),)

    def __init__(self) -> None:
        super().__init__()
        self._reset = False

    def report_result(self, backend_id: str, latency_s: float, error: str | None) -> None:
        super().report_result(backend_id, latency_s, error)
        self._reset |= error == "reset"

    def pick(self, request: Request) -> str | None:
        return None if self._reset else super().pick(request)
