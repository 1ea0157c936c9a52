"""Scenarios of the hedging family, each shared by several properties. This module declares no property."""

from __future__ import annotations

import math

from harness.claims.features import BoundedLoad, Breaker, Claims, Ejection, HealthChecks, HealthShare, Hedge
from harness.scenario.faults import FailingStatus, Hang, RequestFault, Slow
from harness.scenario.model import Keys, Kind, Load, Phase, Scenario, Stream, UnsupportedError
from suites.margins import GONE_WITHIN_S
from suites.scenarios import key_carrier

OTHERS = (Breaker, Ejection, HealthChecks, HealthShare, BoundedLoad)
"""Features that would take a slow or failing backend out of rotation before a hedge is needed."""

BREAKER_OTHERS = (Ejection, HealthChecks, HealthShare, BoundedLoad)
"""The same list for scenarios in which the breaker takes the backend out."""

SHORT, LONG = "short", "long"
"""Names of the streams whose clients wait for an answer; the second is a prefix of several names."""

MODELS = 8
RATE_PER_S = 300.0
UPDATES_PER_S = 40.0
MOST_FLOOD_PER_S = 340.0

SHORT_TOKENS, PATIENT_TOKENS, IMPATIENT_TOKENS = 16, 300, 400
LONG_TOKENS = (36, 48, 60, 72, 84, 96)
"""Service takes 8.5, 150.5 and 200.5 ms, and 18.5 to 48.5 ms in steps of six."""

LONG_SHARE = 2.0
"""Long requests for each request beyond the claimed quantile. The delay is then that of a long request, and the rank
above or below it often differs by six milliseconds."""

GIVE_UP_S = 0.06
"""Timeout of an impatient client. Its request takes 200 ms and is due for a hedge after 150 ms."""

STALL_S = 0.08
STALLED_SHARE = 0.8
"""Share of the requests beyond the claimed quantile that a stall may hit. With 1 the delay would be a stall's."""

SLOWNESS = 30.0
"""A request that arrives in a stall takes 255 ms, so the loser of a race that a hedge wins has far more than 100 ms
left. The longest request takes 1.5 s."""

ERRORS_S = 0.3
"""How long the other backends fail: until all requests that are hedged in a stall have been hedged."""

LEAST_SPACING_S = 0.5

SLOWDOWN, SLOWDOWN_S = 18.0, 0.45
"""Every request takes at least 150 ms for this long. Each request that arrives before such latencies are known calls
for a hedge, yet no backend has more than twenty in flight."""

AFTERWARDS_S = 0.4
"""Service is as fast as before, while delays still come from the slow period. Leaked timers of answered requests would
fire now."""

EDGE_S = 0.05
"""Time between the end of one fault and the next, so that a live run keeps their order."""

OVERLOAD_S = 0.7
SETTLE_S = 0.2

OVERLOADED = 64.0
"""Average requests in flight per backend from which a fleet is certainly not idle; the scenario normally has one or
two. Used where no threshold is claimed."""

BEYOND = 1.25
"""Factor on a claimed threshold. Above it the threshold is certainly exceeded, although some requests are still on the
network."""

FULL_WITHIN = 0.55
"""Share of the overload's duration after which the fleet has that many requests in flight."""

CANCELLED_WITHIN_S = 0.1
"""Longest time from a winner's answer until the loser's backend sees the connection close (published)."""


def warm_s(hedge: Hedge) -> float:
    """Time until the delay of every model is known, in seconds."""
    return hedge.minimum * MODELS / RATE_PER_S + SETTLE_S


def keyed(end_s: float, hedge: Hedge) -> tuple[Stream, ...]:
    """Short requests and long ones of several lengths, for the same models, up to `end_s`."""
    long_per_s = RATE_PER_S * LONG_SHARE * (1 - hedge.quantile)
    each_per_s = long_per_s / len(LONG_TOKENS)
    long = [_stream(f"{LONG}-{tokens}", each_per_s, end_s, tokens) for tokens in LONG_TOKENS]
    return (_stream(SHORT, RATE_PER_S - long_per_s, end_s, SHORT_TOKENS), *long)


def _stream(name: str, rate_per_s: float, end_s: float, tokens: int) -> Stream:
    """Requests up to `end_s`: one deviation fewer than the mean, or a slow stream would last a second longer."""
    requests = int(rate_per_s * end_s - math.sqrt(rate_per_s * end_s))
    keys = Keys(MODELS, "sweep")
    return Stream(name, 0.0, rate_per_s, requests, keys, arrivals="poisson", output_tokens=tokens)


def overloaded(hedge: Hedge) -> float:
    """Average requests in flight per backend from which a fleet counts as overloaded."""
    return OVERLOADED if hedge.load_threshold is None else BEYOND * hedge.load_threshold


def _flood(hedge: Hedge, backends: int, start_s: float) -> Stream:
    """Extra load that overloads a fleet that answers nothing, limited to the most that a run can carry."""
    required_per_s = overloaded(hedge) * backends / (FULL_WITHIN * OVERLOAD_S) - RATE_PER_S
    rate_per_s = min(max(required_per_s, 1 / OVERLOAD_S), MOST_FLOOD_PER_S)
    return Stream("flood", start_s, rate_per_s, round(rate_per_s * OVERLOAD_S), Keys(MODELS, "sweep"), "poisson")


