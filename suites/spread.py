"""Spread: requests without a key are distributed over the fleet, even when they arrive over one connection.

Where load is claimed to count, a backend that has many more requests in flight than the others gets fewer.
"""

from __future__ import annotations

import math

import numpy as np

from harness.claims.features import Claims, HealthShare, Spread
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings, held, sampled, undecided
from harness.scenario.faults import Slow
from harness.scenario.model import Connections, Kind, Load, ModelServer, Scenario, Stream, UnsupportedError, World
from harness.stats import ALPHA, ShareTest
from suites.scenarios import DISTURBING, disturbing_intervals_s, too_few_reached, undisturbed

Zone = tuple[float, float]
"""Smallest and largest conforming share, both inclusive."""

Violating = tuple[float | None, float | None]
"""A violating share is at most the first value or at least the second."""

RATE_PER_S = 400.0
TURNS = 100
"""Requests per backend where round robin is claimed; few are enough, since each full turn must be exact."""


def _zone(backends: int, policy: str) -> tuple[Zone, Violating]:
    """Conforming share 1/n; violating from 40 % less or more on.

    A balancer that picks by latency may favour or avoid a backend as far as the better of two does: up to 2/n.
    Violating shares start half way between that and 1; with only two backends there are none, which raises
    UnsupportedError.
    """
    fair = 1.0 / backends
    if policy != "ewma":
        return (fair, fair), (0.6 * fair, 1.4 * fair)
    if backends < 3:
        raise UnsupportedError("ewma may send every request to one of two backends")
    return (0.0, 2 * fair), (None, fair + 0.5)


def one_connection(claims: Claims) -> Scenario:
    """Updates, one after the other, over a single kept connection; as many as the sequential test may need."""
    if claims.protocol != "http":
        raise UnsupportedError(f"protocol {claims.protocol} has no updates")
    backends, spread = claims.fleet(4), claims[Spread]
    if spread.is_weighted and HealthShare in claims:
        raise UnsupportedError("weights that follow health need not be equal")
    if spread.is_round_robin:
        requests = TURNS * backends
    else:
        requests = ShareTest(*_zone(backends, spread.policy), ALPHA / backends).cap
    updates = Stream(
        name="updates",
        start_s=0.1,
        rate_per_s=RATE_PER_S,
        requests=requests,
        kind=Kind.UPDATE,
        connections=Connections.ONE,
    )
    server = ModelServer(update_s=0.0005)
    return Scenario(
        name="one-connection",
        backends=backends,
        load=Load((updates,)),
        server=server,
        intervals_s=disturbing_intervals_s(claims),
    )


@declare(
    "spread.one-connection.even",
    needs=(Spread,),
    off=DISTURBING,
    scenario=one_connection,
)
def one_connection_even(history: History, claims: Claims) -> Findings:
    """Updates over one kept connection are spread evenly: the balancer balances requests, not connections.

    Round robin, weighted or not, is exact to one request for each worker that counts on its own; all weights are equal
    here. Other policies are judged by a sequential test per backend: share 1/n against 40 % less or more, false alarms
    1e-4 in all, power .999. With `ewma` latencies decide, so a share is at most 2/n, and violates half way from there
    to 1. Known violations: layer-4 balancing, which sends all requests of one connection to one backend.
    """
    first = history.all_requests().reached().first_backends()
    backends = history.scenario.backends
    if not len(first):
        return
    if too_few := too_few_reached(history, "updates"):
        yield undecided(too_few)
        return
    end_s = history.scenario.end_s
    if claims[Spread].is_round_robin:
        counts = np.bincount(first, minlength=backends)
        off_by = float(np.abs(counts - len(first) / backends).max())
        note = f"requests by backend: {', '.join(str(count) for count in counts)}"
        allowed = claims[Spread].workers
        exact = undisturbed(claims)
        yield held(off_by <= allowed, 0.0, off_by, allowed, exact, end_s, len(first), note=note)
        return
    conform, violate = _zone(backends, claims[Spread].policy)
    for number in range(backends):
        hits = (first == number).tolist()
        share = f"gpu-{number} got {sum(hits)} of {len(hits)}"
        yield sampled(
            hits, conform=conform, violate=violate, at_s=0.0, until_s=end_s, alpha=ALPHA / backends, note=share
        )


