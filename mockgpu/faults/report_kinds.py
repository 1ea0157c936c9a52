"""Faults of a backend's status reports, and of its GPU's memory, as values. Pure.

``mockgpu.faults.kinds`` has the faults of requests, and all kinds together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from mockgpu.faults.selection import Draws, check


@dataclass(frozen=True, slots=True)
class NotReady:
    """A backend reports that it is not ready (503) but still serves requests."""

    kind: ClassVar[str] = "not-ready"

    backend: str
    at_s: float
    for_s: float | None = None

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, for_s)


@dataclass(frozen=True, slots=True)
class NotAlive:
    """A backend reports that it is not alive (503 on liveness) but is ready and serves requests."""

    kind: ClassVar[str] = "not-alive"

    backend: str
    at_s: float
    for_s: float | None = None

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, for_s)


@dataclass(frozen=True, slots=True)
class BadMetrics:
    """A backend's load figures are unusable: ``how`` is garbage, missing or frozen.

    They are those on ``/metrics`` and in load reports. The status of ``/health`` still tells the true readiness. Frozen
    figures are those of the time the fault was set.
    """

    kind: ClassVar[str] = "metrics"

    backend: str
    at_s: float
    how: str
    for_s: float | None = None

    def __post_init__(self) -> None:
        valid = self.how in ("garbage", "missing", "frozen")
        check(self.kind, "how", self.how, "garbage, missing or frozen", valid)

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s, random.choice(("garbage", "missing", "frozen")), for_s)


@dataclass(frozen=True, slots=True)
class Evict:
    """One-time: idle, unpinned models are evicted from a backend's GPU memory. There is nothing to heal."""

    kind: ClassVar[str] = "evict"

    backend: str
    at_s: float

    @classmethod
    def drawn(cls, random: Draws, backend: str, at_s: float, for_s: float) -> Self:
        """The fault with random settings."""
        return cls(backend, at_s)
