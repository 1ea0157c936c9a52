"""The property of each leave in turn on hand-written histories."""

from __future__ import annotations

import pytest

from harness.property.findings import undecided
from harness.scenario.model import UnsupportedError
from suites.affinity.each_leaves import each_leaves_moves_each_key_once
from suites.affinity.scenarios import KEYS
from tests.suites.every_change_histories import WITHOUT, but, changing, claimed
from tests.suites.histories import only


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


def test_a_backend_that_left_and_still_gets_keys() -> None:
    history = changing(but({WITHOUT + 2}, lambda key: key in (2, 6), lambda key: 2))
    reason = "gpu-2 has left but still gets 2 keys: the mapping without it was not seen"
    assert each_leaves_moves_each_key_once(history, claimed()) == [undecided(reason)]


def test_a_backend_that_returned_and_gets_no_keys() -> None:
    history = changing(but({WITHOUT + 2}, lambda key: key % 4 == 1, lambda key: 3))
    reason = "gpu-1 has returned but gets nothing: the mapping with it was not seen"
    assert each_leaves_moves_each_key_once(history, claimed()) == [undecided(reason)]
    one = changing(but({WITHOUT + 2}, lambda key: key % 4 == 1 and key > 1, lambda key: 3))
    assert only(each_leaves_moves_each_key_once, one, claimed()).observed == 74


def test_jump_hashing_can_not_lose_any_but_its_last() -> None:
    with pytest.raises(UnsupportedError, match="can lose its last backend only"):
        each_leaves_moves_each_key_once(changing(), claimed("jump"))
