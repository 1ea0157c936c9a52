"""Keys that move when each backend leaves in turn and returns."""

from __future__ import annotations

import numpy as np

from harness.claims.features import Affinity, Claims
from harness.evidence.history import History
from harness.property.declare import declare
from harness.property.findings import Findings, undecided
from harness.scenario.model import UnsupportedError
from suites.affinity.evidence import MOVED_AT_MOST, key_count, owners_in
from suites.affinity.scenarios import every_change, without
from suites.scenarios import DISTURBING, KEY_MOVERS


@declare(
    "affinity.each-leaves.moves-each-key-once",
    needs=(Affinity,),
    without=KEY_MOVERS,
    off=DISTURBING,
    scenario=every_change,
)
def each_leaves_moves_each_key_once(history: History, claims: Claims) -> Findings:
    """When each backend leaves in turn and returns, every key moves exactly once.

    It moves while its own backend is away. The mean remap is therefore exactly 1/n for any shares, without a band or
    chance. Under Maglev, 5 % of the survivors' keys may move at each leave. The list of backends is rotated at each
    change, so a mapping that depends on its order or on earlier members fails too. Known violations:
    envoyproxy/envoy#22558, stathat/consistent#5 (colliding points lost on removal), grpc/grpc-go#6927 (weights kept
    across restarts).
    """
    if claims[Affinity].algorithm == "jump":
        raise UnsupportedError("jump hashing can lose its last backend only")
    backends = history.scenario.backends
    by_sweep = owners_in(history, ["before", *(without(number) for number in range(backends))])
    if isinstance(by_sweep, str):
        yield undecided(by_sweep)
        return
    before, *away = by_sweep
    keys = len(before)
    if not keys:
        return
    for number, owners in enumerate(away):
        if stayed := int(np.count_nonzero(owners == number)):
            yield undecided(f"gpu-{number} has left but still gets {stayed} keys: the mapping without it was not seen")
            return
        if number and (before == number - 1).any() and not (owners == number - 1).any():
            yield undecided(f"gpu-{number - 1} has returned but gets nothing: the mapping with it was not seen")
            return
    moves = np.sum([owners != before for owners in away], axis=0)
    wrong = int(np.count_nonzero(moves != 1))
    allowed = int(MOVED_AT_MOST[claims[Affinity].algorithm] * (backends - 1) * keys)
    total = int(moves.sum())
    note = f"{keys} keys moved {total} times in {backends} leaves, mean remap {total / (keys * backends):.4f};"
    note += f" {wrong} did not move exactly once"
    yield key_count(history, claims, wrong, allowed, keys, note)
