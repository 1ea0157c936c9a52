"""Remapping: which keys move when a backend joins, and when each leaves in turn; and how evenly they are shared out."""

from __future__ import annotations

import numpy as np

from harness.claims.features import Affinity, Claims, HealthChecks
from harness.evidence.history import History, Numbers
from harness.property.declare import declare
from harness.property.findings import Findings, held, undecided
from harness.scenario.faults import Join, Leave, Membership
from harness.scenario.model import Keys, Load, Scenario, Stream, UnsupportedError
from harness.stats import ALPHA, remap_band
from suites.affinity.equal_keys import MOVED_AT_MOST
from suites.scenarios import (
    DISTURBING,
    KEY_MOVERS,
    disturbing_intervals_s,
    key_carrier,
    leave_and_return,
    too_few_reached,
    undisturbed,
)

KEYS = 300
SWEEP_RATE_PER_S = 600.0
START_S = 0.1

CHANGE_S = 0.1
"""From the last request of a sweep to the change that follows it: all of them have been answered by then."""

PAUSE_S = 1.0
"""From one sweep to the next: a change, or two in a row, and time for a reload to be through."""

SHORT_S = 0.2
"""Added to the time that claimed checks take to let a backend in."""

BACKGROUND_PER_S = 50.0
"""Requests that go on throughout, so that some are on their way while a change is made."""


# --- the scenario -------------------------------------------------------------------------------------------


def every_change(claims: Claims) -> Scenario:
    """All keys once before, once with a newcomer, and once without each of the others, which leave in turn.

    In one step with a leave the one before returns, and the newcomer leaves with the first: no sweep is spent on the
    full fleet, as whoever has not come back to its own keys shows in the next. 300 keys, 600/s, 50/s beside them.
    """
    claims.need_membership()
    backends = claims.fleet(5, at_least=4) - 1
    newcomer = f"gpu-{backends}"
    pause_s = PAUSE_S
    if HealthChecks in claims:
        checks = claims[HealthChecks]
        pause_s = max(pause_s, CHANGE_S + SHORT_S + checks.healthy * checks.interval_s)
    names = ["before", "joined", *(_without(number) for number in range(backends))]
    sweep_s = KEYS / SWEEP_RATE_PER_S
    starts_s = [START_S + turn * (sweep_s + pause_s) for turn in range(len(names))]
    sweeps = [
        Stream(name, start_s, SWEEP_RATE_PER_S, KEYS, Keys(KEYS, "sweep"))
        for name, start_s in zip(names, starts_s, strict=True)
    ]
    end_s = starts_s[-1] + sweep_s
    background = Stream(
        "background",
        START_S,
        BACKGROUND_PER_S,
        int(BACKGROUND_PER_S * (end_s - START_S)),
        Keys(KEYS, "uniform"),
        arrivals="poisson",
    )
    changes_s = [start_s + sweep_s + CHANGE_S for start_s in starts_s]
    timeline: list[Membership] = [Join(newcomer, changes_s[0])]
    for number in range(backends):
        at_s = changes_s[number + 1]
        timeline.append(Join(f"gpu-{number - 1}", at_s) if number else Leave(newcomer, at_s))
        timeline.append(Leave(f"gpu-{number}", at_s))
    return Scenario(
        name="every-change",
        backends=backends,
        spare=1,
        load=Load((*sweeps, background), key_carrier(claims)),
        timeline=tuple(timeline),
        intervals_s=disturbing_intervals_s(claims),
    )


def _without(number: int) -> str:
    """Name of the sweep for which backend `number` is away."""
    return f"without-gpu-{number}"


# --- evidence -----------------------------------------------------------------------------------------------


def changes_before(history: History, stream: str) -> int:
    """How many steps of the timeline are due before the first request of a sweep."""
    start_s = history.scenario.load.streams[history.scenario.load.index(stream)].start_s
    return sum(step.at_s < start_s for step in history.scenario.timeline)


def unusable_sweep(history: History, stream: str) -> str:
    """Why a sweep does not show the fleet that it was to meet; empty if it does, or if nobody saw any of it."""
    sent_s = history.requests["sent_s"][history.in_stream(stream)]
    due = changes_before(history, stream)
    if not np.isfinite(sent_s).any() or len(history.steps) < due:
        return f"a change before '{stream}', or its requests, were not seen"
    late_s = max((step.effective_s for step in history.steps[:due]), default=0.0)
    if not late_s <= float(np.nanmin(sent_s)):
        return f"a change took effect at {late_s:.2f} s, after the first request of '{stream}'"
    return too_few_reached(history, stream)


def _compared(history: History, streams: list[str]) -> list[Numbers] | str:
    """The owners in each of the sweeps of the keys that have one owner in all of them; or why they can't be told."""
    for stream in streams:
        if poor := unusable_sweep(history, stream):
            return poor
    owners = [history.owners(stream) for stream in streams]
    known = np.logical_and.reduce([one >= 0 for one in owners])
    return [one[known] for one in owners]


def _newcomer(history: History) -> int:
    """Number of the backend that is not there from the start."""
    return history.scenario.backends


