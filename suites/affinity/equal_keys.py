"""Affinity: equal keys meet equal backends, and a change of the fleet moves no more keys than it must."""

from __future__ import annotations

import numpy as np

from harness.claims.features import Affinity, Claims
from harness.evidence.history import SEVERAL, UNSEEN, History, Numbers, StepSeen
from harness.property.declare import declare
from harness.property.findings import Findings, Held, held, undecided
from harness.stats import ALPHA, remap_band
from suites.scenarios import DISTURBING, KEY_MOVERS, leave_and_return, steady, too_few_reached, undisturbed

LATE_S = 0.05
"""A returner whose first request comes this much into a sweep came back late; sooner than that, its keys strayed."""

MOVED_AT_MOST = {"ring": 0.0, "rendezvous": 0.0, "jump": 0.0, "maglev": 0.05, "any": 0.05}
"""Share of the survivors' keys that may move. A Maglev table re-spaces a few slots (.0003 to .005 on average)."""


@declare("affinity.repeat.same-backend", needs=(Affinity,), without=KEY_MOVERS, off=DISTURBING, scenario=steady)
def repeat_same_backend(history: History, claims: Claims) -> Findings:
    """Requests with the same key go to the same backend for as long as the fleet stays the same.

    Every key is sent four times. Seen broken: a balancer that loses its key (an absent header falls back to round
    robin in nginx and HAProxy), or whose workers hash differently.
    """
    owners = history.owners("traffic")
    seen = int(np.count_nonzero(owners != UNSEEN))
    if not seen:
        return
    if poor := too_few_reached(history, "traffic"):
        yield undecided(poor)
        return
    strayed = int(np.count_nonzero(owners == SEVERAL))
    yield _fact(history, claims, strayed, 0, seen, f"{strayed} of {seen} keys went to more than one backend")


def _fact(history: History, claims: Claims, observed: int, bound: int, sample: int, note: str) -> Held:
    """A count over the whole run; exact unless something that stays on could have moved keys by a delay."""
    exact = undisturbed(history, claims)
    end_s = history.scenario.end_s
    return held(observed <= bound, 0.0, observed, bound, exact=exact, until_s=end_s, sample=sample, note=note)


def _before_and(history: History, stream: str, step: StepSeen | None) -> tuple[Numbers, Numbers, Numbers] | str:
    """Owners before and in `stream`, and the keys seen in both; or why they can't be compared."""
    if step is None:
        return "the change of membership was not seen to take effect"
    sent_s = history.requests["sent_s"][history.in_stream(stream)]
    if not len(sent_s) or step.effective_s > float(np.nanmin(sent_s)):
        return f"the change took effect at {step.effective_s:.2f} s, after the first request of '{stream}'"
    if poor := too_few_reached(history, "before") or too_few_reached(history, stream):
        return poor
    before, after = history.owners("before"), history.owners(stream)
    if late := _late(history, stream, step, before, after):
        return late
    both = np.flatnonzero((before >= 0) & (after >= 0))
    return before, after, both


def _late(history: History, stream: str, step: StepSeen, before: Numbers, after: Numbers) -> str:
    """Why the change was not in force for the whole of `stream` though its command had answered; empty if it was."""
    name, number = _leaver(history), step.backend
    if step.kind == "Leave":
        stayed = int(np.count_nonzero(after == number))
        return f"{name} has left but still gets {stayed} keys: the mapping without it was not seen" if stayed else ""
    mine = history.in_stream(stream)
    keys, sent_s = history.requests["key"][mine], history.requests["sent_s"][mine]
    theirs = before[keys] == number
    back = history.first_backends()[mine] == number
    if not (theirs & ~back).any() or not (after >= 0).any():
        return ""
    if not back.any():
        return f"{name} has returned but gets nothing: the mapping with it was not seen"
    first_s = float(sent_s[back].min())
    missed = theirs & ~back
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
    """When a backend leaves, only its own keys move; the keys of the survivors stay where they are.

    Exact for ring, rendezvous and jump hashing; a Maglev table may move 5 % of them. Modulo hashing moves (n-2)/n of
    what it must not touch. Seen broken: envoyproxy/envoy#22558 (points per host that depend on the number of hosts),
    HAProxy's default server ids.
    """
    leaver, step = _leaver(history), history.step("Leave", _leaver(history))
    compared = _before_and(history, "after", step)
    if isinstance(compared, str) or step is None:
        yield undecided(str(compared))
        return
    before, after, both = compared
    survivors = both[before[both] != step.backend]
    if not len(survivors) or len(survivors) == len(both):  # nothing to keep, or nothing that had to go
        return
    moved = int(np.count_nonzero(before[survivors] != after[survivors]))
    allowed = int(MOVED_AT_MOST[claims[Affinity].algorithm] * len(survivors))
    note = f"{leaver} left at {step.effective_s:.1f} s: {moved} of {len(survivors)} keys of the survivors moved"
    yield _fact(history, claims, moved, allowed, len(survivors), note)


@declare("affinity.leave.share", needs=(Affinity,), without=KEY_MOVERS, off=DISTURBING, scenario=leave_and_return)
def leave_share(history: History, claims: Claims) -> Findings:
    """When one of n backends leaves, about 1/n of the keys move.

    The band is that of the claimed algorithm at a false-alarm rate of 1e-4: beta-binomial for a ring with V virtual
    nodes, binomial for the others (shares of a ring are Dirichlet). Modulo hashing moves (n-1)/n; with 1,000 keys over
    four backends it misses even the band of a ring of 10 points, with certainty beyond 1 - 1e-6. Over three it lies
    inside that coarse band, and only the keys of the survivors give it away.
    """
    compared = _before_and(history, "after", history.step("Leave", _leaver(history)))
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
    """When the backend that left returns, every key is back where it was before.

    A mapping is a function of who is a member, not of the order of the list or of what happened before. Seen
    broken: stathat/consistent#5 (colliding points lost on removal), grpc/grpc-go#6927 (weights kept from restarts).
    """
    compared = _before_and(history, "restored", history.step("Join", _leaver(history)))
    if isinstance(compared, str):
        yield undecided(compared)
        return
    before, after, both = compared
    leaver = history.scenario.backend_ids.index(_leaver(history))
    if not len(both) or not (before == leaver).any():
        return
    away = history.owners("after")
    if (away == leaver).any() or not (away >= 0).any():
        yield undecided(f"{_leaver(history)} was not seen to be away, so its return proves nothing")
        return
    differ = int(np.count_nonzero(before[both] != after[both]))
    yield _fact(history, claims, differ, 0, len(both), f"{differ} of {len(both)} keys are not where they were before")


def _leaver(history: History) -> str:
    """The backend that leaves in this scenario."""
    return history.scenario.timeline[0].backend
