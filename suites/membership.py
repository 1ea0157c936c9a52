"""Membership: a backend that left gets no requests; a backend that joined soon gets its share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.claims.features import Affinity, Claims
from harness.evidence.history import History, StepSeen
from harness.property.declare import declare
from harness.property.findings import Findings, held, undecided
from harness.scenario.faults import Join
from harness.stats import ALPHA, remap_band
from suites.affinity.evidence import changes_before, unusable_sweep
from suites.affinity.scenarios import every_change
from suites.margins import margin_s
from suites.scenarios import DISTURBING

USED_REQUESTS = 10
"""Fewest requests that a backend must have had before its leave; with fewer, none afterwards proves little."""

HALF, DOUBLE = 0.5, 2.0
"""Bounds of an acceptable share, as factors of the fair share, where no affinity is claimed."""


def _leaves(history: History) -> Iterator[tuple[StepSeen, float]]:
    """Each leave that took effect, with the time of the request to join again (infinity if there was none)."""
    joins = [step for step in history.steps if step.kind == "Join"]
    for step in history.steps:
        if step.kind == "Leave" and step.took_effect:
            later = [join.asked_s for join in joins if join.backend == step.backend and join.asked_s > step.asked_s]
            yield step, min(later, default=float("inf"))


@declare("membership.leave.gets-nothing", off=DISTURBING, scenario=every_change)
def leave_gets_nothing(history: History, claims: Claims) -> Findings:
    """A backend that has left gets no request that was sent after its leave took effect.

    Requests sent earlier may end there. There is one finding for each leave of a backend that was in use. Seen
    broken: Kong/kong#6693 (a deleted node kept getting requests), traefik/traefik#2192 (sessions pinned to a removed
    server).
    """
    requests = history.all_requests()
    for step, until_s in _leaves(history):
        used = len(history.attempts_on(step.backend).started_between(-np.inf, step.asked_s))
        gone_s = step.effective_s + margin_s(history, 0.0, step.effective_s)
        after = requests.sent_after(gone_s).attempts().started_between(-np.inf, until_s)
        sample = len(after.requests())
        if used < USED_REQUESTS or not sample:
            continue
        strayed = len(after.on(step.backend))
        yield held(
            strayed == 0,
            at_s=step.effective_s,
            observed=strayed,
            bound=0,
            sample=sample,
            note=f"gpu-{step.backend} left at {step.effective_s:.2f} s: {strayed} of {sample} sent later went there",
        )


@declare("membership.join.gets-share", off=DISTURBING, scenario=every_change)
def join_gets_share(history: History, claims: Claims) -> Findings:
    """A backend that joins or returns gets its share of requests within a second or its claimed check time.

    Its share is within the band of the claimed affinity, at a total false-alarm rate of 1e-4. Without claimed
    affinity, its share is from half to twice the fair share. The bounds catch a backend that stays idle and a backend
    that gets all the traffic. There is one finding for each join. Known violations: envoyproxy/envoy#45212 (a ring
    update was lost until the next update).
    """
    scenario = history.scenario
    joins = [step for step in scenario.timeline if isinstance(step, Join)]
    alpha = ALPHA / max(1, len(joins))
    for join in joins:
        stream = min(
            (item for item in scenario.load.streams if item.start_s > join.at_s), key=lambda item: item.start_s
        )
        reached = history.requests_in(stream.name).reached()
        if not len(reached):
            continue
        if reason := unusable_sweep(history, stream.name):
            yield undecided(reason, at_s=join.at_s)
            continue
        members = len(scenario.members(changes_before(scenario, stream.name)))
        number = scenario.backend_ids.index(join.backend)
        count = len(reached.first_on(number))
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
    """Lower and upper bound on the count of `requests` (each with its own key) for one of `members` backends."""
    if Affinity not in claims:
        return HALF * requests / members, DOUBLE * requests / members
    affinity = claims[Affinity]
    return remap_band(requests, members, affinity.algorithm, affinity.virtual_nodes, alpha)
