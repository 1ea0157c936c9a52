"""Arrival rates over time (shapes), and arrival times drawn from them exactly. Standard library only.

A shape is a rate in requests per second as a function of time. Its integral, the expected count, has a closed form;
arrival times are found by inverting it. This draws a non-homogeneous Poisson process exactly (Çinlar's method: the
points of a unit-rate process mapped through the inverse integral), without thinning or time steps. The evenly spaced
variant places request number n where n requests are expected.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

_ROUNDING = 1e-9
"""Tolerance in an expected count: 30.000000000000004 means 30 even arrivals, not 31."""


@dataclass(frozen=True, slots=True)
class Line:
    """A piece of a shape on which the rate goes linearly from `first_per_s` to `last_per_s`."""

    start_s: float
    end_s: float
    first_per_s: float
    last_per_s: float

    def rate(self, at_s: float) -> float:
        """Requests per second at a time within the piece."""
        return self.first_per_s + self._slope * (at_s - self.start_s)

    def expected(self, at_s: float) -> float:
        """Requests expected from `start_s` until `at_s`, a time within the piece."""
        passed_s = at_s - self.start_s
        return (self.first_per_s + 0.5 * self._slope * passed_s) * passed_s

    def reached(self, count: float) -> float:
        """The first time at which `count` requests are expected since `start_s`; at most `end_s`."""
        # The root of slope/2 t² + first t = count, in the form that stays exact when the slope is 0.
        square = max(self.first_per_s**2 + 2.0 * self._slope * count, 0.0)
        divisor = self.first_per_s + math.sqrt(square)
        passed_s = 2.0 * count / divisor if divisor > 0.0 else 0.0
        return min(self.start_s + passed_s, self.end_s)

    @property
    def _slope(self) -> float:
        return (self.last_per_s - self.first_per_s) / (self.end_s - self.start_s)


@dataclass(frozen=True, slots=True)
class Wave:
    """A piece with a sinusoidal rate: mean `mean_per_s`, relative amplitude `swing`, `period_s`, lowest at 0 s."""

    start_s: float
    end_s: float
    mean_per_s: float
    swing: float
    period_s: float

    def rate(self, at_s: float) -> float:
        """See `Line.rate`."""
        return self.mean_per_s * (1.0 - self.swing * math.cos(math.tau * at_s / self.period_s))

    def expected(self, at_s: float) -> float:
        """See `Line.expected`."""
        return self._since_0(at_s) - self._since_0(self.start_s)

    def reached(self, count: float) -> float:
        """See `Line.reached`."""
        low_s, high_s = self.start_s, self.end_s
        at_s = min(low_s + count / self.mean_per_s, high_s)
        while high_s - low_s > 1e-12 * max(self.end_s, 1.0):
            missing = count - self.expected(at_s)
            low_s, high_s = (at_s, high_s) if missing > 0 else (low_s, at_s)
            rate = self.rate(at_s)
            guess_s = at_s + missing / rate if rate > 0 else math.inf
            if abs(guess_s - at_s) < 1e-12 * max(self.end_s, 1.0):
                return min(max(guess_s, self.start_s), self.end_s)
            # Newton's method while it stays within the bounds, bisection otherwise.
            at_s = guess_s if low_s < guess_s < high_s else 0.5 * (low_s + high_s)
        return at_s

    def _since_0(self, at_s: float) -> float:
        angular = math.tau / self.period_s
        return self.mean_per_s * (at_s - self.swing * math.sin(angular * at_s) / angular)


Piece = Line | Wave

# --- the shapes -------------------------------------------------------------------------------------------
# `form` names the class in JSON, where shapes may have equal fields.


@dataclass(frozen=True, slots=True)
class Constant:
    """One request every 1 / `rate_per_s`, from second 0 on, for exact counts."""

    even: ClassVar[bool] = True
    rate_per_s: float
    duration_s: float
    form: Literal["constant"] = "constant"

    def __post_init__(self) -> None:
        _above_0(self, "rate_per_s", "duration_s")

    def pieces(self) -> Iterator[Piece]:
        """Its one piece."""
        yield Line(0.0, self.duration_s, self.rate_per_s, self.rate_per_s)


@dataclass(frozen=True, slots=True)
class Poisson:
    """A Poisson process (independent users): gaps are exponential with mean 1 / `rate_per_s`."""

    even: ClassVar[bool] = False
    rate_per_s: float
    duration_s: float
    form: Literal["poisson"] = "poisson"

    def __post_init__(self) -> None:
        _above_0(self, "rate_per_s", "duration_s")

    def pieces(self) -> Iterator[Piece]:
        """Its one piece."""
        yield Line(0.0, self.duration_s, self.rate_per_s, self.rate_per_s)


@dataclass(frozen=True, slots=True)
class Bursts:
    """A base `rate_per_s`, and at the end of every `every_s` a burst of `size` more requests within `burst_s`."""

    rate_per_s: float
    size: float
    every_s: float
    burst_s: float
    duration_s: float
    even: bool = False
    form: Literal["bursts"] = "bursts"

    def __post_init__(self) -> None:
        _above_0(self, "size", "every_s", "burst_s", "duration_s")
        _at_least_0(self, "rate_per_s")
        if self.burst_s >= self.every_s:
            raise ValueError(f"burst_s must be below every_s ({self.every_s:g}), not {self.burst_s:g}")

    def pieces(self) -> Iterator[Piece]:
        """Base rate and burst, alternating."""
        peak_per_s = self.rate_per_s + self.size / self.burst_s
        calm_s = self.every_s - self.burst_s
        yield from _alternating((calm_s, self.rate_per_s), (self.burst_s, peak_per_s), self.duration_s)


@dataclass(frozen=True, slots=True)
class Diurnal:
    """Day and night: a sinusoidal rate with mean `rate_per_s`, relative amplitude `swing` (0 to 1) and `period_s`.

    Lowest at second 0, highest half a period later.
    """

    rate_per_s: float
    period_s: float
    duration_s: float
    swing: float = 0.8
    even: bool = False
    form: Literal["diurnal"] = "diurnal"

    def __post_init__(self) -> None:
        _above_0(self, "rate_per_s", "period_s", "duration_s")
        if not 0.0 <= self.swing <= 1.0:
            raise ValueError(f"swing must be from 0 to 1, not {self.swing:g}")

    def pieces(self) -> Iterator[Piece]:
        """Its one piece."""
        yield Wave(0.0, self.duration_s, self.rate_per_s, self.swing, self.period_s)


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that rises or falls linearly over the whole of `duration_s`."""

    from_per_s: float
    to_per_s: float
    duration_s: float
    even: bool = False
    form: Literal["ramp"] = "ramp"

    def __post_init__(self) -> None:
        _above_0(self, "duration_s")
        _at_least_0(self, "from_per_s", "to_per_s")
        if self.from_per_s == self.to_per_s == 0:
            raise ValueError("from_per_s and to_per_s are both 0: expected one of them above 0")

    def pieces(self) -> Iterator[Piece]:
        """Its one piece."""
        yield Line(0.0, self.duration_s, self.from_per_s, self.to_per_s)