def _patience(hedge: Hedge, stalls_s: float, spacing_s: float) -> tuple[Stream, Stream]:
    """Clients that make a slow model's delay known, followed by clients that leave before that delay."""
    first = hedge.minimum + 10
    return (
        Stream("patient", 0.0, first / (stalls_s - SETTLE_S), first, output_tokens=PATIENT_TOKENS),
        Stream("impatient", stalls_s, 20 / spacing_s, 40, output_tokens=IMPATIENT_TOKENS, timeout_s=GIVE_UP_S),
    )


def stalls(claims: Claims) -> Scenario:
    """Backends stall in turn; then half stall while the others fail, twice; then all are slow once.

    A stall slows the requests that arrive in 80 ms. Every backend stalls equally often, so the result does not depend
    on which backend owns which model.
    """
    hedge = claims[Hedge]
    backends = claims.fleet(4, at_least=2)
    names = [f"gpu-{number}" for number in range(backends)]
    spacing_s = max(LEAST_SPACING_S, STALL_S / (backends * STALLED_SHARE * (1 - hedge.quantile)))
    stalls_s = warm_s(hedge)
    errors_s = stalls_s + 2 * backends * spacing_s
    slowdown_s = errors_s + 2 * LEAST_SPACING_S
    end_s = slowdown_s + SLOWDOWN_S + AFTERWARDS_S
    timeline: list[RequestFault] = [
        Slow(names[turn % backends], stalls_s + turn * spacing_s, SLOWNESS, for_s=STALL_S)
        for turn in range(2 * backends)
    ]
    half = backends // 2
    for turn, (slow, failing) in enumerate(((names[:half], names[half:]), (names[half:], names[:half]))):
        at_s = errors_s + turn * LEAST_SPACING_S
        timeline += [Slow(name, at_s, SLOWNESS, for_s=STALL_S) for name in slow]
        timeline += [FailingStatus(name, at_s, 500, for_s=ERRORS_S) for name in failing]
    timeline += [Slow(name, slowdown_s, SLOWDOWN, for_s=SLOWDOWN_S - EDGE_S) for name in names]
    streams = [
        *keyed(end_s, hedge),
        *_patience(hedge, stalls_s, spacing_s),
    ]
    if claims.protocol == "http":
        streams.append(Stream("updates", 0.0, UPDATES_PER_S, int(UPDATES_PER_S * end_s), kind=Kind.UPDATE))
    return Scenario(
        name="stalls",
        backends=backends,
        load=Load(tuple(streams), key_carrier(claims)),
        timeline=tuple(timeline),
        phases=(
            Phase("stalls", stalls_s, errors_s),
            Phase("errors", errors_s, slowdown_s),
            Phase("slowdown", slowdown_s, slowdown_s + SLOWDOWN_S),
            Phase("afterwards", slowdown_s + SLOWDOWN_S, end_s + SETTLE_S),
        ),
        intervals_s=(GONE_WITHIN_S, CANCELLED_WITHIN_S),
    )


def overload(claims: Claims) -> Scenario:
    """All backends hang once the delays are known, while the request rate rises above any rate before.

    Hundreds of hanging requests are released at once, in a second of the run that is not judged. A hedge that is
    decided below a claimed threshold and observed above it took longer than the fleet takes to fill from one to the
    other: a fifth of the interval.
    """
    hedge = claims[Hedge]
    if overloaded(hedge) > OVERLOADED:
        raise UnsupportedError(f"hedges with up to {hedge.load_threshold:g} requests inside each backend")
    backends = claims.fleet(4, at_least=2)
    overload_s = warm_s(hedge)
    end_s = overload_s + OVERLOAD_S
    released_s = math.floor(end_s) + 1 + EDGE_S
    return Scenario(
        name="overload",
        backends=backends,
        load=Load((*keyed(end_s, hedge), _flood(hedge, backends, overload_s)), key_carrier(claims)),
        timeline=tuple(Hang(f"gpu-{number}", overload_s, for_s=released_s - overload_s) for number in range(backends)),
        phases=(Phase("overload", overload_s, released_s),),
        intervals_s=(FULL_WITHIN * OVERLOAD_S,),
    )


PROBE_SLOWNESS = 15.0
"""A short request takes 130 ms: longer than any delay here, and not slow enough to open a breaker."""

PROBING_S = 0.5
"""How long the period after the open time lasts."""


def half_open(claims: Claims) -> Scenario:
    """All backends but one fail until their breakers open; then they answer slowly, so their probes are slow."""
    hedge, breaker = claims[Hedge], claims[Breaker]
    if breaker.failures is None:
        raise UnsupportedError("the breaker does not trip on failures in a row")
    backends = claims.fleet(4, at_least=2)
    sick = [f"gpu-{number}" for number in range(1, backends)]
    fail_s = warm_s(hedge)
    fail_for_s = 2 * breaker.failures * MODELS / RATE_PER_S + SETTLE_S / 2  # enough for a backend with a single model
    slow_s = fail_s + fail_for_s
    end_s = slow_s + breaker.open_band_s(0)[1] + PROBING_S
    timeline = [FailingStatus(name, fail_s, 500, for_s=fail_for_s) for name in sick]
    slow = [Slow(name, slow_s, PROBE_SLOWNESS, for_s=end_s - slow_s) for name in sick]
    return Scenario(
        name="half-open",
        backends=backends,
        load=Load(keyed(end_s, hedge), key_carrier(claims)),
        timeline=(*timeline, *slow),
        phases=(Phase("failing", fail_s, slow_s), Phase("probing", slow_s, end_s)),
        intervals_s=(breaker.shortest_open_s,),
    )
