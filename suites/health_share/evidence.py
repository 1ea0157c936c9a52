"""What a history says of health-weighted shares: who was picked, and what measured latencies and memory call for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from harness.claims.features import Claims, HealthShare
from harness.evidence.history import UNSEEN, History, Numbers
from harness.property.findings import Findings, sampled, undecided
from harness.scenario.model import Ending, Kind
from harness.stats import ALPHA
from suites.health_share.scenarios import HANDOVER_S, Zone, reported_s, tail_zone
from suites.scenarios import ENOUGH

TAIL_AT_LEAST = 0.02
"""Share of a backend's answers that must be slow, twice what makes a p99, for its p99 to be slow however it is read."""


def picks(history: History, from_s: float, to_s: float) -> Numbers | str:
    """The backends picked for the updates that were sent in [from_s, to_s), in order; or why they say too little."""
    requests = history.requests
    sent = (requests["kind"] == Kind.UPDATE) & (requests["sent_s"] >= from_s) & (requests["sent_s"] < to_s)
    backends = history.first_backends()[sent]
    seen: Numbers = backends[backends != UNSEEN]
    if len(seen) < ENOUGH * len(backends):
        return f"only {len(seen)} of {len(backends)} requests reached a backend"
    return seen


def judge_share(
    chosen: Numbers | str,
    backend: int,
    zones: tuple[Zone, tuple[float | None, float | None]],
    from_s: float,
    to_s: float,
    note: str,
    alpha: float = ALPHA,
) -> Findings:
    """One finding on a backend's share of some picks; none if there were no picks."""
    if isinstance(chosen, str):
        yield undecided(chosen, from_s)
    elif len(chosen):
        hits = (chosen == backend).tolist()
        told = f"gpu-{backend} got {sum(hits)} of {len(hits)}; {note}"
        yield sampled(hits, conform=zones[0], violate=zones[1], at_s=from_s, until_s=to_s, alpha=alpha, note=told)


def tail_share(history: History, claims: Claims, backend: int, from_s: float, to_s: float) -> Zone | str:
    """Least and largest share that the measured latencies call for; or why they say nothing.

    The balancer sees more than a backend's own time and less than a client's, so both are worked out, from the answers
    of the stretch and of one window before it. Who has too few answers has lost nothing by its latency, as claimed. If
    that is `backend`, the share is what it had to have before it was left out.
    """
    health, backends = claims[HealthShare], history.scenario.backends
    attempts = history.attempts
    rows = np.flatnonzero(
        (attempts["request"] >= 0)
        & (attempts["status"] == 200)
        & (attempts["ending"] == Ending.ANSWERED)
        & (attempts["end_s"] >= from_s - health.window_s)
        & (attempts["end_s"] < to_s)
    )
    own = history.requests[attempts["request"][rows]]
    shares = []
    for took_s in (attempts["end_s"][rows] - attempts["start_s"][rows], own["end_s"] - own["sent_s"]):
        by_backend = [took_s[attempts["backend"][rows] == number] for number in range(backends)]
        if len(by_backend[backend]) < health.minimum_calls:
            return tail_zone(claims, backends)[0]
        p99_s = {
            number: float(np.quantile(mine, 0.99))
            for number, mine in enumerate(by_backend)
            if len(mine) >= health.minimum_calls
        }
        baseline_s = health.baseline_p99_s or float(np.median(list(p99_s.values())))
        if float(np.mean(by_backend[backend] > 2 * baseline_s)) < TAIL_AT_LEAST:
            return f"too few answers of gpu-{backend} were slow for a tail"
        kept = {number: min(1.0, baseline_s / mine_s) for number, mine_s in p99_s.items()}
        scores = [1 - health.latency * (1 - kept.get(number, 1.0)) for number in range(backends)]
        shares.append(scores[backend] / sum(scores))
    return min(shares), max(shares)


@dataclass(frozen=True, slots=True)
class Holding:
    """A model was in use at a backend from `start_s` to `end_s` (infinite: until the run ended)."""

    backend: int
    start_s: float
    end_s: float


def holdings(history: History, stream: str) -> list[Holding]:
    """What the requests of a stream held, in order."""
    attempts = history.attempts
    rows = attempts[np.isin(attempts["request"], np.flatnonzero(history.in_stream(stream)))]
    return [
        Holding(
            backend=int(row["backend"]),
            start_s=float(row["start_s"] + row["queue_wait_s"]),
            end_s=math.inf if math.isnan(row["end_s"]) else float(row["end_s"]),
        )
        for row in rows
    ]


def warmed(history: History, until_s: float) -> frozenset[int]:
    """Backends with a model in memory, or on its way there, at some time until `until_s`."""
    residency = history.residency
    return frozenset(residency["backend"][residency["at_s"] < until_s].tolist())


def told_s(history: History, holding: Holding, claims: Claims) -> float:
    """When the balancer had a report of that memory: at the next health check, or when one must have been answered."""
    health_checks = history.health_checks
    later_s = health_checks["at_s"][
        (health_checks["backend"] == holding.backend) & (health_checks["at_s"] > holding.start_s)
    ]
    due_s = holding.start_s + reported_s(claims)
    return min(float(later_s.min(initial=math.inf)), due_s) + HANDOVER_S
