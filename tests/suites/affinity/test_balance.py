"""The property of balance on hand-written histories."""

from __future__ import annotations

import pytest

from harness.property.findings import Held, undecided
from harness.property.verdict import Outcome
from harness.stats import ALPHA, remap_band
from suites.affinity.balance import balance_within_band
from suites.scenarios import leave_and_return
from tests.suites.every_change_histories import claimed
from tests.suites.histories import history_of, outcome, unreached

FEWEST, MOST = remap_band(1000, 4, "ring", 150, ALPHA / 4)


def balanced(first: int, algorithm: str = "ring") -> list[Held]:
    """Findings where gpu-0 owns the first `first` keys and the other backends share the rest."""
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
def test_a_backend_with_too_many_or_too_few_keys(algorithm: str, first: int, ok: bool) -> None:
    assert balanced(first, algorithm)[0].ok == ok


def test_balance_of_few_keys_or_none() -> None:
    whole = history_of(leave_and_return(claimed()), lambda arrival: arrival.key % 4)
    assert balance_within_band(unreached(whole, 0), claimed()) == []
    few = balance_within_band(unreached(whole, 499), claimed())
    assert few == [undecided("only 499 of 1000 requests reached a backend")]
    assert outcome(balance_within_band, unreached(whole, 500), claimed()) is Outcome.PASS