# --- a backend joins ----------------------------------------------------------------------------------------


@declare(
    "affinity.join.only-to-the-newcomer",
    needs=(Affinity,),
    without=KEY_MOVERS,
    off=DISTURBING,
    scenario=every_change,
)
def join_only_to_the_newcomer(history: History, claims: Claims) -> Findings:
    """When a backend joins, every key that moves moves to it; between the others none does.

    Exact for ring, rendezvous and jump hashing; a Maglev table may move 5 % of the keys that the newcomer does not
    get. Modulo hashing moves (n-1)/n of them. Seen broken: envoyproxy/envoy#22558 (points per host that depend on the
    number of hosts), HAProxy's default server ids.
    """
    compared = _compared(history, ["before", "joined"])
    if isinstance(compared, str):
        yield undecided(compared)
        return
    before, after = compared
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
    yield held(
        strayed <= allowed,
        at_s=0.0,
        until_s=history.scenario.end_s,
        observed=strayed,
        bound=allowed,
        exact=undisturbed(history, claims),
        sample=len(after),
        note=f"{len(after) - kept} of {len(after)} keys moved to gpu-{number}, {strayed} between the others",
    )


@declare("affinity.join.share", needs=(Affinity,), without=KEY_MOVERS, off=DISTURBING, scenario=every_change)
def join_share(history: History, claims: Claims) -> Findings:
    """When a backend joins n others, about 1/(n+1) of the keys move.

    The band is that of the claimed algorithm at a false-alarm rate of 1e-4, the same as for one of n+1 leaving:
    beta-binomial for a ring, binomial for the others. Modulo hashing moves n/(n+1). Seen broken:
    envoyproxy/envoy#45212 (the ring was not rebuilt, so that nothing moved), HAProxy's default server ids (nearly
    everything does).
    """
    compared = _compared(history, ["before", "joined"])
    if isinstance(compared, str):
        yield undecided(compared)
        return
    before, after = compared
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


# --- each leaves in turn ------------------------------------------------------------------------------------


@declare(
    "affinity.each-leaves.moves-each-key-once",
    needs=(Affinity,),
    without=KEY_MOVERS,
    off=DISTURBING,
    scenario=every_change,
)
def each_leaves_moves_each_key_once(history: History, claims: Claims) -> Findings:
    """When each backend leaves in turn and returns, every key moves exactly once: while its own backend is away.

    So the mean remap is exactly 1/n, whatever the shares: no band and no chance (Maglev tables: 5 % of the survivors'
    keys may move each time). A mapping that depends on the order of the list, or on who was there before, shows as
    well, since the list is rotated at each change. Seen broken: envoyproxy/envoy#22558, stathat/consistent#5
    (colliding points lost on removal), grpc/grpc-go#6927 (weights kept from restarts).
    """
    if claims[Affinity].algorithm == "jump":
        raise UnsupportedError("jump hashing can lose its last backend only")
    backends = history.scenario.backends
    compared = _compared(history, ["before", *(_without(number) for number in range(backends))])
    if isinstance(compared, str):
        yield undecided(compared)
        return
    before, *away = compared
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
    yield held(
        wrong <= allowed,
        at_s=0.0,
        until_s=history.scenario.end_s,
        observed=wrong,
        bound=allowed,
        exact=undisturbed(history, claims),
        sample=keys,
        note=f"{keys} keys moved {total} times in {backends} leaves, mean remap {total / (keys * backends):.4f};"
        f" {wrong} did not move exactly once",
    )


# --- balance ------------------------------------------------------------------------------------------------


@declare(
    "affinity.balance.within-band", needs=(Affinity,), without=KEY_MOVERS, off=DISTURBING, scenario=leave_and_return
)
def balance_within_band(history: History, claims: Claims) -> Findings:
    """Keys are shared out over the backends as evenly as the claimed algorithm makes them.

    Each backend's number of keys lies in its band, false alarms 1e-4 in all: beta-binomial for the claimed virtual
    nodes of a ring, binomial for the others. With 1,000 keys this tells 150 points a backend from a few, not from 50:
    the spread of shares falls with the square root of the points only. Seen broken: graphite-project/carbon#485,
    istio/istio#52871 (very uneven rings); HAProxy's djb2 without avalanche used two to four of eight backends.
    """
    owners = history.owners("before")
    owners = owners[owners >= 0]
    keys, backends = len(owners), history.scenario.backends
    if not keys:
        return
    if poor := too_few_reached(history, "before"):
        yield undecided(poor)
        return
    affinity, mean = claims[Affinity], keys / backends
    low, high = remap_band(keys, backends, affinity.algorithm, affinity.virtual_nodes, ALPHA / backends)
    for number, count in enumerate(np.bincount(owners, minlength=backends)[:backends].tolist()):
        yield held(
            low <= count <= high,
            at_s=0.0,
            until_s=history.scenario.end_s,
            observed=count / mean,
            bound=(low / mean, high / mean),
            sample=keys,
            alpha=ALPHA / backends,
            note=f"gpu-{number} got {count} of {keys} keys, {count / mean:.2f} of the mean",
        )
