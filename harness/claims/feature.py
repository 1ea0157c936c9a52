"""The base class of claims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Feature:
    """Base class of all claims. `table` is the claim's name in claims files and `off` lists."""

    table: ClassVar[str] = ""
