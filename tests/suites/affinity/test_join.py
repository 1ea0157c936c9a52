"""Properties of a join on hand-written histories."""

from __future__ import annotations

import pytest

from harness.property.findings import undecided
from harness.property.verdict import Outcome
from harness.stats import ALPHA, remap_band
from suites.affinity.join import join_only_to_the_newcomer, join_share
from suites.affinity.scenarios import KEYS
from tests.suites.every_change_histories import JOINED, NEWCOMER, but, changing, claimed
from tests.suites.histories import only, outcome


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
