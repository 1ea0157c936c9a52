"""What all request faults share: checks of their fields, the selection of requests, and random settings. Pure.

Most kinds are selective. Without selection fields such a fault applies to every request. ``first`` limits it to the
first N requests after it is set, ``every`` to every k-th, ``share`` to a share of them (0 to 1) that depends on
``seed``, the backend's name and the request's position only. ``after`` skips the first N requests beforehand. In a run
the run's seed replaces ``seed``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar

from mockgpu.api.text import shown

STEP_FIELDS = ("backend", "at_s", "for_s")
"""Fields of a scenario's step; the JSON form is without them."""

LATER: Mapping[str, Any] = MappingProxyType({"omit_default": True})
"""Metadata of a field that was added later: a scenario's canonical form omits its default, so digests stay equal."""


class FaultError(ValueError):
    """An invalid fault; the text is one line with the value and what was expected."""


def check(kind: str, field: str, value: object, expected: str, valid: bool) -> None:
    """FaultError with the value of a field and what was expected, unless it is valid."""
    if not valid:
        raise FaultError(f"fault {kind}: {field} is {shown(value)}, expected {expected}")


def whole(value: object) -> bool:
    """Whether ``value`` is a whole number, at least 0 and not a bool."""
    return type(value) is int and value >= 0


def number(value: object) -> bool:
    """Whether ``value`` is a finite number, at least 0 and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


class Draws(Random):
    """A seeded generator of a fault's settings, for fault plans that are drawn at random."""

    def log_uniform(self, low: float, high: float) -> float:
        """A log-uniform number between ``low`` and ``high``, rounded to three significant digits."""
        drawn = math.exp(self.uniform(math.log(low), math.log(high)))
        return float(f"{drawn:.3g}")


@dataclass(frozen=True, slots=True)
class SelectiveFault:
    """A fault that may apply to some of the requests only; at most one of ``first``, ``every`` and ``share`` is set."""

    kind: ClassVar[str]

    backend: str
    at_s: float
    first: int | None = field(default=None, kw_only=True, metadata=LATER)
    every: int | None = field(default=None, kw_only=True, metadata=LATER)
    share: float | None = field(default=None, kw_only=True, metadata=LATER)
    after: int | None = field(default=None, kw_only=True, metadata=LATER)
    seed: int = field(default=0, kw_only=True, metadata=LATER)

    @property
    def applies_to_all(self) -> bool:
        """Whether it applies to every request."""
        return self.first is None and self.every is None and self.share is None and not self.after

    def __post_init__(self) -> None:
        check(self.kind, "first", self.first, "a whole number from 0", self.first is None or whole(self.first))
        every = self.every is None or (whole(self.every) and self.every > 0)
        check(self.kind, "every", self.every, "a whole number from 1", every)
        share = self.share is None or (number(self.share) and self.share <= 1)
        check(self.kind, "share", self.share, "a number from 0 to 1", share)
        given = [name for name in ("first", "every", "share") if getattr(self, name) is not None]
        if len(given) > 1:
            check(self.kind, given[1], getattr(self, given[1]), f"none beside {given[0]}", False)
        check(self.kind, "after", self.after, "a whole number from 0", self.after is None or whole(self.after))
        check(self.kind, "seed", self.seed, "a whole number", type(self.seed) is int)
        self._check_fields()

    def _check_fields(self) -> None:
        """Raise FaultError if a field of the kind's own is invalid."""


SELECTION_FIELDS = tuple(item.name for item in fields(SelectiveFault) if item.name not in STEP_FIELDS)
