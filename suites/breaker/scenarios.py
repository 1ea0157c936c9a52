"""Scenarios of the breaker family, each shared by several properties. Declares no property.

All times are derived from the claims. The request rate is high enough that only a breaker explains a silent backend,
and that a faulty backend trips well within the shortest open time.
"""

from __future__ import annotations

import math

from harness.claims.features import (
    Affinity,
    BoundedLoad,
    Breaker,
    Claims,
    Ejection,
    HealthChecks,
    HealthShare,
    Hedge,
    Retry,
)
from harness.scenario.faults import FailingStatus, Hang, OverCapacity, Slow, Step
from harness.scenario.model import Keys, Load, Phase, Scenario, Stream, UnsupportedError
from suites.breaker.evidence import SILENT_SHARE
from suites.scenarios import key_carrier

MASKS = (Retry, Hedge)
"""Features that hide the effect of a breaker from clients."""

OTHERS = (Ejection, HealthChecks, HealthShare, BoundedLoad)
"""Other features that divert requests from a faulty or loaded backend."""

FAULTY, OTHER, REJECTING = "gpu-0", "gpu-1", "gpu-2"
"""The backend that fails or is slow, one that hangs or is less slow, and one that answers every request with 404."""

KEYS = 100
SILENCE_REQUESTS = 40
"""Requests during a silence: a backend with a quarter of the traffic gets none by chance with (3/4)^40 = 1e-5."""

SLOWEST_PER_S, FASTEST_PER_S = 50.0, 500.0
POOREST_SHARE = 0.5
"""Smallest assumed share, as a factor of the fair share: six deviations below it for 150 points and 100 keys."""

STEP_S = 0.05
"""Time between the end of one fault and the next, so that a live run keeps their order."""

REQUESTS_FOR_ONE = 10
"""Number of requests that usually contains one for a given backend; scenarios allow this long for a probe."""

SETTLED_S = 0.6
"""Observation time after a recovery."""

ALTERNATING_PER_S = 40.0
"""Request rate per backend; low enough that a delay of some milliseconds on a live machine keeps the pattern."""

REFILL = 0.3
"""A failing pattern's next good answer is ready this many requests after its last failure. Early is safer than late:
one failure too few does no harm, one too many makes a run."""

SPARE_SHARE = 0.25
"""Extra time, as a share of the computed time, in which a backend fails its share; live patterns have gaps."""

TOKENS, LONG_TOKENS = 4, 40
SERVICE_S = 8 / 16_000 + TOKENS * 0.0005
"""Service time of a request at the default model server: 8 prompt tokens, then one step per output token."""


def rate_per_s(breaker: Breaker) -> float:
    """Requests per second of all clients."""
    wanted = SILENCE_REQUESTS / (SILENT_SHARE * breaker.shortest_open_s)
    return min(max(wanted, SLOWEST_PER_S), FASTEST_PER_S)


def failing_calls(breaker: Breaker, good_before: float) -> int:
    """Failed calls after `good_before` good ones that trip a breaker; UnsupportedError if no number does."""
    needed = [] if breaker.failures is None else [breaker.failures]
    if (rate := breaker.error_rate) is not None and rate < 1:
        needed.append(max(breaker.minimum_calls, math.ceil(rate / (1 - rate) * good_before)))
    if not needed:
        raise UnsupportedError("the breaker trips neither on failures in a row nor on a share of them")
    return min(needed)


def trip_s(breaker: Breaker, rate: float, backends: int, before_s: float) -> tuple[float, float]:
    """Earliest and latest time from a backend's first failure to the trip of its breaker, in seconds."""
    good = rate / backends * min(before_s, breaker.window_s)
    calls = failing_calls(breaker, good)
    return calls / rate, calls * backends / (rate * POOREST_SHARE)


def wait_s(rate: float) -> float:
    """Usual time in seconds that a half-open breaker waits for a request of its backend."""
    return max(STEP_S, REQUESTS_FOR_ONE / rate)


def traffic(rate: float, end_s: float, output_tokens: int = TOKENS, timeout_s: float = 10.0) -> Stream:
    """The requests of all clients up to `end_s`, sweeping over the keys."""
    return Stream(
        name="traffic",
        start_s=0.0,
        rate_per_s=rate,
        requests=int(rate * end_s),
        keys=Keys(KEYS, "sweep"),
        output_tokens=output_tokens,
        timeout_s=timeout_s,
    )


