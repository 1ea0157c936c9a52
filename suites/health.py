"""Health: traffic leaves a dead backend within the claimed time; a hanging one delays no health checks of others."""

from __future__ import annotations

import numpy as np

from harness.claims.features import Breaker, Claims, Ejection, Failover, HealthChecks
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings, undecided, within
from harness.scenario.faults import Blackhole, Kill
from harness.scenario.model import Keys, Load, Phase, Scenario, Stream
from suites.margins import before_s
from suites.scenarios import key_carrier, methods

VICTIM = "gpu-1"
BEFORE_S = 1.25
AFTER_S = 1.5
RATE_PER_S = 120.0
KEYS = 200
"""With this many keys, a victim with less than half of its fair share would be three standard deviations off."""

SEEN_SHARE = 0.5
"""Smallest part of its fair share that the victim must have had before it dies; otherwise its death proves nothing."""


def one_dies(claims: Claims) -> Scenario:
    """One of three backends is killed and stays dead; 120 requests/s, alternating GET and POST where both pass.

    180 of them are sent after the claimed time: a balancer that does not react would lose a third of these.
    """
    backends = claims.fleet(3, at_least=3)
    within_s = claims[Failover].within_s
    end_s = BEFORE_S + within_s + AFTER_S
    traffic = Stream(
        name="traffic",
        start_s=0.0,
        rate_per_s=RATE_PER_S,
        requests=int(RATE_PER_S * end_s),
        keys=Keys(KEYS, "uniform"),
        methods=methods(claims),
        timeout_s=2.0,
    )
    intervals = [within_s]
    intervals += [claims[Ejection].open_s] if Ejection in claims else []
    intervals += [claims[Breaker].open_s] if Breaker in claims else []
    intervals += [claims[HealthChecks].interval_s] if HealthChecks in claims else []
    return Scenario(
        name="one-dies",
        backends=backends,
        load=Load((traffic,), key_carrier(claims)),
        timeline=(Kill(VICTIM, BEFORE_S),),
        phases=(Phase("before", 0.0, BEFORE_S), Phase("after", BEFORE_S, end_s)),
        intervals_s=tuple(intervals),
    )


@declare("health.failover.within-bound", needs=(Failover,), scenario=one_dies)
def failover_within_bound(history: History, claims: Claims) -> Findings:
    """After a backend dies, no request sent later than the claimed time is lost, whether GET or POST.

    A lost request has no 2xx answer; the observed value is the time from the death to the last lost request's
    departure. No feature is switched off: retries, ejection, breakers and checks may all help. It counts only if the
    victim was seen receiving its share before. Known violations: passive ejection that counts only failures which a
    retry would be allowed for, so that POST traffic never ejects (nginx without non_idempotent).
    """
    death = history.step("Kill", VICTIM)
    if death is None:
        return
    requests = history.all_requests()
    before = requests.sent_between(-np.inf, before_s(history, death.effective_s))
    fair = 1.0 / history.scenario.backends
    if not len(before) or len(before.first_on(VICTIM)) < SEEN_SHARE * fair * len(before):
        return
    within_s = claims[Failover].within_s
    for method in methods(claims):
        mine = requests.where(requests["method"] == method)
        late = mine.sent_after(death.effective_s + within_s)
        if not len(late):
            continue
        lost = mine.sent_between(death.effective_s, np.inf).lost()
        last_s = float(lost["sent_s"].max()) - death.effective_s if len(lost) else 0.0
        judged = len(late)
        note = (
            f"{method.name}: {len(lost)} lost after the death, {len(late.lost())} of {judged} sent later than the bound"
        )
        yield within(
            last_s,
            low_s=0.0,
            high_s=within_s,
            at_s=death.effective_s + within_s,
            until_s=history.scenario.end_s,
            sample=judged,
            note=f"{note}; {_latencies(history)}",
        )


def _latencies(history: History) -> str:
    """Median and p99 latency of the answered requests by backend, milliseconds."""
    answered = history.all_requests().answered()
    parts = []
    for number in range(history.scenario.backends):
        latencies_ms = answered.first_on(number).latencies_s() * 1000
        if len(latencies_ms):
            median, high = np.percentile(latencies_ms, [50, 99])
            parts.append(f"gpu-{number} {median:.1f}/{high:.1f}")
    return f"latency p50/p99 ms: {', '.join(parts)}"


# --- health checks ----------------------------------------------------------------------------------------------

SILENT = "gpu-0"
LATE_SHARE = 0.25
"""Largest delay of a health check as a share of its timeout. An independent check is on time; a check that waits for a
hanging one is late by the whole timeout."""

TRICKLE_PER_S = 20.0
PATIENCE_S = 0.5


def one_is_silent(claims: Claims) -> Scenario:
    """One of three backends accepts connections and never answers, long enough for a health check to time out.

    A balancer that checks backends one after the other leaves the others without a health check for half of that time.
    """
    checks = claims[HealthChecks]
    backends = claims.fleet(3)
    silent_s = max(0.5, checks.interval_s)
    end_s = silent_s + 2 * checks.interval_s + checks.timeout_s
    trickle = Stream(
        name="trickle",
        start_s=0.0,
        rate_per_s=TRICKLE_PER_S,
        requests=int(TRICKLE_PER_S * end_s),
        keys=Keys(60, "sweep"),
        timeout_s=PATIENCE_S,
    )
    return Scenario(
        name="one-is-silent",
        backends=backends,
        load=Load((trickle,), key_carrier(claims)),
        timeline=(Blackhole(SILENT, silent_s),),
        phases=(Phase("silent", silent_s, end_s),),
        intervals_s=(checks.interval_s, checks.timeout_s),
    )


@declare("health.check-ups.independent", needs=(HealthChecks,), scenario=one_is_silent, attempts=False)
def health_checks_independent(history: History, claims: Claims) -> Findings:
    """A hanging backend does not delay the health checks of other backends, which continue at the claimed interval.

    The check takes the longest time without a health check at each other backend, while one times out at the silent
    backend. A loop that checks one backend after the other is late by that timeout for every hanging backend: a single
    hung server blinds the balancer to all others. Known violations: a widely repeated sketch of a health checker.
    """
    silence = history.step("Blackhole", SILENT)
    if silence is None:
        return
    checks, end_s = claims[HealthChecks], history.scenario.phase("silent").end_s
    high_s = checks.interval_s + LATE_SHARE * checks.timeout_s
    for number in range(history.scenario.backends):
        if number == silence.backend:
            continue
        own_s = np.sort(history.health_checks["at_s"][history.health_checks["backend"] == number])
        if not len(own_s):
            yield undecided(f"no health check of gpu-{number} was observed", silence.effective_s)
            continue
        during_s = own_s[(own_s > silence.effective_s) & (own_s < end_s)]
        gap_s = float(np.diff([silence.effective_s, *during_s, end_s]).max())
        note = f"gpu-{number}: {len(during_s)} health checks, longest gap {gap_s * 1000:.0f} ms"
        yield within(gap_s, 0.0, high_s, silence.effective_s, until_s=end_s, sample=len(during_s), note=note)
