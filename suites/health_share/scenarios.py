"""Scenarios of health-weighted shares and the shares that a score calls for. No property is declared here.

All judged load consists of updates, each over its own connection: a sequential test needs one independent decision per
request, and picks that stay with a connection for ten requests would raise its false alarms from 1e-4 to 41 %.
"""

from __future__ import annotations

import math

from harness.claims.features import Claims, HealthChecks, HealthShare
from harness.scenario.faults import CutOff, FailingStatus, NotReady, Slow
from harness.scenario.model import Connections, Keys, Kind, Load, ModelServer, Phase, Scenario, Stream, UnsupportedError
from harness.stats import ALPHA, ShareTest
from suites.margins import KNOWN_WITHIN_S

SICK = "gpu-1"
RATE_PER_S = 750.0
"""Request rate in the short periods that are judged."""

TRICKLE_PER_S = 100.0
"""Smallest request rate between judged periods: it keeps windows filled and shows which backends get requests."""

TRICKLE = "trickle"
CALLS_TO_SPARE = 1.5
"""Calls in a window as a multiple of the minimum."""

START_S = 0.4
"""Start of the load, when a fault that must be present from the first request on has long been set."""

SMALLEST_WEIGHT = 0.15
"""Smallest weight that is tested; a smaller one moves a share too little for a test of this length."""

Zone = tuple[float, float]


def share_of(score: float, backends: int, others: float = 1.0) -> float:
    """Share of a backend with this score where all others have the score `others`."""
    total = score + others * (backends - 1)
    return score / total if total else 0.0


def even_zone(backends: int) -> tuple[Zone, Zone]:
    """Conforming within 10 % of 1/n, as with a p99 that is by chance 50 % longer; violating from 50 % on."""
    fair = 1.0 / backends
    return (0.9 * fair, 1.1 * fair), (0.5 * fair, 1.5 * fair)


def weighed_zone(score: float, backends: int) -> tuple[Zone, Zone]:
    """Zones for one backend with this score among healthy ones.

    Conforming from score/n (a share of the even share, the other reading of a weight) to .05 more score; violating at
    half the score or at an even share. For .6 of four backends: .15 to .1781 against .0909 and .25.
    """
    conform = (score / backends, share_of(score + 0.05, backends))
    return conform, (share_of(score / 2, backends), 1.0 / backends)


def recovered_zone(score: float, backends: int) -> tuple[Zone, tuple[float, None]]:
    """Zones for one backend that is healthy again: within 5 % of even, against the share of its old score."""
    fair = 1.0 / backends
    return (0.95 * fair, 1.05 * fair), (share_of(score, backends), None)


def returned_zone(backends: int) -> tuple[Zone, Zone]:
    """Zones for one backend that is ready again: within 10 % of even, against 40 % of that or double."""
    fair = 1.0 / backends
    return (0.9 * fair, 1.1 * fair), (0.4 * fair, 2.0 * fair)


def cap_of(zones: tuple[Zone, tuple[float | None, float | None]], alpha: float = ALPHA) -> int:
    """Maximum number of requests after which the sequential test between the zones decides."""
    return ShareTest(*zones, alpha).cap


# --- claims that all scenarios require ----------------------------------------------------------------------


def require_detectable(claims: Claims, components: tuple[str, ...]) -> None:
    """Raise UnsupportedError unless updates can pass and each weight, and the rest beside all, can be detected."""
    if claims.protocol != "http":
        raise UnsupportedError(f"protocol {claims.protocol} has no updates")
    weights: dict[str, float] = {name: getattr(claims[HealthShare], name) for name in components}
    for name, weight in weights.items():
        if weight < SMALLEST_WEIGHT:
            raise UnsupportedError(
                f"the weight of {name} is {weight:g}, below {SMALLEST_WEIGHT:g}: too little to detect"
            )
    if (left := 1 - sum(weights.values())) < SMALLEST_WEIGHT:
        raise UnsupportedError(f"without {' and '.join(components)} a score is {left:.2g}, too little to detect")


def updates(name: str, start_s: float, requests: int, rate_per_s: float = RATE_PER_S) -> Stream:
    """Updates at a steady rate, each over its own connection."""
    return Stream(name, start_s, rate_per_s, requests, kind=Kind.UPDATE, connections=Connections.FRESH)


