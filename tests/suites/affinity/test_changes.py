"""Remapping on hand-written histories: who owned which key, who was a member when, and what that proves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.claims.features import Breaker, Claims, HealthChecks
from harness.property.declare import Property
from harness.property.findings import Held, undecided
from harness.property.verdict import Outcome
from harness.scenario.faults import Join, Leave
from harness.scenario.model import Scenario, UnsupportedError
from harness.stats import ALPHA, remap_band
from suites.affinity.changes import (
    KEYS,
    balance_within_band,
    each_leaves_moves_each_key_once,
    every_change,
    join_only_to_the_newcomer,
    join_share,
)
from suites.scenarios import leave_and_return
from tests.suites.changes import (
    BEFORE,
    CHANGE_S,
    EACH_S,
    JOINED,
    NEWCOMER,
    WITHOUT,
    but,
    changing,
    claimed,
    conforming,
    late,
)
from tests.suites.histories import history_of, only, outcome, unreached

AFFINE = [join_only_to_the_newcomer, join_share, each_leaves_moves_each_key_once]


# --- the scenario -------------------------------------------------------------------------------------------


def scenario() -> Scenario:
    """The scenario for a plain ring."""
    return every_change(claimed())


def test_who_is_a_member_when() -> None:
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


def test_which_fleets_will_do() -> None:
    assert every_change(Claims(fixed_backends=4)).backends == 3
    with pytest.raises(UnsupportedError, match="needs 4 backends"):
        every_change(Claims(fixed_backends=3))
    with pytest.raises(UnsupportedError, match="cannot change membership"):
        every_change(Claims(can_join=False))


# --- what all three of affinity ask of a history ------------------------------------------------------------


@pytest.mark.parametrize("item", AFFINE, ids=lambda item: str(item.name))
def test_a_sweep_of_which_nothing_was_seen_is_vacuous(item: Property) -> None:
    assert item(changing(but({BEFORE}, lambda key: True, lambda key: None)), claimed()) == []


@pytest.mark.parametrize("item", AFFINE, ids=lambda item: str(item.name))
def test_moves_on_a_sliver_prove_nothing(item: Property) -> None:
    history = changing(but({BEFORE}, lambda key: key >= 149, lambda key: None))
    assert item(history, claimed()) == [undecided("only 149 of 300 requests reached a backend")]
    assert outcome(item, history, claimed()) is Outcome.INCONCLUSIVE
    half = changing(but({BEFORE}, lambda key: key >= 150, lambda key: None))
    assert only(item, half, claimed()).sample == 150


@pytest.mark.parametrize("item", AFFINE, ids=lambda item: str(item.name))
@pytest.mark.parametrize(("by_s", "decided"), [(0.89, True), (0.91, False)])
def test_a_change_must_be_through_before_its_sweep(item: Property, by_s: float, decided: bool) -> None:
    """The sweep begins 0.9 s after the change was asked for."""
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
    off = history_of(replace(every_change(claimed()), off=frozenset({"breaker"})), conforming)
    assert only(item, off, on).exact


# --- a backend joins ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "strays", "allowed", "ok"),
    [
        ("ring", 0, 0, True),
        ("ring", 1, 0, False),
        ("jump", 1, 0, False),
        ("maglev", 12, 12, True),
        ("maglev", 13, 12, False),
    ],
)
def test_keys_that_move_between_the_others(algorithm: str, strays: int, allowed: int, ok: bool) -> None:
    astray = [key for key in range(KEYS) if key % 5][:strays]
    history = changing(but({JOINED}, astray.__contains__, lambda key: (key + 1) % 4))
    found = only(join_only_to_the_newcomer, history, claimed(algorithm))
    assert (found.ok, found.observed, found.bound, found.sample) == (ok, strays, allowed, 300)
    assert found.note == f"60 of 300 keys moved to gpu-4, {strays} between the others"


def test_a_newcomer_without_keys_shows_no_mapping() -> None:
    history = changing(but({JOINED}, lambda key: True, lambda key: key % 4))
    found = join_only_to_the_newcomer(history, claimed())
    assert found == [undecided("gpu-4 has joined but gets nothing: the mapping with it was not seen")]
    assert outcome(join_share, history, claimed()) is Outcome.FAIL


def test_a_newcomer_that_takes_everything_takes_it_from_others_only() -> None:
    history = changing(but({JOINED}, lambda key: True, lambda key: NEWCOMER))
    assert only(join_only_to_the_newcomer, history, claimed()).observed == 0
    assert outcome(join_share, history, claimed()) is Outcome.FAIL


LOW, HIGH = remap_band(300, 5, "ring", 150)


@pytest.mark.parametrize(
    ("algorithm", "moved", "ok"),
    [
        ("ring", LOW, True),
        ("ring", LOW - 1, False),
        ("ring", HIGH, True),
        ("ring", HIGH + 1, False),
        ("rendezvous", HIGH, False),
        ("maglev", 60, True),
    ],
)
def test_how_many_keys_move_when_one_joins(algorithm: str, moved: int, ok: bool) -> None:
    history = changing(but({JOINED}, lambda key: True, lambda key: NEWCOMER if key < moved else key % 4))
    found = only(join_share, history, claimed(algorithm))
    assert (found.ok, found.sample, found.alpha) == (ok, 300, ALPHA)
    assert found.observed == pytest.approx(moved / 300)
    if algorithm == "ring":
        assert found.bound == pytest.approx((LOW / 300, HIGH / 300))
    assert found.note == f"{moved} of 300 keys moved, ideal 60"


def test_the_band_is_that_of_one_more_member() -> None:
    assert (LOW, HIGH) == (31, 94)


# --- each leaves in turn ------------------------------------------------------------------------------------


def test_each_key_moves_once() -> None:
    found = only(each_leaves_moves_each_key_once, changing(), claimed())
    assert (found.ok, found.observed, found.bound, found.sample) == (True, 0, 0, 300)
    assert found.note.startswith("300 keys moved 300 times in 4 leaves, mean remap 0.2500;")


@pytest.mark.parametrize(
    ("algorithm", "wrong", "allowed", "ok"),
    [("ring", 1, 0, False), ("maglev", 45, 45, True), ("maglev", 46, 45, False), ("any", 45, 45, True)],
)
def test_keys_that_move_twice(algorithm: str, wrong: int, allowed: int, ok: bool) -> None:
    """5 % of the three survivors' keys may move at each of four leaves of a Maglev table."""
    twice = [key for key in range(KEYS) if key % 4 == 1][:wrong]
    history = changing(but({WITHOUT + 3}, twice.__contains__, lambda key: 2))
    found = only(each_leaves_moves_each_key_once, history, claimed(algorithm))
    assert (found.ok, found.observed, found.bound) == (ok, wrong, allowed)
    assert f"moved {300 + wrong} times" in found.note


