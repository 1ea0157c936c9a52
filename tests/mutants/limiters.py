"""Mutants of limits, each with one fault."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.requests.limits import (
    Admission,
    AdmissionSettings,
    Admitted,
    Bucket,
    BucketSettings,
    Queued,
    Rejected,
)
from harness.claims.features import Limits
from harness.gateway.protocol import Action, Event, Reply, SetTimer, TimerFired
from tests.mutants.nothing import NOTHING_ON

GOOD = AdmissionSettings(requests=BucketSettings(rate_per_s=100.0, burst=20.0), concurrency=8, queue=16)


class Limiting(ReferenceGateway):
    """No fault: the reference with limits only."""

    claims: tuple[Limits, ...] = (Limits(rate_per_s=100.0, burst=20, concurrency=8, queue=16, by_urgency=True),)
    limits: AdmissionSettings | None = GOOD
    admission: type[Admission] = Admission

    def __init__(self, random: Random) -> None:
        super().__init__(replace(NOTHING_ON, limits=self.limits), random)
        if self._admission_gate is not None and self.limits is not None:
            self._admission_gate._admission = self.admission(self.limits)


class NeverRefuses(Limiting):
    """Claims limits and enforces none."""

    kills = ("limits.rate.every-window", "limits.concurrency.never-more")
    vacuous = ("limits.refusals.told-at-once", "limits.urgency.critical-first")
    limits = None


class RunsMore(Limiting):
    """Admits one request more than the claimed concurrency."""

    kills = ("limits.concurrency.never-more",)
    limits = replace(GOOD, concurrency=9)


class _ByTheClock(Bucket):
    """A fixed number of requests in each second of the clock."""

    def __init__(self, settings: BucketSettings) -> None:
        super().__init__(settings)
        self._second, self._count = -1, 0

    def ready_s(self, amount: float, ahead: float = 0.0) -> float:
        full = self._count + ahead + amount > self._rate_per_s
        return float(self._second + 1) if full else -math.inf

    def take(self, amount: float, now_s: float) -> None:
        if int(now_s) != self._second:
            self._second, self._count = int(now_s), 0
        self._count += int(amount)


class _Counts(Admission):
    def __init__(self, settings: AdmissionSettings) -> None:
        super().__init__(settings)
        assert settings.requests is not None
        self._by_request = _ByTheClock(settings.requests)


class CountsBySecond(Limiting):
    """Counts requests by the second of the clock instead of with a bucket."""

    kills = ("limits.rate.every-window",)
    admission = _Counts


class _DebitsAll(Admission):
    def submit(self, request_id: int, urgency: str, tokens: int, now_s: float) -> Admitted | Queued | Rejected:
        answer = super().submit(request_id, urgency, tokens, now_s)
        if isinstance(answer, Rejected) and self._by_request is not None:
            self._by_request.take(1.0, now_s)
        return answer


class CountsRefused(Limiting):
    """Charges rejected requests too, so that a client that sends too often gets nothing."""

    kills = ("limits.rate.let-in",)
    admission = _DebitsAll


class _IgnoresUrgency(Admission):
    def submit(self, request_id: int, urgency: str, tokens: int, now_s: float) -> Admitted | Queued | Rejected:
        return super().submit(request_id, "normal", tokens, now_s)


class IgnoresUrgency(Limiting):
    """Serves requests in order of arrival, whatever their urgency."""

    kills = ("limits.urgency.critical-first",)
    admission = _IgnoresUrgency


class _ShedsOnly(Admission):
    """Sheds by urgency, but serves in order of arrival."""

    def _head(self):  # type: ignore[no-untyped-def]
        return min(
            ((next(iter(queue)), queue) for queue in self._queues.values() if queue),
            key=lambda head: head[0],
            default=None,
        )


class ServesInOrder(Limiting):
    """Sheds by urgency, and serves waiting requests in order of arrival."""

    kills = ("limits.urgency.critical-first",)
    admission = _ShedsOnly


class AnswersErrors(Limiting):
    """Answers rejected requests with 500."""

    kills = ("limits.refusals.told-at-once",)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        actions = super().handle(event, now_s)
        return [replace(action, status=500) if isinstance(action, Reply) else action for action in actions]


class RefusesLate(Limiting):
    """Delays rejections by half a second."""

    kills = ("limits.refusals.told-at-once",)

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._delayed: dict[int, Reply] = {}

    def handle(self, event: Event, now_s: float) -> list[Action]:
        if isinstance(event, TimerFired) and event.timer_id in self._delayed:
            return [self._delayed.pop(event.timer_id)]
        actions: list[Action] = []
        for action in super().handle(event, now_s):
            if isinstance(action, Reply):
                timer_id = -1_000_000 - action.request_id
                self._delayed[timer_id] = action
                actions.append(SetTimer(timer_id, now_s + 0.5))
            else:
                actions.append(action)
        return actions
