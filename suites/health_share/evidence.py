"""Queries on health-weighted shares: picks, and the shares that measured latencies and memory call for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from harness.claims.features import Claims, HealthShare
from harness.evidence.history import History
from harness.evidence.tables import Numbers
from harness.property.findings import Findings, sampled, undecided
from harness.stats import ALPHA
from suites.health_share.scenarios import Zone, reported_s, tail_zone
from suites.margins import KNOWN_WITHIN_S, margin_s
from suites.scenarios import ENOUGH

TAIL_AT_LEAST = 0.02
"""Share of a backend's answers that must be slow, twice that of a p99, so that its p99 is slow by every definition."""


def picks(history: History, from_s: float, to_s: float) -> Numbers | str:
    """Backends picked for the updates sent in [from_s, to_s), in order; or the reason why they are too few."""
    sent = history.all_requests().updates().sent_between(from_s, to_s)
    reached = sent.reached()
    if len(reached) < ENOUGH * len(sent):
        return f"only {len(reached)} of {len(sent)} requests reached a backend"
    return reached.first_backends()


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
        text = f"gpu-{backend} got {sum(hits)} of {len(hits)}; {note}"
        yield sampled(hits, conform=zones[0], violate=zones[1], at_s=from_s, until_s=to_s, alpha=alpha, note=text)


def tail_share(history: History, claims: Claims, backend: int, from_s: float, to_s: float) -> Zone | str:
    """Least and largest share that the measured latencies call for; or the reason why they are inconclusive.

    The balancer measures more than a backend's own time and less than a client's, so both shares are computed, from the
    answers of the period and of one window before it. As claimed, a backend with too few answers loses nothing by its
    latency. If that applies to `backend`, the result is the share it must have had before it was excluded.
    """
    health, backends = claims[HealthShare], history.scenario.backends
    good = history.all_attempts().good().with_status(200)
    good = good.where((good["end_s"] >= from_s - health.window_s) & (good["end_s"] < to_s))
    shares = []
    for latencies_s in (good["end_s"] - good["start_s"], good.of_request("end_s") - good.of_request("sent_s")):
        by_backend = [latencies_s[good["backend"] == number] for number in range(backends)]
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
        latency_scores = {number: min(1.0, baseline_s / mine_s) for number, mine_s in p99_s.items()}
        scores = [1 - health.latency * (1 - latency_scores.get(number, 1.0)) for number in range(backends)]
        shares.append(scores[backend] / sum(scores))
    return min(shares), max(shares)


@dataclass(frozen=True, slots=True)
class Holding:
    """A model was in use at a backend from `start_s` to `end_s` (infinite: until the run ended)."""

    backend: int
    start_s: float
    end_s: float


def holdings(history: History, stream: str) -> list[Holding]:
    """Holdings by the requests of a stream, in order."""
    return [
        Holding(
            backend=int(row["backend"]),
            start_s=float(row["start_s"] + row["queue_wait_s"]),
            end_s=math.inf if math.isnan(row["end_s"]) else float(row["end_s"]),
        )
        for row in history.requests_in(stream).attempts()
        if not math.isnan(row["start_s"] + row["queue_wait_s"])  # never served
    ]


def warmed(history: History, until_s: float) -> frozenset[int]:
    """Backends with a model in memory, or loading, at some time until `until_s`."""
    residency = history.residency
    return frozenset(residency["backend"][residency["at_s"] < until_s].tolist())


def reported_at_s(history: History, holding: Holding, claims: Claims) -> float:
    """Time at which the balancer had a report of that memory: at the next health check, or when one must have been
    answered."""
    health_checks = history.health_checks
    later_s = health_checks["at_s"][
        (health_checks["backend"] == holding.backend) & (health_checks["at_s"] > holding.start_s)
    ]
    due_s = holding.start_s + reported_s(claims)
    at_s = min(float(later_s.min(initial=math.inf)), due_s)
    return at_s + margin_s(history, KNOWN_WITHIN_S, at_s)
