"""Open times after failed probes."""

from __future__ import annotations

from harness.claims.features import Breaker, Claims
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings, held
from harness.scenario.model import UnsupportedError
from harness.stats import ALPHA
from suites.breaker.evidence import calls_of, open_time_finding, open_times, tripped
from suites.breaker.scenarios import FAULTY, MASKS, OTHERS, all_fail, one_fails


@declare("breaker.backoff.grows", needs=(Breaker,), without=MASKS, off=OTHERS, scenario=one_fails)
def backoff_grows(history: History, claims: Claims) -> Findings:
    """Each failed probe lengthens the open time by the claimed factor, within its jitter and up to its cap.

    Every open time lies in its own band: open_s × multiplier^k, plus or minus the jitter, never above the cap. With a
    factor of 2 and a jitter of 20 % the bands do not touch, so the second open time determines the factor. Probing at
    a constant rate overloads a backend that needs time to recover.
    """
    breaker = claims[Breaker]
    if breaker.backoff.multiplier == 1.0:
        raise UnsupportedError("claims no backoff that grows")
    calls = calls_of(history, FAULTY)
    trip = tripped(history, calls, breaker)
    if trip is None:
        return
    for item in open_times(calls, trip)[1:]:
        finding = open_time_finding(history, claims, FAULTY, item)
        if finding is not None:
            yield finding


@declare("breaker.backoff.jittered", needs=(Breaker,), without=MASKS, off=OTHERS, scenario=all_fail)
def backoff_jittered(history: History, claims: Claims) -> Findings:
    """Breakers spread their open times over the claimed jitter.

    Breakers that tripped together then do not probe together. The promise is broken if all open times lie closer to
    their nominal values than in one of ten thousand conforming runs: k open times that are uniform over ± j all lie
    within ± j × (1e-4)^(1/k) with probability 1e-4. Delays only spread them more. Known violations: retry times without
    jitter, so that all retries arrive at once.
    """
    breaker = claims[Breaker]
    jitter = breaker.backoff.jitter
    if not jitter:
        raise UnsupportedError("claims no jitter")
    deviations = []
    for backend in history.scenario.backend_ids:
        calls = calls_of(history, backend)
        trip = tripped(history, calls, breaker)
        for item in [] if trip is None else open_times(calls, trip):
            nominal_s = breaker.nominal_open_s(item.turn)
            if item.following is not None and nominal_s * (1 + jitter) <= breaker.backoff.max_s:
                deviations.append(abs((item.following.start_s - item.trip.earliest_s) / nominal_s - 1))
    if not deviations:
        return
    start_s, end_s = history.scenario.phase("failing").start_s, history.scenario.end_s
    least, largest = jitter * ALPHA ** (1 / len(deviations)), max(deviations)
    note = f"{len(deviations)} open times, largest deviation {largest * 100:.1f} % from nominal"
    yield held(largest > least, start_s, largest, least, until_s=end_s, sample=len(deviations), alpha=ALPHA, note=note)
