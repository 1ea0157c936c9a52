"""Scenarios shared by several families, so that their properties share runs. Declares no property."""

from __future__ import annotations

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
from harness.evidence.history import History, StepSeen
from harness.scenario.faults import Join, Leave, Step
from harness.scenario.model import Keys, Load, Method, Scenario, Stream

DISTURBING = (BoundedLoad, Breaker, Ejection, HealthChecks, HealthShare, Hedge, Retry)
"""Features that can move a key or add an attempt; off in scenarios without a fault for them to react to."""

KEY_MOVERS = (BoundedLoad, HealthShare)
"""Features that move keys by design; the mapping cannot be judged while one of them is on."""

DEFAULT_CARRIER = "header:x-model-id"


def key_carrier(claims: Claims) -> str:
    """The part of a request that carries the affinity key for this target."""
    return claims[Affinity].key if Affinity in claims else DEFAULT_CARRIER


ENOUGH = 0.5
"""Smallest share of a stream's requests that must be observed (have reached a backend, say) for a verdict."""


def too_few_reached(history: History, stream: str) -> str:
    """Reason for `undecided` if too few requests of a stream reached a backend; empty if enough or none did."""
    requests = history.requests_in(stream)
    requested, reached = len(requests), len(requests.reached())
    return f"only {reached} of {requested} requests reached a backend" if 0 < reached < ENOUGH * requested else ""


def undisturbed(claims: Claims) -> bool:
    """Whether every feature of DISTURBING is off, so that no delay can have moved a key."""
    return all(cls not in claims for cls in DISTURBING)


def disturbing_intervals_s(claims: Claims) -> tuple[float, ...]:
    """Intervals, in seconds, of the features of DISTURBING that stay on; a noisy machine can make these move keys."""
    intervals_s: list[float] = []
    if HealthChecks in claims:
        intervals_s += [claims[HealthChecks].interval_s, claims[HealthChecks].timeout_s]
    if Ejection in claims:
        intervals_s.append(claims[Ejection].open_s)
    if Breaker in claims:
        intervals_s.append(claims[Breaker].open_s)
    return tuple(intervals_s)


def can_get(claims: Claims) -> bool:
    """Whether a GET can carry the key: the target forwards any path, and the key is not in the body."""
    carrier = key_carrier(claims)
    in_body = carrier.startswith("prompt-prefix:") or (carrier.startswith("json:") and carrier != "json:model")
    return claims.protocol == "http" and not in_body


def methods(claims: Claims) -> tuple[Method, ...]:
    """Methods of inference requests: POST and GET in turn where both pass."""
    return (Method.POST, Method.GET) if can_get(claims) else (Method.POST,)


def carried_out(history: History) -> list[tuple[Step, StepSeen]]:
    """Each step of the timeline that was carried out, with what was seen of it, in order of execution."""
    planned = sorted(history.scenario.timeline, key=lambda step: step.at_s)
    return list(zip(planned, history.steps, strict=False))


def steady(claims: Claims) -> Scenario:
    """A healthy fleet under Poisson traffic: 250 keys, four requests for each, about five in flight at a time."""
    traffic = Stream(
        name="traffic",
        start_s=0.1,
        rate_per_s=800.0,
        requests=1000,
        keys=Keys(250, "sweep"),
        arrivals="poisson",
        output_tokens=16,
    )
    return Scenario(
        name="steady",
        backends=claims.fleet(4),
        load=Load((traffic,), key_carrier(claims)),
        intervals_s=disturbing_intervals_s(claims),
    )


LEAVE_KEYS = 1000
SWEEP_RATE_PER_S = 800.0
SETTLE_S = 0.8
"""Pause between two sweeps. The membership change comes after a quarter of it; a reload has the rest to complete."""


def leave_and_return(claims: Claims) -> Scenario:
    """Three sweeps over all keys; a backend leaves after the first and returns after the second.

    The first backend of the list leaves, because there an order-dependent mapping shows most (HAProxy's default ids:
    .114 of the keys moved on removing the last, .996 on removing the first). Under jump hashing the last backend
    leaves, because it can only lose its last bucket.
    """
    claims.need_membership()
    backends = claims.fleet(4, at_least=3)
    leaver = f"gpu-{backends - 1}" if claims[Affinity].algorithm == "jump" else "gpu-0"
    sweep_s = LEAVE_KEYS / SWEEP_RATE_PER_S
    starts_s = [0.1 + sweep * (sweep_s + SETTLE_S) for sweep in range(3)]
    streams = tuple(
        Stream(
            name=name,
            start_s=start_s,
            rate_per_s=SWEEP_RATE_PER_S,
            requests=LEAVE_KEYS,
            keys=Keys(LEAVE_KEYS, "sweep"),
        )
        for name, start_s in zip(("before", "after", "restored"), starts_s, strict=True)
    )
    changes = (
        Leave(leaver, starts_s[0] + sweep_s + SETTLE_S / 4),
        Join(leaver, starts_s[1] + sweep_s + SETTLE_S / 4),
    )
    return Scenario(
        name="leave-and-return",
        backends=backends,
        load=Load(streams, key_carrier(claims)),
        timeline=changes,
        intervals_s=disturbing_intervals_s(claims),
    )


def leaver_of(scenario: Scenario) -> str:
    """The backend that leaves and returns in `leave_and_return`."""
    (leave,) = (step for step in scenario.timeline if isinstance(step, Leave))
    return leave.backend
