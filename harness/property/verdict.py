"""Results of judging a property on a run: outcomes, judged findings, records. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from harness.scenario.model import World


class Outcome(StrEnum):
    """The result of one property on one run: promise kept, promise broken, or one of `MEANINGS`."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    VACUOUS = "vacuous"
    UNSUPPORTED = "unsupported"
    ERROR = "error"


MEANINGS: Mapping[Outcome, str] = MappingProxyType(
    {
        Outcome.INCONCLUSIVE: "not decidable",
        Outcome.VACUOUS: "not exercised",
        Outcome.UNSUPPORTED: "not applicable to this target",
        Outcome.ERROR: "harness or suite failure",
    }
)
"""The outcomes that need an explanation, in a few words, for reports."""


def explained(outcome: Outcome) -> str:
    """An outcome with its meaning in parentheses, `vacuous (not exercised)`; pass and fail are left as they are."""
    return f"{outcome.value} ({MEANINGS[outcome]})" if outcome in MEANINGS else outcome.value


Figure = float | int | tuple[float | int, float | int] | None


@dataclass(frozen=True, slots=True)
class FindingRow:
    """One judged finding. `ok` None: undecided, for the reason in `note`."""

    ok: bool | None
    at_s: float
    observed: Figure
    bound: Figure
    sample: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """The result of one property × target × world × seed.

    `observed`, `bound` and `sample` are those of the decisive finding; `alpha` is the sum of the findings' false-alarm
    rates (0: exact). `first_try`: the inconclusive run, if it was repeated at twice the time scale.
    """

    property: str
    summary: str
    target: str
    version: str
    world: World
    seed: int
    outcome: Outcome
    reason: str = ""
    observed: Figure = None
    bound: Figure = None
    sample: int | None = None
    alpha: float = 0.0
    findings: tuple[FindingRow, ...] = ()
    slack_s: float = 0.0
    time_scale: float = 1.0
    scenario: str = ""
    history: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    first_try: Record | None = None
