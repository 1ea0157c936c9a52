"""Shapes of arrival rates over time, and arrival times drawn from them exactly. Standard library only.

A shape is a rate in requests per second as a function of time. Its integral, the expected count, is known in closed
form; arrivals are found by inverting it. So a varying Poisson process is drawn exactly (Çinlar's method: the points of
a process of rate 1 carried back through the integral), without thinning and without time steps, and the evenly spaced
variant puts request number n where n requests are expected.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

_ROUNDING = 1e-9
"""An expected count of 30.000000000000004 means 30 even arrivals, not 31."""


@dataclass(frozen=True, slots=True)
class Line:
    """A stretch of a shape on which the rate goes from `first_per_s` to `last_per_s` in a straight line."""

    start_s: float
    end_s: float
    first_per_s: float
    last_per_s: float

    def rate(self, at_s: float) -> float:
        """Requests per second at a time within the stretch."""
        return self.first_per_s + self._slope * (at_s - self.start_s)

    def expected(self, at_s: float) -> float:
        """Requests expected from `start_s` until `at_s`, a time within the stretch."""
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
    """A stretch whose rate swings around `mean_per_s` by a share of `swing` in `period_s`, lowest at second 0."""

    start_s: float
    end_s: float
    mean_per_s: float
    swing: float
    period_s: float

    def rate(self, at_s: float) -> float:
        """See Line."""
        return self.mean_per_s * (1.0 - self.swing * math.cos(math.tau * at_s / self.period_s))

    def expected(self, at_s: float) -> float:
        """See Line."""
        return self._since_0(at_s) - self._since_0(self.start_s)

    def reached(self, count: float) -> float:
        """See Line."""
        low_s, high_s = self.start_s, self.end_s
        at_s = min(low_s + count / self.mean_per_s, high_s)
        while high_s - low_s > 1e-12 * max(self.end_s, 1.0):
            missing = count - self.expected(at_s)
            low_s, high_s = (at_s, high_s) if missing > 0 else (low_s, at_s)
            rate = self.rate(at_s)
            guess_s = at_s + missing / rate if rate > 0 else math.inf
            if abs(guess_s - at_s) < 1e-12 * max(self.end_s, 1.0):
                return min(max(guess_s, self.start_s), self.end_s)
            # Newton where it stays between the bounds, halving where it does not.
            at_s = guess_s if low_s < guess_s < high_s else 0.5 * (low_s + high_s)
        return at_s

    def _since_0(self, at_s: float) -> float:
        turn = math.tau / self.period_s
        return self.mean_per_s * (at_s - self.swing * math.sin(turn * at_s) / turn)


Piece = Line | Wave

# --- the shapes -------------------------------------------------------------------------------------------
# `form` names the class in JSON, so that shapes of equal fields stay apart there.


@dataclass(frozen=True, slots=True)
class Constant:
    """One request every 1 / `rate_per_s`, from second 0 on. For what is to be counted exactly."""

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
    """Independent users: gaps are exponential with mean 1 / `rate_per_s`."""

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
    """A calm `rate_per_s`, and at the end of every `every_s` a burst of `size` more, expected within `burst_s`."""

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
        """Calm and burst in turn."""
        peak_per_s = self.rate_per_s + self.size / self.burst_s
        calm_s = self.every_s - self.burst_s
        yield from _in_turn((calm_s, self.rate_per_s), (self.burst_s, peak_per_s), self.duration_s)


@dataclass(frozen=True, slots=True)
class Diurnal:
    """Day and night: around a mean of `rate_per_s` by a share of `swing` (0 to 1), a day being `period_s`.

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
    """A rate that grows, or falls, in a straight line over the whole of `duration_s`."""

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
    """`rate_per_s`, but `peak_per_s` from `at_s` on for `for_s`: a rush that comes and goes at once."""

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
        """Before, spike, after; those of no length are left out."""
        end_s = self.at_s + self.for_s
        yield from _flat(0.0, self.at_s, self.rate_per_s)
        yield from _flat(self.at_s, end_s, self.peak_per_s)
        yield from _flat(end_s, self.duration_s, self.rate_per_s)


@dataclass(frozen=True, slots=True)
class Step:
    """A staircase of `levels` steps of equal length, the first at `from_per_s`, the last at `to_per_s`."""

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
    """`on_per_s` for `on_s`, then `off_per_s` (silence) for `off_s`, and again; begins on."""

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
        """On and off in turn."""
        yield from _in_turn((self.on_s, self.on_per_s), (self.off_s, self.off_per_s), self.duration_s)


@dataclass(frozen=True, slots=True)
class Recorded:
    """Exactly the times of a trace, in order, in seconds from its start; nothing is drawn."""

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


# --- what can be asked of a shape ---------------------------------------------------------------------------


def rate(shape: Varying, at_s: float) -> float:
    """Requests per second at `at_s`; 0 outside the shape. Where it jumps, the rate after the jump."""
    for piece in shape.pieces():
        if piece.start_s <= at_s < piece.end_s:
            return piece.rate(at_s)
    return 0.0


def expected(shape: Shape, until_s: float = math.inf) -> float:
    """Requests expected before `until_s`; without it, in all."""
    if isinstance(shape, Recorded):
        return float(sum(at_s < until_s for at_s in shape.times_s))
    return sum(piece.expected(min(until_s, piece.end_s)) for piece in shape.pieces() if piece.start_s < until_s)


def times(shape: Shape, generator: random.Random) -> list[float]:
    """All arrival times of `shape`, in order, in seconds from its start; `generator` is used up to the last gap.

    Poisson shapes draw their number too: it is Poisson with mean `expected(shape)`.
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


def _in_turn(one: tuple[float, float], other: tuple[float, float], duration_s: float) -> Iterator[Piece]:
    """Flat pieces of two (length in seconds, rate), in turn until `duration_s`, where the last one is cut."""
    period_s, turn = one[0] + other[0], 0
    while turn * period_s < duration_s:
        start_s = turn * period_s
        middle_s = start_s + one[0]
        yield from _flat(start_s, min(middle_s, duration_s), one[1])
        yield from _flat(middle_s, min((turn + 1) * period_s, duration_s), other[1])
        turn += 1


def _above_0(shape: object, *names: str) -> None:
    for name in names:
        if not 0.0 < getattr(shape, name) < math.inf:
            raise ValueError(f"{name} must be above 0, not {getattr(shape, name):g}")


def _at_least_0(shape: object, *names: str) -> None:
    for name in names:
        if not 0.0 <= getattr(shape, name) < math.inf:
            raise ValueError(f"{name} must be 0 or more, not {getattr(shape, name):g}")
