"""The claim of a circuit breaker: when it opens, for how long, and how it closes again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from harness.claims.feature import Feature
from harness.scenario.validation import positive


@dataclass(frozen=True, slots=True)
class Backoff:
    """Growth of a breaker's open time: each is `multiplier` times the last, ± a share of `jitter`, at most `max_s`."""

    multiplier: float = 1.0
    max_s: float = 60.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        positive(self, "multiplier", "max_s")


@dataclass(frozen=True, slots=True)
class Breaker(Feature):
    """A circuit breaker per backend: opens for `open_s`, then admits `probes` requests at a time.

    It opens after `failures` consecutive failures, at `error_rate` over `window_s` with at least `minimum_calls`
    calls, or when the window's p99 exceeds `slow_p99_s`; None: not by that. `successes` good probes close it.

    >>> breaker = Breaker(failures=3, open_s=2.0, backoff=Backoff(multiplier=2.0, max_s=5.0, jitter=0.1))
    >>> breaker.shortest_open_s, breaker.open_band_s(2), breaker.longest_open_s
    (1.8, (4.5, 5.0), 5.0)
    """

    table: ClassVar[str] = "breaker"
    failures: int | None = 5
    error_rate: float | None = None
    minimum_calls: int = 20
    window_s: float = 10.0
    slow_p99_s: float | None = None
    open_s: float = 2.0
    probes: int = 1
    successes: int = 1
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        positive(self, "open_s", "probes", "successes", "minimum_calls", "window_s")
        for name in ("failures", "error_rate", "slow_p99_s"):
            if getattr(self, name) is not None:
                positive(self, name)
        if self.backoff.multiplier > 1 and self.backoff.max_s < self.open_s:
            raise ValueError(f"backoff.max_s {self.backoff.max_s:g}: expected open_s ({self.open_s:g}) or more")

    @property
    def _cap_s(self) -> float:
        """Cap of all open times; one that does not grow may be longer than the default cap."""
        return max(self.backoff.max_s, self.open_s)

    def nominal_open_s(self, turn: int) -> float:
        """Open time in seconds after `turn` failed probes in a row (0: the first), without jitter."""
        return min(self.open_s * self.backoff.multiplier**turn, self._cap_s)

    def open_band_s(self, turn: int) -> tuple[float, float]:
        """Shortest and longest open time in seconds after `turn` failed probes in a row, never above the cap."""
        nominal_s, jitter = self.nominal_open_s(turn), self.backoff.jitter
        return nominal_s * (1 - jitter), min(nominal_s * (1 + jitter), self._cap_s)

    @property
    def shortest_open_s(self) -> float:
        """Shortest possible first open time, in seconds."""
        return self.open_band_s(0)[0]

    @property
    def longest_open_s(self) -> float:
        """Longest possible open time after any number of failed probes, in seconds."""
        return self.backoff.max_s if self.backoff.multiplier > 1 else self.open_band_s(0)[1]
