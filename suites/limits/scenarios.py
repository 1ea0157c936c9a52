"""Scenarios for limits: a second at three times the claimed rate, and a full queue. No property is declared here."""

from __future__ import annotations

import math

from harness.claims.features import Claims, Limits
from harness.scenario.model import Keys, Load, ModelServer, Phase, Scenario, Stream, UnsupportedError
from harness.scenario.request_mix import Content
from suites.scenarios import disturbing_intervals_s, key_carrier

START_S = 0.1
KEYS = Keys(50, "uniform")

# --- rate ---------------------------------------------------------------------------------------------------

CALM_STREAM, HOT = "calm", "hot"
CALM_SHARE, CALM_S = 0.5, 0.6
"""Share of the rate sent beforehand, and for how long: within the limits by every method of counting."""

TIMES = 3.0
HOT_S = 1.0
BURSTS = 1.5
"""Duration of the overload in multiples of the time in which the rate makes up a burst, if longer than a second."""

MOST_PER_S, MOST_HOT_S = 3000.0, 5.0


def hot_s(limits: Limits) -> float:
    """Duration of the overload in seconds."""
    assert limits.rate_per_s is not None
    return max(HOT_S, BURSTS * limits.burst / limits.rate_per_s)


def hot_second(claims: Claims) -> Scenario:
    """Half the claimed rate for a while, then three times the rate for a second; every request is short."""
    limits = claims[Limits]
    if limits.rate_per_s is None:
        raise UnsupportedError("no rate is claimed")
    hot_per_s, lasts_s = TIMES * limits.rate_per_s, hot_s(limits)
    if hot_per_s > MOST_PER_S or lasts_s > MOST_HOT_S or limits.rate_per_s < 1 / HOT_S:
        raise UnsupportedError(f"{limits.rate_per_s:g} requests/s, {limits.burst} at once: too many or too few to send")
    calm_per_s, hot_start_s = CALM_SHARE * limits.rate_per_s, START_S + CALM_S
    streams = (
        Stream(CALM_STREAM, START_S, calm_per_s, math.ceil(CALM_S * calm_per_s), KEYS),
        Stream(HOT, hot_start_s, hot_per_s, math.ceil(lasts_s * hot_per_s), KEYS, arrivals="poisson"),
    )
    return Scenario(
        name="hot-second",
        backends=claims.fleet(4, at_least=1),
        load=Load(streams, key_carrier(claims)),
        phases=(Phase(CALM_STREAM, START_S, hot_start_s), Phase(HOT, hot_start_s, hot_start_s + lasts_s)),
        intervals_s=(HOT_S, *disturbing_intervals_s(claims)),
    )


# --- concurrency --------------------------------------------------------------------------------------------

NORMAL, CRITICAL = "normal", "critical"
CROWD_TIMES = 2.0
"""Offered load as a multiple of the throughput at the claimed concurrency."""

CRITICAL_SHARE = 0.2
CRITICALS = 16
RATE_TO_SPARE = 0.8
"""Largest share of the claimed rate that the load uses, so that no request is rejected for the rate."""

SERVICE_S, MOST_SERVICE_S = 0.2, 1.0
DECODE_STEPS = 10
MOST_FILLING_S = 2.0


def crowd(claims: Claims) -> Scenario:
    """Twice the throughput at the claimed concurrency, so that the queue is full of normal requests.

    One request in five is critical: far fewer than the queue holds, so it is never full of critical requests.
    """
    limits = claims[Limits]
    if limits.concurrency is None or not limits.queue:
        raise UnsupportedError("no concurrency is claimed, or no queue")
    most_per_s = math.inf if limits.rate_per_s is None else RATE_TO_SPARE * limits.rate_per_s
    service_s = max(SERVICE_S, CROWD_TIMES * limits.concurrency / most_per_s)
    throughput_per_s = limits.concurrency / service_s
    offered_per_s = CROWD_TIMES * throughput_per_s
    filling_s = (limits.concurrency + limits.queue) / (offered_per_s - throughput_per_s)
    if service_s > MOST_SERVICE_S or filling_s > MOST_FILLING_S or offered_per_s > MOST_PER_S:
        raise UnsupportedError(f"{limits.concurrency} at once and {limits.queue} waiting take too long to fill")
    critical_per_s = CRITICAL_SHARE * offered_per_s
    full_s = START_S + 1.25 * filling_s
    end_s = full_s + CRITICALS / critical_per_s
    normal_per_s = offered_per_s - critical_per_s
    streams = (
        Stream(NORMAL, START_S, normal_per_s, int((end_s - START_S) * normal_per_s), KEYS, output_tokens=DECODE_STEPS),
        Stream(
            CRITICAL,
            full_s,
            critical_per_s,
            CRITICALS,
            KEYS,
            output_tokens=DECODE_STEPS,
            content=Content(critical_share=1.0),
        ),
    )
    return Scenario(
        name="crowd",
        backends=claims.fleet(4, at_least=1),
        load=Load(streams, key_carrier(claims)),
        server=ModelServer(max_running=4 * limits.concurrency, decode_step_s=service_s / DECODE_STEPS),
        intervals_s=(service_s, *disturbing_intervals_s(claims)),
    )
