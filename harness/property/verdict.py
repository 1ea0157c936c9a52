"""What became of a property on a run: outcomes, judged findings, records. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from harness.scenario.model import World


class Outcome(StrEnum):
    """What became of one property on one run (DESIGN: Outcomes)."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    VACUOUS = "vacuous"
    UNSUPPORTED = "unsupported"
    ERROR = "error"


Figure = float | int | tuple[float | int, float | int] | None


@dataclass(frozen=True, slots=True)
class FindingRow:
    """One finding as judged. `ok` None: undecided, and `note` says why."""

    ok: bool | None
    at_s: float
    observed: Figure
    bound: Figure
    sample: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """What became of one property × target × world × seed.

    `observed`, `bound` and `sample` are those of the finding that decided; `alpha` is the false-alarm rate of a
    statistical one (0: exact). `first_try` is the run that slack alone had made inconclusive, if it was repeated at
    twice the time scale.
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