def _burst(name: str, start_s: float, cap: int) -> Stream:
    """Updates that amount to `cap` together with a trickle, or slightly more."""
    return updates(name, start_s, math.ceil(cap * RATE_PER_S / (RATE_PER_S + TRICKLE_PER_S)) + 2)


def _trickle(claims: Claims, share: float, start_s: float, end_s: float) -> Stream:
    """Updates that give a backend with this share of them 1.5 times the minimum number of calls in its window.

    The backend reaches the minimum two thirds of a window after they begin. UnsupportedError if that needs a higher
    rate than the judged periods have.
    """
    health = claims[HealthShare]
    rate_per_s = max(TRICKLE_PER_S, CALLS_TO_SPARE * health.minimum_calls / (share * health.window_s))
    if rate_per_s > RATE_PER_S:
        raise UnsupportedError(
            f"{health.minimum_calls} calls in a window of {health.window_s:g} s need {rate_per_s:.0f} requests/s"
        )
    return updates(TRICKLE, start_s, int((end_s - start_s) * rate_per_s), rate_per_s)


# --- one fails ----------------------------------------------------------------------------------------------


def failing_score(claims: Claims) -> float:
    """Score of a backend whose every answer is an error and that is healthy in all other components."""
    return 1.0 - claims[HealthShare].errors


FAILING, HEALED = "failing", "healed"


def one_fails(claims: Claims) -> Scenario:
    """One of four backends answers every request with 503, passes its health checks, and is healed later.

    The phases "failing" and "healed" are judged. Each begins one window after the change, when earlier results have
    left the window; until then there is a trickle.
    """
    require_detectable(claims, ("errors",))
    backends = claims.fleet(4, at_least=3)
    score = failing_score(claims)
    window_s = claims[HealthShare].window_s
    failing, healed = cap_of(weighed_zone(score, backends)), cap_of(recovered_zone(score, backends))
    fault_s = START_S / 4
    while_failing = _burst(FAILING, fault_s + window_s + 2 * KNOWN_WITHIN_S, failing)
    heal_s = while_failing.end_s + KNOWN_WITHIN_S
    once_healed = _burst(HEALED, heal_s + window_s + 2 * KNOWN_WITHIN_S, healed)
    end_s = once_healed.end_s
    streams = (_trickle(claims, share_of(score, backends), START_S, end_s), while_failing, once_healed)
    return Scenario(
        name="one-fails",
        backends=backends,
        load=Load(streams),
        server=ModelServer(update_s=0.02),
        timeline=(FailingStatus(SICK, fault_s, 503, for_s=heal_s - fault_s),),
        phases=(Phase(FAILING, while_failing.start_s, heal_s), Phase(HEALED, once_healed.start_s, end_s)),
        intervals_s=(window_s,),
    )


# --- healthy, then one is not ready -------------------------------------------------------------------------

HEALTHY, NOT_READY, READY_AGAIN = "healthy", "not-ready", "ready-again"

SILENT_S = 1.0
"""Period in which a backend that is out gets nothing; with a weight of .15 it would have had five requests of the
trickle."""


def detection_s(claims: Claims) -> float:
    """Longest time from a fault to the last health check that has to fail, answered as late as claimed."""
    checks = claims[HealthChecks]
    return checks.unhealthy * checks.interval_s + checks.timeout_s


def return_s(claims: Claims) -> float:
    """Longest time from healing to the last health check that has to pass, answered as late as claimed."""
    checks = claims[HealthChecks]
    return checks.healthy * checks.interval_s + checks.timeout_s


def one_not_ready(claims: Claims) -> Scenario:
    """A healthy fleet of four; then, where health checks are claimed, one backend is not ready for a while.

    It still serves requests, so its answers show no fault. The shares are judged in the phases "healthy" and
    "ready-again"; between them a trickle shows whether it gets requests.
    """
    require_detectable(claims, ())
    backends = claims.fleet(4, at_least=3)
    healthy = cap_of(even_zone(backends), ALPHA / backends)
    out_s = START_S + healthy / RATE_PER_S + KNOWN_WITHIN_S
    streams = [updates(HEALTHY, START_S, healthy)]
    timeline: tuple[NotReady, ...] = ()
    phases = [Phase(HEALTHY, START_S, out_s)]
    intervals = [claims[HealthShare].window_s]
    if HealthChecks in claims:
        back_s = out_s + detection_s(claims) + SILENT_S
        again_s = back_s + return_s(claims) + KNOWN_WITHIN_S
        again = cap_of(returned_zone(backends))
        end_s = again_s + again / RATE_PER_S
        streams += [_trickle(claims, 1 / backends, out_s, again_s), updates(READY_AGAIN, again_s, again)]
        timeline = (NotReady(SICK, out_s, for_s=back_s - out_s),)
        phases += [Phase(NOT_READY, out_s, back_s), Phase(READY_AGAIN, again_s, end_s)]
        intervals += [claims[HealthChecks].interval_s, claims[HealthChecks].timeout_s]
    return Scenario(
        name="one-not-ready",
        backends=backends,
        load=Load(tuple(streams)),
        server=ModelServer(update_s=0.005),
        timeline=timeline,
        phases=tuple(phases),
        intervals_s=tuple(intervals),
    )