def one_fails(claims: Claims) -> Scenario:
    """One of three backends hangs briefly, then fails all requests; it heals during its breaker's third open time.

    The requests that hang when the failures begin fail while the breaker is open. Service takes 20 ms, so that a
    backend that recovers to only one request at a time is detected.
    """
    breaker = claims[Breaker]
    backends, rate = claims.fleet(3, at_least=2), rate_per_s(breaker)
    before_s = KEYS / rate + 6 * STEP_S
    fail_s = before_s + 2 * STEP_S
    earliest_s, latest_s = trip_s(breaker, rate, backends, before_s)
    bands = [breaker.open_band_s(turn) for turn in range(3)]
    third_begins_s = fail_s + latest_s + sum(high_s for _, high_s in bands[:2]) + 4 * wait_s(rate)
    third_ends_s = fail_s + earliest_s + sum(low_s for low_s, _ in bands)
    healed_s = min((third_begins_s + third_ends_s) / 2, third_ends_s - STEP_S)
    recovered_s = max(healed_s, third_begins_s) + bands[2][1] + 2 * (1 + breaker.successes) * wait_s(rate)
    end_s = recovered_s + SETTLED_S
    hang_for_s = fail_s + 0.95 * breaker.shortest_open_s - before_s
    return Scenario(
        name="one-fails",
        backends=backends,
        load=Load((traffic(rate, end_s, output_tokens=LONG_TOKENS),), key_carrier(claims)),
        timeline=(
            Hang(FAULTY, before_s, for_s=hang_for_s),
            FailingStatus(FAULTY, fail_s, 500, for_s=healed_s - fail_s),
        ),
        phases=(
            Phase("before", 0.0, before_s),
            Phase("failing", before_s, recovered_s),
            Phase("after", recovered_s, end_s),
        ),
        intervals_s=(breaker.shortest_open_s,),
    )


def all_fail(claims: Claims) -> Scenario:
    """All four backends begin to fail and do not heal; the load lasts until each breaker has been open twice."""
    breaker = claims[Breaker]
    backends, rate = claims.fleet(4), rate_per_s(breaker)
    before_s = KEYS / rate + STEP_S
    _, latest_s = trip_s(breaker, rate, backends, before_s)
    end_s = before_s + latest_s + sum(breaker.open_band_s(turn)[1] for turn in range(2)) + 4 * wait_s(rate)
    return Scenario(
        name="all-fail",
        backends=backends,
        load=Load((traffic(rate, end_s),), key_carrier(claims)),
        timeline=tuple(FailingStatus(f"gpu-{number}", before_s, 500) for number in range(backends)),
        phases=(Phase("before", 0.0, before_s), Phase("failing", before_s, end_s)),
        intervals_s=(breaker.shortest_open_s,),
    )


def slow_probe_s(breaker: Breaker) -> float:
    """Service time of a slow probe in seconds: well below the breaker's own bound on slow calls."""
    return 0.15 if breaker.slow_p99_s is None else min(0.15, 0.6 * breaker.slow_p99_s)


def probes_linger(claims: Claims) -> Scenario:
    """Two backends fail until their breakers open; then one answers slowly and one hangs until its clients abort."""
    breaker = claims[Breaker]
    backends = claims.fleet(4, at_least=3)
    before_s = 5 * STEP_S
    calls = failing_calls(breaker, rate_per_s(breaker) / backends * before_s)
    wanted = calls * backends / (POOREST_SHARE * SILENT_SHARE * breaker.shortest_open_s)
    rate = min(max(wanted, rate_per_s(breaker)), FASTEST_PER_S)
    _, latest_s = trip_s(breaker, rate, backends, before_s)
    if latest_s + STEP_S > 0.9 * breaker.shortest_open_s:
        raise UnsupportedError(f"opens for {breaker.open_s} s only, too short for {calls} failures to end in it")
    probe_s = slow_probe_s(breaker)
    fail_for_s = max(latest_s, 0.75 * breaker.shortest_open_s)
    linger_s = before_s + fail_for_s + STEP_S
    first_probe_s = before_s + latest_s + breaker.open_band_s(0)[1] + 2 * wait_s(rate)
    slow_until_s = first_probe_s + breaker.successes * (probe_s + 2 * wait_s(rate))
    hang_until_s = first_probe_s + 2 * (2 * probe_s + 2 * wait_s(rate))
    end_s = first_probe_s + 2 * probe_s + breaker.open_band_s(1)[1] + 4 * wait_s(rate)
    steps: tuple[Step, ...] = (
        FailingStatus(FAULTY, before_s, 500, for_s=fail_for_s),
        FailingStatus(OTHER, before_s, 500, for_s=fail_for_s),
        Slow(FAULTY, linger_s, probe_s / SERVICE_S, for_s=slow_until_s - linger_s),
        Hang(OTHER, linger_s, for_s=hang_until_s - linger_s),
    )
    return Scenario(
        name="probes-linger",
        backends=backends,
        load=Load((traffic(rate, end_s, timeout_s=2 * probe_s),), key_carrier(claims)),
        timeline=steps,
        phases=(Phase("before", 0.0, before_s), Phase("lingering", linger_s, end_s)),
        intervals_s=(breaker.shortest_open_s, probe_s),
    )


