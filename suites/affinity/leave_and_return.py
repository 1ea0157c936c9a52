"""Keys that move when a backend leaves, and where they are after its return."""

from __future__ import annotations

import numpy as np

from harness.claims.features import Affinity, Claims
from harness.evidence.history import History, StepSeen
from harness.evidence.tables import Numbers
from harness.property.declare import declare
from harness.property.findings import Findings, held, undecided
from harness.stats import ALPHA, remap_band
from suites.affinity.evidence import MOVED_AT_MOST, key_count
from suites.scenarios import DISTURBING, KEY_MOVERS, leave_and_return, leaver_of, too_few_reached

LATE_S = 0.05
"""First request of a returned backend later than this into a sweep: it returned late. Sooner: its keys strayed."""


def _before_and(history: History, stream: str, step: StepSeen | None) -> tuple[Numbers, Numbers, Numbers] | str:
    """Owners before and in `stream`, and the keys known in both; or the reason why they cannot be compared."""
    if step is None:
        return "the change of membership was not seen to take effect"
    sent_s = history.requests_in(stream)["sent_s"]
    if not len(sent_s) or step.effective_s > float(np.nanmin(sent_s)):
        return f"the change took effect at {step.effective_s:.2f} s, after the first request of '{stream}'"
    if reason := too_few_reached(history, "before") or too_few_reached(history, stream):
        return reason
    before, after = history.owners("before"), history.owners(stream)
    if reason := _incomplete_change(history, stream, step, before, after):
        return reason
    both = np.flatnonzero((before >= 0) & (after >= 0))
    return before, after, both


def _incomplete_change(history: History, stream: str, step: StepSeen, before: Numbers, after: Numbers) -> str:
    """Reason why the change did not cover all of `stream` though its command had succeeded; empty if it did."""
    name, number = leaver_of(history.scenario), step.backend
    if step.kind == "Leave":
        stayed = int(np.count_nonzero(after == number))
        return f"{name} has left but still gets {stayed} keys: the mapping without it was not seen" if stayed else ""
    requests = history.requests_in(stream)
    sent_s, owned = requests["sent_s"], before[requests["key"]] == number
    regained = requests.first_backends() == number
    if not (owned & ~regained).any() or not (after >= 0).any():
        return ""
    if not regained.any():
        return f"{name} has returned but gets nothing: the mapping with it was not seen"
    first_s = float(sent_s[regained].min())
    missed = owned & ~regained
    if sent_s[missed].max() < first_s and first_s - float(sent_s.min()) > LATE_S:
        return f"{name} got its first request {first_s - step.effective_s:.2f} s after its return had been answered"
    return ""


@declare(
    "affinity.leave.only-departed-keys-move",
    needs=(Affinity,),
    without=KEY_MOVERS,
    off=DISTURBING,
    scenario=leave_and_return,
)
def only_departed_keys_move(history: History, claims: Claims) -> Findings:
    """When a backend leaves, only its own keys move.

    The keys of the surviving backends stay: exactly for ring, rendezvous and jump hashing, while a Maglev table may
    move 5 % of them. Modulo hashing moves (n-2)/n of them. Known violations: envoyproxy/envoy#22558 (the number of
    points per host depends on the number of hosts), HAProxy's default server ids.
    """
    leaver, step = leaver_of(history.scenario), history.step("Leave", leaver_of(history.scenario))
    compared = _before_and(history, "after", step)
    if isinstance(compared, str) or step is None:
        yield undecided(str(compared))
        return
    before, after, both = compared
    survivors = both[before[both] != step.backend]
    if not len(survivors) or len(survivors) == len(both):  # no key had to stay, or none had to move
        return
    moved = int(np.count_nonzero(before[survivors] != after[survivors]))
    allowed = int(MOVED_AT_MOST[claims[Affinity].algorithm] * len(survivors))
    note = f"{leaver} left at {step.effective_s:.1f} s: {moved} of {len(survivors)} keys of the survivors moved"
    yield key_count(history, claims, moved, allowed, len(survivors), note)


@declare("affinity.leave.share", needs=(Affinity,), without=KEY_MOVERS, off=DISTURBING, scenario=leave_and_return)
def leave_share(history: History, claims: Claims) -> Findings:
    """When one of n backends leaves, about 1/n of the keys move.

    The band is that of the claimed algorithm at a false-alarm rate of 1e-4: beta-binomial for a ring with V virtual
    nodes (shares of a ring are Dirichlet), binomial for the other algorithms. Modulo hashing moves (n-1)/n; with 1,000
    keys over four backends it misses even the band of a ring of 10 points, with probability above 1 - 1e-6. Over three
    backends it lies inside that coarse band, and only `affinity.leave.only-departed-keys-move` detects it.
    """
    compared = _before_and(history, "after", history.step("Leave", leaver_of(history.scenario)))
    if isinstance(compared, str):
        yield undecided(compared)
        return
    before, after, both = compared
    if not len(both):
        return
    affinity = claims[Affinity]
    moved = int(np.count_nonzero(before[both] != after[both]))
    low, high = remap_band(len(both), history.scenario.backends, affinity.algorithm, affinity.virtual_nodes)
    yield held(
        low <= moved <= high,
        at_s=0.0,
        until_s=history.scenario.end_s,
        observed=moved / len(both),
        bound=(low / len(both), high / len(both)),
        sample=len(both),
        alpha=ALPHA,
        note=f"{moved} of {len(both)} keys moved, ideal {len(both) / history.scenario.backends:.0f}",
    )


@declare("affinity.return.restores", needs=(Affinity,), without=KEY_MOVERS, off=DISTURBING, scenario=leave_and_return)
def return_restores(history: History, claims: Claims) -> Findings:
    """When the backend that left returns, every key goes back to its former backend.

    The mapping depends only on the set of members, not on the order of the list or on earlier changes. Known
    violations: stathat/consistent#5 (colliding points lost on removal), grpc/grpc-go#6927 (weights kept across
    restarts).
    """
    compared = _before_and(history, "restored", history.step("Join", leaver_of(history.scenario)))
    if isinstance(compared, str):
        yield undecided(compared)
        return
    before, after, both = compared
    leaver = history.scenario.backend_ids.index(leaver_of(history.scenario))
    if not len(both) or not (before == leaver).any():
        return
    away = history.owners("after")
    if (away == leaver).any() or not (away >= 0).any():
        yield undecided(f"{leaver_of(history.scenario)} was not seen to be away, so its return proves nothing")
        return
    differ = int(np.count_nonzero(before[both] != after[both]))
    note = f"{differ} of {len(both)} keys are not where they were before"
    yield key_count(history, claims, differ, 0, len(both), note)
