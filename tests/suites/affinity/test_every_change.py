"""The scenario of every change, and the evidence that its affinity properties share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.claims.features import Breaker, Claims, HealthChecks
from harness.property.declare import Property
from harness.property.findings import Held, undecided
from harness.property.verdict import Outcome
from harness.scenario.faults import Join, Leave
from harness.scenario.model import Scenario, UnsupportedError
from suites.affinity.each_leaves import each_leaves_moves_each_key_once
from suites.affinity.join import join_only_to_the_newcomer, join_share
from suites.affinity.scenarios import every_change
from tests.suites.every_change_histories import (
    BEFORE,
    CHANGE_S,
    EACH_S,
    but,
    changing,
    claimed,
    late,
)
from tests.suites.histories import only, outcome

AFFINE = [join_only_to_the_newcomer, join_share, each_leaves_moves_each_key_once]


# --- the scenario -------------------------------------------------------------------------------------------


def scenario() -> Scenario:
    """The scenario for a plain ring."""
    return every_change(claimed())


def test_members_of_the_fleet_in_each_sweep() -> None:
    plan = scenario()
    assert (plan.backends, plan.spare) == (4, 1)
    members = []
    for stream in plan.load.streams[:-1]:
        before = [step for step in plan.timeline if step.at_s < stream.start_s]
        members.append(set(plan.members([step for step in before if isinstance(step, Leave | Join)])))
    fleet = {"gpu-0", "gpu-1", "gpu-2", "gpu-3"}
    assert members == [fleet, fleet | {"gpu-4"}, *(fleet - {f"gpu-{number}"} for number in range(4))]
    assert [stream.name for stream in plan.load.streams][:3] == ["before", "joined", "without-gpu-0"]


def test_how_long_it_lasts() -> None:
    plan = scenario()
    assert plan.end_s == pytest.approx(8.1)
    assert [step.at_s for step in plan.timeline[:3]] == pytest.approx([CHANGE_S, CHANGE_S + EACH_S, CHANGE_S + EACH_S])
    slow = every_change(claimed("ring", HealthChecks(interval_s=2.0, timeout_s=3.0, healthy=2)))
    starts_s = [stream.start_s for stream in slow.load.streams]
    assert starts_s[1] - starts_s[0] == pytest.approx(0.5 + 0.3 + 4.0)
    assert slow.intervals_s == (2.0, 3.0)
    quick = every_change(claimed("ring", HealthChecks(interval_s=0.2, healthy=2)))
    assert quick.load.streams[1].start_s == pytest.approx(1.6)


def test_the_fleet_needs_four_backends_and_membership() -> None:
    assert every_change(Claims(fixed_backends=4)).backends == 3
    with pytest.raises(UnsupportedError, match="needs 4 backends"):
        every_change(Claims(fixed_backends=3))
    with pytest.raises(UnsupportedError, match="cannot change membership"):
        every_change(Claims(can_join=False))


# --- shared evidence ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", AFFINE, ids=lambda item: str(item.name))
def test_a_sweep_without_attempts_is_vacuous(item: Property) -> None:
    assert item(changing(but({BEFORE}, lambda key: True, lambda key: None)), claimed()) == []


@pytest.mark.parametrize("item", AFFINE, ids=lambda item: str(item.name))
def test_moves_of_too_few_keys_are_undecided(item: Property) -> None:
    history = changing(but({BEFORE}, lambda key: key >= 149, lambda key: None))
    assert item(history, claimed()) == [undecided("only 149 of 300 requests reached a backend")]
    assert outcome(item, history, claimed()) is Outcome.INCONCLUSIVE
    half = changing(but({BEFORE}, lambda key: key >= 150, lambda key: None))
    assert only(item, half, claimed()).sample == 150


@pytest.mark.parametrize("item", AFFINE, ids=lambda item: str(item.name))
@pytest.mark.parametrize(("by_s", "decided"), [(0.89, True), (0.91, False)])
def test_a_change_must_be_through_before_its_sweep(item: Property, by_s: float, decided: bool) -> None:
    """The sweep begins 0.9 s after the change was requested."""
    found = item(late(changing(), 0 if item is not each_leaves_moves_each_key_once else 2, by_s), claimed())
    assert isinstance(found[0], Held) == decided
    if not decided:
        assert "took effect at" in str(found[0]) and "after the first request of" in str(found[0])


@pytest.mark.parametrize("item", AFFINE, ids=lambda item: str(item.name))
def test_changes_that_were_not_seen(item: Property) -> None:
    (found,) = item(replace(changing(), steps=()), claimed())
    assert "were not seen" in str(found)


@pytest.mark.parametrize("item", [join_only_to_the_newcomer, each_leaves_moves_each_key_once])
def test_no_delay_moves_a_key_unless_a_breaker_stays_on(item: Property) -> None:
    assert only(item, changing(), claimed()).exact
    on = claimed("ring", Breaker())
    assert not only(item, changing(claims=on), on).exact
    assert only(item, changing(claims=on), on.without({"breaker"})).exact
