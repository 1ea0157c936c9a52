"""Health-weighted shares: a backend with many active connections gets less, by the weight of the connections."""

from __future__ import annotations

from harness.claims.features import BoundedLoad, Claims, HealthShare
from harness.evidence.history import History
from harness.evidence.tables import Mask, Times
from harness.property.declare import declare
from harness.property.findings import Findings
from harness.scenario.faults import CutOff, Slow
from harness.scenario.model import Load, ModelServer, Phase, Scenario, UnsupportedError, World
from suites.health_share.evidence import judge_share
from suites.health_share.scenarios import (
    SICK,
    START_S,
    Zone,
    cap_of,
    failing_score,
    require_detectable,
    share_of,
    updates,
)
from suites.health_share.shares import MASKS
from suites.margins import KNOWN_WITHIN_S

CROWD = "crowd"
UPDATE_S, HELD_S = 0.001, 1.6
"""Service time of an update at the normal backend, and at the crowded one, in seconds."""

BEYOND = 1.1
"""Target number of connections as a multiple of those that cost the whole component, because picks are random."""

MOST_PER_S, MOST_REQUESTS = 1000.0, 10_000


def crowded_share(claims: Claims, backends: int) -> float:
    """Share of the crowded backend where all backends fail every request."""
    return share_of(failing_score(claims) - claims[HealthShare].connections, backends, failing_score(claims))


def crowded_zone(claims: Claims, backends: int) -> tuple[Zone, Zone]:
    """Zones for a backend with too many connections: its share, against that of half its score and an even one."""
    share, score = crowded_share(claims, backends), failing_score(claims) - claims[HealthShare].connections
    return (share, share), (share_of(score / 2, backends, failing_score(claims)), 1.0 / backends)


def full_connections(claims: Claims) -> int:
    """Number of active connections that costs a backend the whole component."""
    return claims[HealthShare].free_connections + claims[HealthShare].connection_span


def one_is_crowded(claims: Claims) -> Scenario:
    """One of two backends holds each request for 1.6 s, 660 at a time, and the other answers at once.

    All answers are cut off, so that both backends fail and the connections are a larger part of their remaining scores:
    6,500 requests distinguish scores of .5 and .6, and 20,000 requests .9 and 1. Latency has no effect then.
    """
    require_detectable(claims, ("errors",))
    backends = claims.fleet(2)
    rate_per_s = BEYOND * full_connections(claims) / (crowded_share(claims, backends) * HELD_S)
    if rate_per_s > MOST_PER_S:
        raise UnsupportedError(f"{full_connections(claims)} connections at a time need {rate_per_s:.0f} requests/s")
    zones = crowded_zone(claims, backends)
    if zones[0][1] >= zones[1][1] or (cap := cap_of(zones)) > MOST_REQUESTS:
        weight = claims[HealthShare].connections
        raise UnsupportedError(f"the weight of connections is {weight:g}, too little to detect")
    judged_s = START_S + HELD_S + 2 * KNOWN_WITHIN_S
    end_s = judged_s + BEYOND * cap / rate_per_s
    slowness = HELD_S / UPDATE_S
    return Scenario(
        name="one-is-crowded",
        backends=backends,
        load=Load((updates(CROWD, START_S, int((end_s - START_S) * rate_per_s), rate_per_s),)),
        server=ModelServer(update_s=UPDATE_S, max_running=4 * full_connections(claims)),
        timeline=(
            *(CutOff(f"gpu-{number}", START_S / 4) for number in range(backends)),
            Slow(SICK, START_S / 4, slowness),
        ),
        phases=(Phase(CROWD, judged_s, end_s),),
        intervals_s=(claims[HealthShare].window_s,),
    )


def _crowded(history: History, claims: Claims, backend: int, sent_s: Times) -> Mask:
    """Times at which a backend had at least the connections that cost the whole component, and no other had more than
    its free ones."""
    mask: Mask = history.attempts_on(backend).in_flight_at(sent_s) >= full_connections(claims)
    for other in range(history.scenario.backends):
        if other != backend:
            mask &= history.attempts_on(other).in_flight_at(sent_s) <= claims[HealthShare].free_connections
    return mask


@declare(
    "health-share.connections.by-their-weight",
    needs=(HealthShare,),
    without=MASKS,
    off=(BoundedLoad,),
    scenario=one_is_crowded,
    # 900 updates a second for ten seconds, each over its own connection. This works over sockets too, but with 20 ms
    # of slack on two cores, and takes thirteen seconds, a tenth of a whole live run.
    worlds=(World.SIM,),
)
def connections_by_their_weight(history: History, claims: Claims) -> Findings:
    """A backend with too many active connections gets less, by the weight of the connections and no more.

    The check counts the picks made while the backend had enough connections to lose the whole component, and no other
    backend had more than the free number. With weights of .4 and .1 the scores are .5 and .6 and its share is .4545,
    where a balancer that ignores connections gives one half. A sequential test distinguishes the two. Known
    violations: by construction only.
    """
    slow, phase = history.step("Slow", SICK), history.scenario.phase(CROWD)
    if slow is None:
        return
    sent = history.all_requests().updates().sent_between(phase.start_s, phase.end_s).reached()
    sent = sent.where(_crowded(history, claims, slow.backend, sent["sent_s"]))
    backends = history.scenario.backends
    note = f"crowded, which calls for {crowded_share(claims, backends):.4f}"
    zones = crowded_zone(claims, backends)
    yield from judge_share(sent.first_backends(), slow.backend, zones, phase.start_s, phase.end_s, note)