def lingering_probe_s(scenario: Scenario) -> float:
    """Service time of a slow probe of `probes_linger` in seconds, which may be scaled."""
    _, probe_s = scenario.intervals_s
    return probe_s


MILD_SHARE, SEVERE_SHARE = 0.5, 1.5
"""Service times of slow backends as shares of the claimed bound: one well below it, one well above it."""


def one_slow(claims: Claims) -> Scenario:
    """Of three backends, one exceeds the claimed p99, one slows down within it, and one answers everything with 404."""
    breaker = claims[Breaker]
    bound_s = breaker.slow_p99_s
    if bound_s is None:
        raise UnsupportedError("the breaker does not trip on latency")
    backends = claims.fleet(3, at_least=3)
    rate = max(rate_per_s(breaker), breaker.minimum_calls * backends / (POOREST_SHARE * breaker.window_s))
    enough_s = breaker.minimum_calls * backends / (rate * POOREST_SHARE)
    end_s = 2 * enough_s + SEVERE_SHARE * bound_s + 2 * breaker.shortest_open_s
    return Scenario(
        name="one-slow",
        backends=backends,
        load=Load((traffic(rate, end_s),), key_carrier(claims)),
        timeline=(
            Slow(FAULTY, enough_s, SEVERE_SHARE * bound_s / SERVICE_S),
            Slow(OTHER, enough_s, MILD_SHARE * bound_s / SERVICE_S),
            FailingStatus(REJECTING, enough_s, 404),
        ),
        phases=(Phase("before", 0.0, enough_s), Phase("slow", enough_s, end_s)),
        intervals_s=(breaker.shortest_open_s, bound_s),
    )


def failures_in_a_row(breaker: Breaker) -> int:
    """Failures between two good answers: well above the claimed rate, well below the claimed run."""
    rate = breaker.error_rate
    if rate is None:
        raise UnsupportedError("the breaker does not trip on a share of failures")
    wanted = (1 + rate) / 2
    run = math.ceil(wanted / (1 - wanted)) if wanted < 1 else 0
    if not run or (breaker.failures is not None and run > breaker.failures - 2):
        raise UnsupportedError("failures in a row trip the breaker before a share of them can")
    return run


def share_fails(claims: Claims) -> Scenario:
    """The backend of a single key fails a share of its requests in a pattern: half the claimed rate, then more.

    With one key, requests are evenly spaced, so the pattern never contains the claimed run of failures. All backends
    have the same faults, because the balancer chooses the owner of the key. The first calls fail, far fewer than the
    minimum. The first phase is longer than the window, so that those failures have left the window.
    """
    breaker = claims[Breaker]
    run, rate = failures_in_a_row(breaker), breaker.error_rate
    assert rate is not None
    backends = claims.fleet(2)
    each_per_s = max(ALTERNATING_PER_S, 2 * breaker.minimum_calls / breaker.window_s)
    start_s = 2 * STEP_S
    severe_s = start_s + breaker.window_s + 2 * STEP_S
    mild_share, severe_share = rate / 2, run / (run + 1)
    reached_s = breaker.window_s * (rate - mild_share) / (severe_share - mild_share)
    end_s = severe_s + (1 + SPARE_SHARE) * reached_s + breaker.shortest_open_s
    all_per_s = each_per_s if Affinity in claims else each_per_s * backends
    alike = Stream("traffic", start_s, all_per_s, int(all_per_s * (end_s - start_s)), keys=Keys(1, "sweep"))
    names = [f"gpu-{number}" for number in range(backends)]
    first = min(run, max(1, int(rate * breaker.minimum_calls / 4)))
    begin = [FailingStatus(name, STEP_S, 500, first=first) for name in names]
    mild = [OverCapacity(name, STEP_S, (1 - mild_share) * each_per_s, 2, severe_s - 2 * STEP_S) for name in names]
    severe = [OverCapacity(name, severe_s, each_per_s / (run + REFILL)) for name in names]
    return Scenario(
        name="share-fails",
        backends=backends,
        load=Load((alike,), key_carrier(claims)),
        timeline=(*begin, *mild, *severe),
        phases=(Phase("mild", start_s, severe_s), Phase("severe", severe_s, end_s)),
        intervals_s=(breaker.shortest_open_s,),
    )
