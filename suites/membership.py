"""Membership: who has left gets nothing any more, and who has joined gets its share soon."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.claims.features import Affinity, Claims
from harness.evidence.history import UNSEEN, History, StepSeen
from harness.property.declare import declare
from harness.property.findings import Findings, held, undecided
from harness.scenario.faults import Join, Leave
from harness.stats import ALPHA, remap_band
from suites.affinity.changes import changes_before, every_change, poor_sweep
from suites.scenarios import CALM

USED_REQUESTS = 10
"""A backend with fewer requests before it left was hardly in use, and that it gets none afterwards proves little."""

HALF, DOUBLE = 0.5, 2.0
"""Of a fair share: what counts as a share where nothing is claimed of how requests are handed out."""


def _stays(history: History) -> Iterator[tuple[StepSeen, float]]:
    """Each leave that took effect, and when it was over because the backend was asked to join again (or never)."""
    for position, step in enumerate(history.steps):
        if step.kind == "Leave" and step.took_effect:
            later = [
                item.asked_s for item in history.steps[position:] if (item.kind, item.backend) == ("Join", step.backend)
            ]
            yield step, min(later, default=float("inf"))


@declare("membership.leave.gets-nothing", off=CALM, scenario=every_change)
def leave_gets_nothing(history: History, claims: Claims) -> Findings:
    """A backend that has left gets none of the requests that were sent after its leave had been carried out.

    What it was sent before may end there. A finding for each leave of a backend that had been in use. Seen broken:
    Kong/kong#6693 (a deleted node went on getting requests), traefik/traefik#2192 (sessions pinned to a server that
    is gone).
    """
    attempts = history.attempts[history.attempts["request"] >= 0]
    sent_s = history.requests["sent_s"][attempts["request"]]
    for step, until_s in _stays(history):
        theirs = attempts["backend"] == step.backend
        used = int(np.count_nonzero(theirs & (attempts["start_s"] < step.asked_s)))
        after = (sent_s > step.effective_s) & (attempts["start_s"] < until_s)
        sample = len(np.unique(attempts["request"][after]))
        if used < USED_REQUESTS or not sample:
            continue
        strayed = int(np.count_nonzero(after & theirs))
        yield held(
            strayed == 0,
            at_s=step.effective_s,
            observed=strayed,
            bound=0,
            exact=True,
            sample=sample,
            note=f"gpu-{step.backend} left at {step.effective_s:.2f} s: {strayed} of {sample} sent later went there",
        )


@declare("membership.join.gets-share", off=CALM, scenario=every_change)
def join_gets_share(history: History, claims: Claims) -> Findings:
    """A backend that joins, or returns, has its share of the requests within a second, or as its claimed checks allow.

    Its share is within the band of the claimed affinity, at a false-alarm rate of 1e-4 in all; where none is claimed,
    from half to twice a fair share. Neither does it stay idle nor does everything fall on it. A finding for each join.
    Seen broken: envoyproxy/envoy#45212 (an update of the ring was lost until the next one).
    """
    scenario = history.scenario
    joins = [position for position, step in enumerate(scenario.timeline) if isinstance(step, Join)]
    first = history.first_backends()
    alpha = ALPHA / max(1, len(joins))
    for position in joins:
        join = scenario.timeline[position]
        stream = min(
            (item for item in scenario.load.streams if item.start_s > join.at_s), key=lambda item: item.start_s
        )
        reached = first[history.in_stream(stream.name) & (first != UNSEEN)]
        if not len(reached):
            continue
        if poor := poor_sweep(history, stream.name):
            yield undecided(poor, at_s=join.at_s)
            continue
        due = scenario.timeline[: changes_before(history, stream.name)]
        members = len(scenario.members([step for step in due if isinstance(step, Leave | Join)]))
        number = scenario.backend_ids.index(join.backend)
        count = int(np.count_nonzero(reached == number))
        low, high = _share_band(claims, len(reached), members, alpha)
        yield held(
            low <= count <= high,
            at_s=stream.start_s,
            until_s=stream.end_s,
            observed=count / len(reached),
            bound=(low / len(reached), high / len(reached)),
            sample=len(reached),
            alpha=alpha,
            note=f"gpu-{number} joined {members - 1} others: {count} of {len(reached)} requests in '{stream.name}'",
        )


def _share_band(claims: Claims, requests: int, members: int, alpha: float) -> tuple[float, float]:
    """Fewest and most of `requests`, each with a key of its own, for one of `members`."""
    if Affinity not in claims:
        return HALF * requests / members, DOUBLE * requests / members
    affinity = claims[Affinity]
    return remap_band(requests, members, affinity.algorithm, affinity.virtual_nodes, alpha)
