"""Conditions on the figures of a load, as users write them: `p99 > 500ms`, `errors > 1%`, `throughput < 150/s`. Pure.

[latency|service|ttft|generator-delay] p50|p99.9|...|mean|max   <|<=|>|>=   NUMBER ms|s|us
errors|not-sent                                                 <|<=|>|>=   NUMBER %
throughput                                                      <|<=|>|>=   NUMBER /s

`lateness`, the former name of `generator-delay`, is accepted too.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from harness.load.results.figures import SERIES, Figures, quantile_of
from harness.scenario.model import ClaimsError
from harness.scenario.validation import nearest

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
SHARES = ("errors", "not-sent")
TIMES = ("p50", "p90", "p95", "p99", "p99.9", "mean", "max")
SERIES_OF = {name: name for name in SERIES} | {"generator-delay": "lateness"}
"""Series of `Figures` by their names in conditions."""
NAMES = (*TIMES, *(name for name in SERIES_OF if name != "lateness"), *SHARES, "throughput")

_FORMER_NAME = re.compile(r"^\s*lateness\b", re.IGNORECASE)

_FORM = re.compile(r"\s*(?P<what>[^<>=]*?)\s*(?P<op><=|>=|<|>)\s*(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>\S*)\s*")


@dataclass(frozen=True, slots=True)
class Threshold:
    """A condition. `series` and `what` name a time (in seconds); without a series `what` is a share or a rate per s."""

    text: str
    series: str
    what: str
    sign: str
    bound: float

    def value(self, figures: Figures) -> float:
        """The figure of the condition, in the unit of `bound`; nan if the load has no such figure."""
        if self.series:
            return figures.time(self.series, self.what)
        if self.what == "errors":
            return figures.error_share
        if self.what == "not-sent":
            return figures.not_sent / figures.planned if figures.planned else math.nan
        return figures.throughput_per_s

    def holds(self, figures: Figures) -> bool | None:
        """Whether the condition is true of these figures; None if undecidable (for example without good requests)."""
        value = self.value(figures)
        return None if math.isnan(value) else OPERATORS[self.sign](value, self.bound)

    def fails(self, figures: Figures) -> bool:
        """Whether a load that must not meet this condition fails: if it is true or undecidable."""
        return self.holds(figures) is not False

    def depends_on_delay(self, figures: Figures, undelayed: Figures) -> bool:
        """Whether the condition holds with the generator delay but not without it, or the reverse.

        It is then no evidence about the target. `undelayed`: the figures without that delay (results.figures.on_time).
        """
        return self.series != "lateness" and self.holds(figures) is not self.holds(undelayed)

    def with_unit(self, value: float) -> str:
        """A value of this condition's figure, with its unit."""
        if math.isnan(value):
            return "unknown"
        if self.series:
            return f"{value * 1e3:.4g} ms"
        return f"{value * 100:.3g} %" if self.what in SHARES else f"{value:.4g}/s"


def threshold_of(text: str) -> Threshold:
    """The condition in `text`. ClaimsError, one line, if it is invalid: what is wrong and which names are valid."""
    found = _FORM.fullmatch(text)
    if not found:
        raise ClaimsError(f"threshold {text!r}: expected WHAT < NUMBER UNIT, as in 'p99 > 500ms' or 'errors > 1%'")
    words = found["what"].lower().split()
    unit, number = found["unit"], float(found["number"])
    named = bool(words) and words[0] in SERIES_OF
    series_name = words.pop(0) if named else "latency"
    if len(words) != 1:
        known = f"{series_name} {'or '.join(TIMES[:1])}" if not words else nearest(words[0], NAMES)
        raise ClaimsError(f"threshold {text!r}: {found['what']!r} is no figure; {known}")
    (what,) = words
    if named and (what in SHARES or what == "throughput"):
        raise ClaimsError(f"threshold {text!r}: {what} is no time, so there is no {series_name} of it; leave that out")
    if what in SHARES:
        _expect(text, unit == "%", unit, "%", f"{what} > 1%")
        return Threshold(text, "", what, found["op"], number / 100.0)
    if what == "throughput":
        _expect(text, unit == "/s", unit, "/s", "throughput < 150/s")
        return Threshold(text, "", what, found["op"], number)
    if what not in ("mean", "max") and quantile_of(what) is None:
        raise ClaimsError(f"threshold {text!r}: {what!r} is unknown; {nearest(what, NAMES)}")
    _expect(text, unit in SECONDS, unit, "ms, s or us", f"{found['what'].strip()} > 500ms")
    shown = _FORMER_NAME.sub("generator-delay", text)
    return Threshold(shown, SERIES_OF[series_name], what, found["op"], number * SECONDS[unit])


def _expect(text: str, right: bool, unit: str, units: str, example: str) -> None:
    if not right:
        found = f"the unit {unit!r}" if unit else "no unit"
        raise ClaimsError(f"threshold {text!r} has {found}; expected {units}, as in {example!r}")
