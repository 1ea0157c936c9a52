"""Steps of a run as evidence. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from harness.evidence.history import StepSeen
from harness.scenario.ledger import FaultLedger


def steps_seen(ledger: FaultLedger, numbers: Mapping[str, int]) -> tuple[StepSeen, ...]:
    """The steps of a ledger as a history has them, in the order in which they were due.

    `numbers` are the backends' numbers by name; the ledger's times are seconds of the run.
    """
    return tuple(
        StepSeen(
            type(entry.step).__name__,
            numbers[entry.step.backend],
            entry.asked_s,
            entry.effective_s,
            entry.healed_s,
            entry.hits,
        )
        for entry in ledger.entries()
    )