# --- one has a tail -----------------------------------------------------------------------------------------

TAIL = "tail"
SERVICE_S = 0.02
SLOWER = 20.0
"""Latency of a slow answer in multiples of the baseline; the latency component is then .05, nearly all of it lost."""

LOST_AT_LEAST = 0.75
"""Share of the latency component that a tail must cost, as measured, for its effect to be detectable. Planned is .95;
on a slow machine the other backends' p99 rises, and with it the baseline, to at most five times the service time."""

LONGEST_BASELINE_S = 0.1
PULSES_A_WINDOW = 2.0
PULSE_SHARE = 0.1
"""A tenth of the time, twice a window: far over the 1 % that make a p99, while nine answers in ten are fast."""


def tail_zone(claims: Claims, backends: int) -> tuple[Zone, Zone]:
    """Planned zones for a backend with a slow tail; the check narrows them by the measured latencies."""
    weight = claims[HealthShare].latency
    low, high = share_of(1 - weight, backends), share_of(1 - LOST_AT_LEAST * weight, backends)
    return (low, high), (low / 2, 1.0 / backends)


def one_has_a_tail(claims: Claims) -> Scenario:
    """One of three backends is slow in short periods, a tenth of the time, and fast otherwise.

    Its p99 is that of the slow answers throughout, while its last answer is nearly always as fast as any other
    backend's.
    """
    require_detectable(claims, ("latency",))
    backends = claims.fleet(3, at_least=3)
    health = claims[HealthShare]
    _trickle(claims, share_of(1 - health.latency, backends), 0.0, 0.0)  # raises if a window is too short for a p99
    baseline_s = health.baseline_p99_s or SERVICE_S
    if baseline_s > LONGEST_BASELINE_S:
        raise UnsupportedError(f"a baseline of {baseline_s:g} s needs answers of {SLOWER * baseline_s:g} s")
    service_s = SERVICE_S if health.baseline_p99_s is None else baseline_s / 2
    slow_s = SLOWER * baseline_s
    period_s = health.window_s / PULSES_A_WINDOW
    pulse_s = PULSE_SHARE * period_s
    began_s = START_S + max(0.1, 2 * service_s)
    judged_s = began_s + pulse_s + slow_s + 2 * KNOWN_WITHIN_S
    end_s = judged_s + cap_of(tail_zone(claims, backends)) / RATE_PER_S
    pulses = int((end_s - began_s) / period_s) + 1
    timeline = tuple(
        Slow(SICK, began_s + turn * period_s, slow_s / service_s, for_s=pulse_s)
        for turn in range(pulses)
        if began_s + turn * period_s + pulse_s < end_s
    )
    return Scenario(
        name="one-has-a-tail",
        backends=backends,
        load=Load((updates(TAIL, START_S, int((end_s - START_S) * RATE_PER_S)),)),
        server=ModelServer(update_s=service_s),
        timeline=timeline,
        phases=(Phase(TAIL, judged_s, end_s),),
        intervals_s=(health.window_s,),
    )


# --- one holds a large model --------------------------------------------------------------------------------

MEMORY_MB = 80_000
WEIGHTS_MB = 75_000
"""Just under 95 % of the memory, above which a balancer may take a backend out of rotation."""

LOAD_S = 0.05
DECODE_STEP_S = 0.005
TOUCH, WARM, HOLD, FULL = "touch", "warm", "hold", "full"

HOLD_S = 1.85
"""How long a request holds the model: below any usual timeout of an attempt. Two such holds are enough then."""

