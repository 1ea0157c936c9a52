"""Spread: requests without a key are shared out over the fleet, also when they come over one connection."""

from __future__ import annotations

import numpy as np

from harness.claims import Claims, Spread
from harness.history import History
from harness.model import Connections, Kind, Load, ModelServer, Scenario, Stream, UnsupportedError
from harness.property import Findings, declare, held, sampled, undecided
from harness.stats import ALPHA, ShareTest
from suites.scenarios import CALM, disturbing_intervals_s, sliver, undisturbed

RATE_PER_S = 400.0
TURNS = 100
"""Requests per backend where round robin is claimed: each full turn must be exact, so few would do."""


def _zone(backends: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Conforming share 1/n; violating from 40 % less or more on."""
    fair = 1.0 / backends
    return (fair, fair), (0.6 * fair, 1.4 * fair)


def one_connection(claims: Claims) -> Scenario:
    """Updates, one after the other, over a single kept connection; as many as the sequential test may need."""
    if claims.protocol != "http":
        raise UnsupportedError(f"protocol {claims.protocol} has no updates")
    backends = claims.fleet(4)
    if claims[Spread].policy == "round_robin":
        requests = TURNS * backends
    else:
        conform, violate = _zone(backends)
        requests = ShareTest(conform, violate, ALPHA / backends).cap
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
    off=CALM,
    scenario=one_connection,
)
def one_connection_even(history: History, claims: Claims) -> Findings:
    """Updates over one kept connection are spread evenly: the balancer balances requests, not connections.

    Round robin is exact to one request for each worker that counts on its own. Other policies are judged by a
    sequential test per backend: share 1/n against 40 % less or more, false alarms 1e-4 in all, power .999. Seen broken:
    layer-4 balancing, which sends everything that comes over one connection to one backend.
    """
    first = history.first_backends()
    first = first[first >= 0]
    backends = history.scenario.backends
    if not len(first):
        return
    if poor := sliver(history, "updates"):
        yield undecided(poor)
        return
    end_s = history.scenario.end_s
    if claims[Spread].policy == "round_robin":
        counts = np.bincount(first, minlength=backends)
        off_by = float(np.abs(counts - len(first) / backends).max())
        note = f"requests by backend: {', '.join(str(count) for count in counts)}"
        allowed = claims[Spread].workers
        exact = undisturbed(history, claims)
        yield held(off_by <= allowed, 0.0, off_by, allowed, exact, end_s, len(first), note=note)
        return
    conform, violate = _zone(backends)
    for number in range(backends):
        hits = (first == number).tolist()
        share = f"gpu-{number} got {sum(hits)} of {len(hits)}"
        yield sampled(
            hits, conform=conform, violate=violate, at_s=0.0, until_s=end_s, alpha=ALPHA / backends, note=share
        )