@dataclass(frozen=True, slots=True)
class Spike:
    """`rate_per_s`, but `peak_per_s` for `for_s` seconds from `at_s` on, without ramps."""

    rate_per_s: float
    peak_per_s: float
    at_s: float
    for_s: float
    duration_s: float
    even: bool = False
    form: Literal["spike"] = "spike"

    def __post_init__(self) -> None:
        _above_0(self, "peak_per_s", "for_s", "duration_s")
        _at_least_0(self, "rate_per_s", "at_s")
        if self.at_s + self.for_s > self.duration_s:
            raise ValueError(f"the spike ends at {self.at_s + self.for_s:g} s, after duration_s {self.duration_s:g}")

    def pieces(self) -> Iterator[Piece]:
        """Before, during and after the spike; empty pieces are left out."""
        end_s = self.at_s + self.for_s
        yield from _flat(0.0, self.at_s, self.rate_per_s)
        yield from _flat(self.at_s, end_s, self.peak_per_s)
        yield from _flat(end_s, self.duration_s, self.rate_per_s)


@dataclass(frozen=True, slots=True)
class Step:
    """`levels` constant rates of equal duration, the first `from_per_s`, the last `to_per_s`."""

    from_per_s: float
    to_per_s: float
    levels: int
    duration_s: float
    even: bool = False
    form: Literal["step"] = "step"

    def __post_init__(self) -> None:
        _above_0(self, "duration_s")
        _at_least_0(self, "from_per_s", "to_per_s")
        if self.levels < 2:
            raise ValueError(f"levels must be 2 or more, not {self.levels}")
        if self.from_per_s == self.to_per_s == 0:
            raise ValueError("from_per_s and to_per_s are both 0: expected one of them above 0")

    def pieces(self) -> Iterator[Piece]:
        """One for each level."""
        rise_per_s = (self.to_per_s - self.from_per_s) / (self.levels - 1)
        for level in range(self.levels):
            start_s, end_s = (self.duration_s * step / self.levels for step in (level, level + 1))
            yield from _flat(start_s, end_s, self.from_per_s + rise_per_s * level)


