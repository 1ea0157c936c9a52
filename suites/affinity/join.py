"""Keys that move when a backend joins."""

from __future__ import annotations

import numpy as np

from harness.claims.features import Affinity, Claims
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings, held, undecided
from harness.stats import ALPHA, remap_band
from suites.affinity.evidence import MOVED_AT_MOST, key_count, owners_in
from suites.affinity.scenarios import every_change
from suites.scenarios import DISTURBING, KEY_MOVERS


def _newcomer(history: History) -> int:
    """Number of the backend that is absent at the start."""
    return history.scenario.backends


@declare(
    "affinity.join.only-to-the-newcomer",
    needs=(Affinity,),
    without=KEY_MOVERS,
    off=DISTURBING,
    scenario=every_change,
)
def join_only_to_the_newcomer(history: History, claims: Claims) -> Findings:
    """When a backend joins, keys move only to it and never between the other backends.

    Exact for ring, rendezvous and jump hashing; a Maglev table may move 5 % of the keys that the newcomer does not
    get. Modulo hashing moves (n-1)/n of them. Known violations: envoyproxy/envoy#22558 (the number of points per host
    depends on the number of hosts), HAProxy's default server ids.
    """
    owners = owners_in(history, ["before", "joined"])
    if isinstance(owners, str):
        yield undecided(owners)
        return
    before, after = owners
    number = _newcomer(history)
    others = after != number
    if not len(after):
        return
    if others.all():
        yield undecided(f"gpu-{number} has joined but gets nothing: the mapping with it was not seen")
        return
    kept = int(np.count_nonzero(others))
    strayed = int(np.count_nonzero(before[others] != after[others]))
    allowed = int(MOVED_AT_MOST[claims[Affinity].algorithm] * kept)
    note = f"{len(after) - kept} of {len(after)} keys moved to gpu-{number}, {strayed} between the others"
    yield key_count(history, claims, strayed, allowed, len(after), note)


@declare("affinity.join.share", needs=(Affinity,), without=KEY_MOVERS, off=DISTURBING, scenario=every_change)
def join_share(history: History, claims: Claims) -> Findings:
    """When a backend joins n others, about 1/(n+1) of the keys move.

    The band is that of the claimed algorithm at a false-alarm rate of 1e-4, and equals the band for one of n+1
    backends leaving: beta-binomial for a ring, binomial for the other algorithms. Modulo hashing moves n/(n+1). Seen
    broken: envoyproxy/envoy#45212 (the ring was not rebuilt, so no key moved), HAProxy's default server ids (nearly
    all keys move).
    """
    owners = owners_in(history, ["before", "joined"])
    if isinstance(owners, str):
        yield undecided(owners)
        return
    before, after = owners
    keys, members = len(after), history.scenario.backends + 1
    if not keys:
        return
    affinity = claims[Affinity]
    moved = int(np.count_nonzero(before != after))
    low, high = remap_band(keys, members, affinity.algorithm, affinity.virtual_nodes)
    yield held(
        low <= moved <= high,
        at_s=0.0,
        until_s=history.scenario.end_s,
        observed=moved / keys,
        bound=(low / keys, high / keys),
        sample=keys,
        alpha=ALPHA,
        note=f"{moved} of {keys} keys moved, ideal {keys / members:.0f}",
    )