# --- load -------------------------------------------------------------------------------------------------

SLOW = "gpu-0"
UPDATE_S, SLOWNESS = 0.02, 20.0
"""Service time of an update at a fast backend in seconds, and the factor at the slow backend: 0.4 s."""

STEADY_PER_S = 300.0
"""Two in flight at each of three fast backends: few compared with the ten that a salvo leaves at the slow backend."""

SALVO, SALVO_PER_S, SALVO_EVERY_S = 40, 4000.0, 0.5
"""Updates in a salvo, sent within half the service time of one, so that each backend gets its share before any has
ended."""

CLEARLY_MORE = 3
"""A difference in flight that is certain, although the counts of a balancer and of a backend differ by the requests on
the network."""


def loaded_zone(backends: int) -> tuple[Zone, Violating]:
    """Conforming up to 40 % less than 1/n (random picks give 1/n); violating from 10 % less on."""
    fair = 1.0 / backends
    return (0.0, 0.6 * fair), (None, 0.9 * fair)


def one_slow(claims: Claims) -> Scenario:
    """A steady stream of updates to a fleet in which one backend takes twenty times as long, and salvos to all of it.

    The fast backends finish a salvo at once, so for most of the time until the next salvo only the slow backend has
    many requests in flight. The number of salvos is what the sequential test needs if a balancer ignores load.
    """
    if claims.protocol != "http":
        raise UnsupportedError(f"protocol {claims.protocol} has no updates")
    if not claims[Spread].is_load_aware:
        raise UnsupportedError(f"{claims[Spread].policy} ignores load")
    backends = claims.fleet(4)
    salvos = math.ceil(2 * ShareTest(*loaded_zone(backends)).cap / (STEADY_PER_S * SALVO_EVERY_S))
    streams = [
        Stream("steady", 0.1, STEADY_PER_S, int(salvos * SALVO_EVERY_S * STEADY_PER_S), kind=Kind.UPDATE),
        *(
            Stream(f"salvo-{turn}", 0.2 + turn * SALVO_EVERY_S, SALVO_PER_S, SALVO, kind=Kind.UPDATE)
            for turn in range(salvos)
        ),
    ]
    return Scenario(
        name="one-slow",
        backends=backends,
        load=Load(tuple(streams)),
        server=ModelServer(update_s=UPDATE_S),
        timeline=(Slow(SLOW, 0.05, SLOWNESS),),
    )


@declare(
    "spread.loaded.avoided",
    needs=(Spread,),
    off=DISTURBING,
    scenario=one_slow,
    # Salvos at 4,000/s, which cannot be distinguished from slack over sockets.
    worlds=(World.SIM,),
)
def loaded_avoided(history: History, claims: Claims) -> Findings:
    """Where load is claimed to count, a backend with clearly more requests in flight than all others gets less.

    The check counts the updates sent while a backend that is twenty times slower has at least three more in flight than
    any other. With two choices or fewest connections it gets none of them. A sequential test: up to 0.6/n against 0.9/n
    or more, as random picks give 1/n, false alarms 1e-4, power .999. Known violations: vllm-project/router#215 (a
    count of requests in flight that went astray), sgl-project/sglang#15473 (loads that were not read counted as 0).
    """
    slow = history.step("Slow", SLOW)
    if slow is None:
        return
    backends = history.scenario.backends
    sent = history.all_requests().sent_between(slow.effective_s, math.inf).reached()
    in_flight = [history.attempts_on(number).in_flight_at(sent["sent_s"]) for number in range(backends)]
    others = np.max([in_flight[number] for number in range(backends) if number != slow.backend], axis=0)
    loaded = sent.where(in_flight[slow.backend] >= others + CLEARLY_MORE)
    if not len(loaded):
        return
    conform, violate = loaded_zone(backends)
    hits = (loaded.first_backends() == slow.backend).tolist()
    note = f"{SLOW} got {sum(hits)} of {len(hits)} sent while it had {CLEARLY_MORE} more in flight than any other"
    yield sampled(hits, conform=conform, violate=violate, at_s=slow.effective_s, note=note)
