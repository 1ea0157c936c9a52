"""Mutants that go on well enough until something breaks, and then make it worse."""

from __future__ import annotations

from harness.claims.features import Failover, Feature
from harness.gateway.protocol import NowFunction, Request
from tests.mutants.policies import Conforming

SLOW_S = 0.03
CLOSED_S = 1.5


class NeverForgives(Conforming):
    """Turns away for good what belongs to a backend that once failed or was slow."""

    claims: tuple[Feature, ...] = (Failover(within_s=5.0),)

    def __init__(self) -> None:
        super().__init__()
        self._never_again: set[str] = set()

    def report_result(self, backend_id: str, latency_s: float, error: str | None) -> None:
        if error is not None or latency_s > SLOW_S:
            self._never_again.add(backend_id)

    def _healthy(self, name: str) -> bool:
        return True

    def pick(self, request: Request) -> str | None:
        choice = super().pick(request)
        return None if choice in self._never_again else choice


class AllForOne(Conforming):
    """Takes the failure of one backend for its own, and turns everybody away for a while."""

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
    """Answers 503 for ever once a connection was reset in its face; nothing else upsets it."""

    claims: tuple[Feature, ...] = (Failover(within_s=0.5),)

    def __init__(self) -> None:
        super().__init__()
        self._sulks = False

    def report_result(self, backend_id: str, latency_s: float, error: str | None) -> None:
        super().report_result(backend_id, latency_s, error)
        self._sulks |= error == "reset"

    def pick(self, request: Request) -> str | None:
        return None if self._sulks else super().pick(request)
