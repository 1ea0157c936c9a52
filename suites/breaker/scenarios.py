"""Scenarios of the breaker family: each is shared by several properties. No property is declared here.

All times follow from the claims. A scenario's rate is such that a breaker alone explains a backend's silence, and such
that a sick backend trips well within the shortest open time.
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
from suites.breaker.evidence import SILENT_SHARE, open_band
from suites.scenarios import key_carrier

MASKS = (Retry, Hedge)
OTHERS = (Ejection, HealthChecks, HealthShare, BoundedLoad)

SICK, OTHER, WRONG = "gpu-0", "gpu-1", "gpu-2"
"""The backend that fails or is slow, one that hangs or is slow in another way, and one that refuses all it gets."""

KEYS = 100
SILENCE_REQUESTS = 40
"""Requests in a silence: none for a backend with a quarter of the traffic has a chance of (3/4)^40 = 1e-5."""

SLOWEST_PER_S, FASTEST_PER_S = 50.0, 500.0
POOREST_SHARE = 0.5
"""A backend gets at least half of its fair share: a ring of 150 points and 100 keys keeps that by six deviations."""

STEP_S = 0.05
"""Between the end of one fault and the next, so that a live run keeps their order."""

REQUESTS_FOR_ONE = 10
"""Among so many there is one for a given backend, as a rule: scenarios give a probe that long to come."""

SETTLED_S = 0.6
"""How long the time after a recovery is watched."""

ALTERNATING_PER_S = 40.0
"""Slow enough that a request which a live machine holds up for some milliseconds does not change the pattern."""

REFILL = 0.3
"""A failing pattern's next good answer is ready so many requests after the last bad one: early rather than late, since
one bad answer too few does no harm, and one too many makes a run."""

SPARE_SHARE = 0.25
"""So much longer than by reckoning a backend fails its share, since a live run never keeps a pattern whole."""

TOKENS, LONG_TOKENS = 4, 40
SERVICE_S = 8 / 16_000 + TOKENS * 0.0005
"""Service of a request by the usual model server: 8 tokens of prompt, then one step for each of its own."""


def rate_per_s(breaker: Breaker) -> float:
    """Requests per second of all clients."""
    wanted = SILENCE_REQUESTS / (SILENT_SHARE * breaker.shortest_open_s)
    return min(max(wanted, SLOWEST_PER_S), FASTEST_PER_S)


def failing_calls(breaker: Breaker, good_before: float) -> int:
    """Failed calls after `good_before` good ones with which a breaker trips; UnsupportedError if none do."""
    needed = [] if breaker.failures is None else [breaker.failures]
    if (rate := breaker.error_rate) is not None and rate < 1:
        needed.append(max(breaker.minimum_calls, math.ceil(rate / (1 - rate) * good_before)))
    if not needed:
        raise UnsupportedError("the breaker trips neither on failures in a row nor on a share of them")
    return min(needed)


def trip_s(breaker: Breaker, rate: float, backends: int, before_s: float) -> tuple[float, float]:
    """How long after a backend begins to fail its breaker trips: at the soonest, at the latest."""
    good = rate / backends * min(before_s, breaker.window_s)
    calls = failing_calls(breaker, good)
    return calls / rate, calls * backends / (rate * POOREST_SHARE)


def wait_s(rate: float) -> float:
    """How long a half-open breaker waits for a request of its backend, as a rule."""
    return max(STEP_S, REQUESTS_FOR_ONE / rate)


def traffic(rate: float, end_s: float, output_tokens: int = TOKENS, timeout_s: float = 10.0) -> Stream:
    """The requests of all clients, their keys in turn, up to `end_s`."""
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
    """One of three backends hangs for a moment, then fails all; it heals while its breaker is open for the third time.

    What hung when the failures began is let go, as failed, while the breaker is open. Service takes 20 ms, so that a
    backend that recovers to one request at a time shows.
    """
    breaker = claims[Breaker]
    backends, rate = claims.fleet(3, at_least=2), rate_per_s(breaker)
    before_s = KEYS / rate + 6 * STEP_S
    fail_s = before_s + 2 * STEP_S
    soonest_s, latest_s = trip_s(breaker, rate, backends, before_s)
    bands = [open_band(breaker, turn) for turn in range(3)]
    third_begins_s = fail_s + latest_s + sum(high_s for _, high_s in bands[:2]) + 4 * wait_s(rate)
    third_ends_s = fail_s + soonest_s + sum(low_s for low_s, _ in bands)
    healed_s = min((third_begins_s + third_ends_s) / 2, third_ends_s - STEP_S)
    recovered_s = max(healed_s, third_begins_s) + bands[2][1] + 2 * (1 + breaker.successes) * wait_s(rate)
    end_s = recovered_s + SETTLED_S
    hang_for_s = fail_s + 0.95 * breaker.shortest_open_s - before_s
    return Scenario(
        name="one-fails",
        backends=backends,
        load=Load((traffic(rate, end_s, output_tokens=LONG_TOKENS),), key_carrier(claims)),
        timeline=(
            Hang(SICK, before_s, for_s=hang_for_s),
            FailingStatus(SICK, fail_s, 500, for_s=healed_s - fail_s),
        ),
        phases=(
            Phase("before", 0.0, before_s),
            Phase("failing", before_s, recovered_s),
            Phase("after", recovered_s, end_s),
        ),
        intervals_s=(breaker.shortest_open_s,),
    )


def all_fail(claims: Claims) -> Scenario:
    """All of four backends begin to fail, and stay so until each breaker was open twice."""
    breaker = claims[Breaker]
    backends, rate = claims.fleet(4), rate_per_s(breaker)
    before_s = KEYS / rate + STEP_S
    _, latest_s = trip_s(breaker, rate, backends, before_s)
    end_s = before_s + latest_s + sum(open_band(breaker, turn)[1] for turn in range(2)) + 4 * wait_s(rate)
    return Scenario(
        name="all-fail",
        backends=backends,
        load=Load((traffic(rate, end_s),), key_carrier(claims)),
        timeline=tuple(FailingStatus(f"gpu-{number}", before_s, 500) for number in range(backends)),
        phases=(Phase("before", 0.0, before_s), Phase("failing", before_s, end_s)),
        intervals_s=(breaker.shortest_open_s,),
    )


def slow_probe_s(breaker: Breaker) -> float:
    """How long a slow probe takes: well below what the breaker itself calls slow."""
    return 0.15 if breaker.slow_p99_s is None else min(0.15, 0.6 * breaker.slow_p99_s)


def probes_linger(claims: Claims) -> Scenario:
    """Two backends fail until their breakers open; then one answers slowly and one hangs, and its clients give up."""
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
    first_probe_s = before_s + latest_s + open_band(breaker, 0)[1] + 2 * wait_s(rate)
    slow_until_s = first_probe_s + breaker.successes * (probe_s + 2 * wait_s(rate))
    hang_until_s = first_probe_s + 2 * (2 * probe_s + 2 * wait_s(rate))
    end_s = first_probe_s + 2 * probe_s + open_band(breaker, 1)[1] + 4 * wait_s(rate)
    steps: tuple[Step, ...] = (
        FailingStatus(SICK, before_s, 500, for_s=fail_for_s),
        FailingStatus(OTHER, before_s, 500, for_s=fail_for_s),
        Slow(SICK, linger_s, probe_s / SERVICE_S, for_s=slow_until_s - linger_s),
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


MILD_SHARE, SEVERE_SHARE = 0.5, 1.5
"""Service of a slow backend as a share of the claimed bound: of one well below it, of another well above."""


def one_slow(claims: Claims) -> Scenario:
    """Of three backends one gets slower than the claimed p99, one slow but within it, and one refuses all with 404."""
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
            Slow(SICK, enough_s, SEVERE_SHARE * bound_s / SERVICE_S),
            Slow(OTHER, enough_s, MILD_SHARE * bound_s / SERVICE_S),
            FailingStatus(WRONG, enough_s, 404),
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
    """One key's requests meet a backend that fails a share of them in a pattern: half the claimed rate, then more.

    One key, so that they come evenly spaced and the pattern never gives the claimed run of failures; every backend
    is alike, since which one has the key is the balancer's choice. Its first calls fail, far fewer than the minimum.
    The first part is longer than the window, so that what came before it must have been forgotten.
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
