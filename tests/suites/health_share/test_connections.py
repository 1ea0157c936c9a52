"""Shares by connections on hand-written histories: the number of connections in progress at each pick."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.claims.features import Claims, HealthChecks
from harness.evidence.history import History
from harness.property.verdict import Outcome
from harness.scenario.faults import CutOff, Slow
from harness.scenario.model import Kind, UnsupportedError
from suites.health_share.connections import connections_by_their_weight, crowded_zone, one_is_crowded
from suites.health_share.scenarios import cap_of
from tests.suites.health_share_histories import CLAIMS, SHARE, SICK, lost, rate, shared
from tests.suites.histories import outcome

SCENARIO = one_is_crowded(CLAIMS)
PHASE = SCENARIO.phase("crowd")


def crowded(share: float, takes_s: float = 1.6) -> History:
    """gpu-1 gets this share and holds each request for this long; the other answers within 10 ms."""
    history = shared(SCENARIO, crowd=share)
    attempts = history.attempts.copy()
    held = attempts["backend"] == SICK
    attempts["end_s"][held] = attempts["start_s"][held] + takes_s
    return replace(history, attempts=attempts)


@pytest.mark.parametrize(
    ("share", "due"), [(0.4545, "pass"), (0.44, "pass"), (0.5, "fail"), (0.3, "inconclusive"), (0.6, "fail")]
)
def test_a_share_by_the_connections(share: float, due: str) -> None:
    """At .3 of 907/s for 1.6 s it is never crowded, so the cost of connections cannot be judged."""
    history = crowded(share)
    found = connections_by_their_weight(history, CLAIMS)
    if due == "inconclusive":
        assert found == []
    else:
        assert outcome(connections_by_their_weight, history, CLAIMS) == Outcome(due)


def test_the_zones_are_those_of_the_scores() -> None:
    """.5 beside .6, against .25 beside .6 and an even share; half of the requests could not distinguish them."""
    found = rate(connections_by_their_weight, crowded(0.4545))
    assert (found.conform, found.violate) == crowded_zone(CLAIMS, 2)
    assert [*found.conform, *found.violate] == pytest.approx([0.5 / 1.1, 0.5 / 1.1, 0.25 / 0.85, 0.5])
    assert 6000 < cap_of(crowded_zone(CLAIMS, 2)) < len(found.hits)


def test_only_picks_while_it_is_crowded_count() -> None:
    """It has its 600 in progress only after the phase begins, when requests last slightly longer than planned."""
    everything = rate(connections_by_their_weight, crowded(0.4545))
    assert len(everything.hits) == pytest.approx(907.5 * (PHASE.end_s - PHASE.start_s), rel=0.01)
    assert connections_by_their_weight(crowded(0.4545, takes_s=1.4), CLAIMS) == []
    busy = crowded(0.4545)
    busy.attempts["end_s"][busy.attempts["start_s"] > 5.0] += 1.0  # then the other has 500 inside as well
    late = rate(connections_by_their_weight, busy)
    assert len(late.hits) < 0.7 * len(everything.hits)


def test_who_is_inside() -> None:
    history = crowded(0.4545)
    first = history.attempts[history.attempts["backend"] == SICK][0]
    at_s = np.array([first["start_s"] - 0.001, first["start_s"] + 0.0005, 3.0])
    counts = history.attempts_on(SICK).in_flight_at(at_s).tolist()
    assert counts[:2] == [0, 1] and counts[2] == pytest.approx(660, abs=3)


def test_without_the_fault_or_the_picks_nothing_is_proven() -> None:
    history = crowded(0.4545)
    assert connections_by_their_weight(replace(history, steps=history.steps[:2]), CLAIMS) == []
    assert connections_by_their_weight(lost(history, lambda sent_s: sent_s > PHASE.start_s), CLAIMS) == []


def test_all_fail_and_one_holds_what_it_gets() -> None:
    assert [type(step) for step in SCENARIO.timeline] == [CutOff, CutOff, Slow]
    assert SCENARIO.server.max_running > 2 * 600
    (stream,) = SCENARIO.load.streams
    assert stream.kind is Kind.UPDATE and stream.rate_per_s * 1.6 * 0.4545 == pytest.approx(660, abs=1)
    assert SCENARIO.end_s < 11.0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"connections": 0.05, "latency": 0.35}, "the weight of connections is 0.05, too little to detect"),
        ({"connections": 0.0, "latency": 0.4}, "the weight of connections is 0, too little to detect"),
        ({"connection_span": 900}, "1000 connections at a time need 1512 requests/s"),
        ({"errors": 0.1, "memory": 0.5}, "the weight of errors is 0.1, below 0.15"),
    ],
)
def test_what_cannot_be_seen_is_not_supported(change: dict[str, float], told: str) -> None:
    claims = Claims((replace(SHARE, **change), CLAIMS[HealthChecks]))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=told):
        one_is_crowded(claims)
