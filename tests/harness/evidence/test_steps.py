"""Steps of a ledger as a history has them."""

from __future__ import annotations

from math import isnan

from harness.evidence.steps import steps_seen
from harness.scenario.faults import Down, Join, Slow
from harness.scenario.ledger import FaultLedger


def test_all_steps_are_there_with_numbers_for_names() -> None:
    ledger = FaultLedger()
    ledger.begin(0, Slow("gpu-1", 2.0, 3.0, 1.0), 2.0, 2.5)
    ledger.begin(1, Down("gpu-0", 1.0), 1.0, None)
    ledger.record(2, Join("gpu-1", 4.0), 4.0, 4.5)
    ledger.entry(0).hits = 7
    ledger.heal(0, 3.0)
    down, slow, join = steps_seen(ledger, {"gpu-0": 0, "gpu-1": 1})
    assert (slow.kind, slow.backend, slow.asked_s, slow.effective_s, slow.healed_s, slow.hits) == (
        "Slow", 1, 2.0, 2.5, 3.0, 7,
    )  # fmt: skip
    assert (down.kind, down.backend, down.asked_s) == ("Down", 0, 1.0) and not down.took_effect
    assert (join.kind, join.effective_s, join.hits) == ("Join", 4.5, None) and isnan(join.healed_s)