@dataclass(frozen=True, slots=True)
class OnOff:
    """`on_per_s` for `on_s`, then `off_per_s` (default 0) for `off_s`, repeated."""

    on_per_s: float
    on_s: float
    off_s: float
    duration_s: float
    off_per_s: float = 0.0
    even: bool = False
    form: Literal["on-off"] = "on-off"

    def __post_init__(self) -> None:
        _above_0(self, "on_per_s", "on_s", "off_s", "duration_s")
        _at_least_0(self, "off_per_s")

    def pieces(self) -> Iterator[Piece]:
        """On and off, alternating."""
        yield from _alternating((self.on_s, self.on_per_s), (self.off_s, self.off_per_s), self.duration_s)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The exact times of a trace, in order, in seconds from its start; nothing is random."""

    times_s: tuple[float, ...]
    form: Literal["recorded"] = "recorded"

    def __post_init__(self) -> None:
        last_s = 0.0
        for position, at_s in enumerate(self.times_s):
            if not last_s <= at_s < math.inf:
                raise ValueError(f"times_s[{position}] is {at_s:g}: expected finite times from 0 on, in order")
            last_s = at_s

    @property
    def duration_s(self) -> float:
        """Time of the last request; 0 if there is none."""
        return self.times_s[-1] if self.times_s else 0.0


Varying = Constant | Poisson | Bursts | Diurnal | Ramp | Spike | Step | OnOff
Shape = Varying | Recorded


# --- functions of shapes ------------------------------------------------------------------------------------


def rate(shape: Varying, at_s: float) -> float:
    """Requests per second at `at_s`; 0 outside the shape. At a discontinuity, the rate after it."""
    for piece in shape.pieces():
        if piece.start_s <= at_s < piece.end_s:
            return piece.rate(at_s)
    return 0.0


def expected(shape: Shape, until_s: float = math.inf) -> float:
    """Requests expected before `until_s`; the total by default."""
    if isinstance(shape, Recorded):
        return float(sum(at_s < until_s for at_s in shape.times_s))
    return sum(piece.expected(min(until_s, piece.end_s)) for piece in shape.pieces() if piece.start_s < until_s)


def times(shape: Shape, generator: random.Random) -> list[float]:
    """All arrival times of `shape`, in order, in seconds from its start, drawn from `generator`.

    The number of arrivals of a Poisson shape is random too: Poisson with mean `expected(shape)`.
    """
    if isinstance(shape, Recorded):
        return list(shape.times_s)
    found: list[float] = []
    before = 0.0
    counts = _whole_numbers() if shape.even else _unit_poisson(generator)
    count = next(counts)
    for piece in shape.pieces():
        after = before + piece.expected(piece.end_s)
        while count < after - (_ROUNDING if shape.even else 0.0):
            found.append(piece.reached(max(count - before, 0.0)))
            count = next(counts)
        before = after
    return found


def _whole_numbers() -> Iterator[float]:
    count = 0.0
    while True:
        yield count
        count += 1.0


def _unit_poisson(generator: random.Random) -> Iterator[float]:
    count = 0.0
    while True:
        count += generator.expovariate(1.0)
        yield count


def _flat(start_s: float, end_s: float, rate_per_s: float) -> Iterator[Piece]:
    if end_s > start_s:
        yield Line(start_s, end_s, rate_per_s, rate_per_s)


def _alternating(one: tuple[float, float], other: tuple[float, float], duration_s: float) -> Iterator[Piece]:
    """Two constant rates (duration in seconds, rate), alternating until `duration_s`, where the last piece is cut."""
    period_s, cycle = one[0] + other[0], 0
    while cycle * period_s < duration_s:
        start_s = cycle * period_s
        middle_s = start_s + one[0]
        yield from _flat(start_s, min(middle_s, duration_s), one[1])
        yield from _flat(middle_s, min((cycle + 1) * period_s, duration_s), other[1])
        cycle += 1


def _above_0(shape: object, *names: str) -> None:
    for name in names:
        if not 0.0 < getattr(shape, name) < math.inf:
            raise ValueError(f"{name} must be above 0, not {getattr(shape, name):g}")


def _at_least_0(shape: object, *names: str) -> None:
    for name in names:
        if not 0.0 <= getattr(shape, name) < math.inf:
            raise ValueError(f"{name} must be 0 or more, not {getattr(shape, name):g}")