def test_only_keys_seen_in_every_sweep_are_compared() -> None:
    astray = changing(but({WITHOUT + 1}, lambda key: key == 0, lambda key: 3))
    found = only(each_leaves_moves_each_key_once, astray, claimed())
    assert (found.observed, found.sample) == (1, 300)
    unseen = changing(but({WITHOUT + 1}, lambda key: key == 0, lambda key: None))
    found = only(each_leaves_moves_each_key_once, unseen, claimed())
    assert (found.observed, found.sample) == (0, 299)


def test_one_that_left_and_still_gets_keys() -> None:
    history = changing(but({WITHOUT + 2}, lambda key: key in (2, 6), lambda key: 2))
    told = "gpu-2 has left but still gets 2 keys: the mapping without it was not seen"
    assert each_leaves_moves_each_key_once(history, claimed()) == [undecided(told)]


def test_one_that_returned_and_gets_no_keys() -> None:
    history = changing(but({WITHOUT + 2}, lambda key: key % 4 == 1, lambda key: 3))
    told = "gpu-1 has returned but gets nothing: the mapping with it was not seen"
    assert each_leaves_moves_each_key_once(history, claimed()) == [undecided(told)]
    one = changing(but({WITHOUT + 2}, lambda key: key % 4 == 1 and key > 1, lambda key: 3))
    assert only(each_leaves_moves_each_key_once, one, claimed()).observed == 74


def test_jump_hashing_can_not_lose_any_but_its_last() -> None:
    with pytest.raises(UnsupportedError, match="can lose its last backend only"):
        each_leaves_moves_each_key_once(changing(), claimed("jump"))


# --- balance ------------------------------------------------------------------------------------------------

FEWEST, MOST = remap_band(1000, 4, "ring", 150, ALPHA / 4)


def balanced(first: int, algorithm: str = "ring") -> list[Held]:
    """Findings where gpu-0 owns the first keys, and the others share the rest."""
    history = history_of(
        leave_and_return(claimed(algorithm)),
        lambda arrival: 0 if arrival.key < first else 1 + arrival.key % 3,
    )
    found = balance_within_band(history, claimed(algorithm))
    assert all(isinstance(item, Held) for item in found)
    return [item for item in found if isinstance(item, Held)]


def test_an_even_ring() -> None:
    found = balanced(250)
    assert [item.ok for item in found] == [True] * 4
    assert (found[0].observed, found[0].sample, found[0].alpha) == (1.0, 1000, ALPHA / 4)
    assert found[0].bound == (FEWEST / 250, MOST / 250) == (0.648, 1.4)
    assert found[0].note == "gpu-0 got 250 of 1000 keys, 1.00 of the mean"


@pytest.mark.parametrize(
    ("algorithm", "first", "ok"),
    [
        ("ring", MOST, True),
        ("ring", MOST + 1, False),
        ("ring", FEWEST, True),
        ("ring", FEWEST - 1, False),
        ("rendezvous", MOST, False),
        ("ring", 0, False),
    ],
)
def test_one_with_too_many_keys_or_too_few(algorithm: str, first: int, ok: bool) -> None:
    assert balanced(first, algorithm)[0].ok == ok


def test_balance_of_few_keys_or_none() -> None:
    whole = history_of(leave_and_return(claimed()), lambda arrival: arrival.key % 4)
    assert balance_within_band(unreached(whole, 0), claimed()) == []
    few = balance_within_band(unreached(whole, 499), claimed())
    assert few == [undecided("only 499 of 1000 requests reached a backend")]
    assert outcome(balance_within_band, unreached(whole, 500), claimed()) is Outcome.PASS