HOLD_EVERY_S = 2.0
HELD_AT_LEAST_S = 0.3
"""Shortest time that must be left of a hold once the balancer has a report of it."""


def full_score(claims: Claims) -> float:
    """Score of a backend that fails every request and whose large model is in use."""
    health = claims[HealthShare]
    return 1.0 - health.errors - health.memory * WEIGHTS_MB / MEMORY_MB


def full_share(claims: Claims, backends: int) -> float:
    """Share of that backend where the others fail every request too, and have their memory free."""
    return share_of(full_score(claims), backends, failing_score(claims))


def full_zone(claims: Claims, backends: int) -> tuple[Zone, Zone]:
    """Zones for a backend whose memory is in use: its share, against that of half its score and an even one."""
    share = full_share(claims, backends)
    return (share, share), (share_of(full_score(claims) / 2, backends, failing_score(claims)), 1.0 / backends)


def warm_zone(claims: Claims, backends: int) -> tuple[Zone, tuple[float, None]]:
    """Zones for a backend whose memory is full of an idle model: 1/n, against its share if that counted as in use."""
    fair = 1.0 / backends
    return (fair, fair), (full_share(claims, backends), None)


def reported_s(claims: Claims) -> float:
    """Maximum delay, in seconds, before a change of a backend's memory use reaches the balancer in a load report."""
    return claims[HealthChecks].interval_s + claims[HealthChecks].timeout_s


def one_holds_a_model(claims: Claims) -> Scenario:
    """One of two backends has its memory full of an idle model; then long requests hold the model, one at a time.

    Many updates are sent in the phase "warm", while the model is idle, and whenever a request holds it and the balancer
    has a report of that. All answers are cut off, so that both backends fail and memory is a larger part of their
    remaining scores: for scores of 1 and .81 no test could distinguish the shares with fewer than 5,000 requests, for
    .6 and .41 1,600 are enough. Latency has no effect then.
    """
    require_detectable(claims, ("errors", "memory"))
    checks, health = claims[HealthChecks], claims[HealthShare]
    if health.window_s < 2 * checks.interval_s:
        raise UnsupportedError(f"a report counts for {health.window_s:g} s, less than two health check intervals")
    held_s = HOLD_S - checks.interval_s - 2 * KNOWN_WITHIN_S
    if held_s < HELD_AT_LEAST_S:
        raise UnsupportedError(
            f"health checks every {checks.interval_s:g} s are too rare to report a hold of {HOLD_S:g} s"
        )
    backends = claims.fleet(2)
    warm, full = cap_of(warm_zone(claims, backends)), cap_of(full_zone(claims, backends))
    touch_s = START_S / 2
    failing_s = health.window_s / CALLS_TO_SPARE  # all requests fail, and by then their number is sufficient
    while_warm = _burst(WARM, START_S + max(failing_s, reported_s(claims)) + KNOWN_WITHIN_S, warm)
    full_s = while_warm.end_s + KNOWN_WITHIN_S
    holds = math.ceil(full / (RATE_PER_S + TRICKLE_PER_S) / held_s)
    end_s = full_s + (holds - 1) * HOLD_EVERY_S + HOLD_S
    one, tokens = Keys(1, "sweep"), int(HOLD_S / DECODE_STEP_S)
    streams = [
        Stream(TOUCH, touch_s, 1.0, 1, one),
        Stream(HOLD, full_s, 1 / HOLD_EVERY_S, holds, one, output_tokens=tokens),
        _trickle(claims, full_share(claims, backends), START_S, end_s),
        while_warm,
    ]
    for turn in range(holds):
        reported_at_s = full_s + turn * HOLD_EVERY_S + checks.interval_s + KNOWN_WITHIN_S
        streams.append(_burst(f"{FULL}-{turn}", reported_at_s, math.ceil(full / holds)))
    return Scenario(
        name="one-holds-a-model",
        backends=backends,
        load=Load(tuple(streams)),
        server=ModelServer(memory_mb=MEMORY_MB, weights_mb=WEIGHTS_MB, load_s=LOAD_S, decode_step_s=DECODE_STEP_S),
        timeline=tuple(CutOff(f"gpu-{number}", START_S / 4) for number in range(backends)),
        phases=(Phase(WARM, while_warm.start_s, while_warm.end_s), Phase(FULL, full_s, end_s)),
        intervals_s=(checks.interval_s, checks.timeout_s, health.window_s),
    )
