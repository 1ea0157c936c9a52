"""The highest rate that keeps a bound, by bisection; every step has a stated error probability. Pure.

"p99 <= 200ms" holds at a rate if fewer than 1 % of its requests exceed 200 ms. A run of n requests decides by the exact
binomial limits of the share that did; failed requests exceed any bound. Requests of one run are not independent (a slow
one delays those behind it), so n is first divided by the **spread factor**: the variance of a share between twenty
stretches of the run, relative to that of independent requests. The larger of two factors is used, for the share that
exceeds the bound and for the slowest tenth (clusters of rare events show too seldom), times 1.5. On M/M/1 queues with
a load of .3 to .9 and 1 % exactly at the bound, verdicts at a level of .01 were wrong in at most .3 % of runs
("holds") and 2.2 % ("broken", runs of 2,000 at .9); without the slowest tenth up to 80 %.
A run too small to decide is made longer, up to eight times; then the rate stays undecided.

Assumption: a bound kept at one rate is kept at every lower rate. The probability that any verdict of a search is wrong
is designed to be at most `error_rate`, split equally between verdicts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from harness.evidence.records import Rows
from harness.load.results.figures import delay_too_large, is_good, quantile_of
from harness.load.results.thresholds import Threshold
from harness.scenario.model import ClaimsError, Failure
from harness.stats import binomial_pmf

Times = npt.NDArray[np.float64]

ERROR_RATE = 0.01
PRECISION = 0.05
"""The search ends when the ends of its interval differ by less than this share."""
STRETCHES = 20
SLOWEST = 0.1
SAFETY = 1.5
LOOKS = 4
"""Maximum number of runs at one rate; each doubles the sample."""
WARM_UP_S = 1.0
"""Requests of the first second of a run do not count: they open the connections."""
MOST_INVALID = 2
"""Maximum number of runs at one rate while the generator's problems invalidate them."""


class RateVerdict(StrEnum):
    """Verdict of a run on its rate."""

    HOLDS = "holds"
    BROKEN = "broken"
    OPEN = "undecided"


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on a share: at most `allowed` of the requests may exceed `bound_s` in `series` (or fail, without one)."""

    text: str
    series: str
    bound_s: float
    allowed: float

    def values(self, rows: Rows) -> Times:
        """Values compared with the bound, in seconds, ordered by intended time; inf for failed requests."""
        ordered = rows[np.argsort(rows["intended_s"], kind="stable")]
        begin = ordered["sent_s"] if self.series == "service" else ordered["intended_s"]
        end = ordered["first_byte_s"] if self.series == "ttft" else ordered["end_s"]
        values: Times = np.where(is_good(ordered), end - begin if self.series else 0.0, math.inf)
        return values


def goal_of(threshold: Threshold) -> Goal:
    """The goal of a condition such as `p99 <= 200ms` or `errors <= 1%`. ClaimsError for any other condition."""
    wanted = "expected a quantile or errors with <=, as in 'p99 <= 200ms'"
    if threshold.sign not in ("<=", "<"):
        raise ClaimsError(f"search for {threshold.text!r}: {threshold.sign} is no upper bound; {wanted}")
    if threshold.what == "errors" and 0 < threshold.bound < 1:
        return Goal(threshold.text, "", 0.0, threshold.bound)
    quantile = quantile_of(threshold.what)
    if threshold.series in ("", "lateness") or quantile is None:
        raise ClaimsError(f"search for {threshold.text!r}: cannot be decided by counting requests; {wanted}")
    return Goal(threshold.text, threshold.series, threshold.bound, 1.0 - quantile)


def spread_factor(values: Times, bound: float) -> float:
    """Number of dependent `values`, in order of time, for each independent one; at least 1."""
    slow = float(np.quantile(values, 1.0 - SLOWEST, method="lower")) if len(values) else bound
    return max(1.0, SAFETY * max(_spread(values > bound), _spread(values > slow)))


def _spread(flags: npt.NDArray[np.bool_]) -> float:
    """Variance of the share of flags between stretches, relative to that of independent flags; 0 if all are equal."""
    length = len(flags) // STRETCHES
    share = float(flags.mean()) if len(flags) else 0.0
    if length < 2 or not 0 < share < 1:
        return 0.0
    shares = flags[: length * STRETCHES].reshape(STRETCHES, length).mean(axis=1)
    return float(shares.var(ddof=1)) * length / (share * (1.0 - share))


def judged(values: Times, bound: float, allowed: float, level: float) -> RateVerdict:
    """Whether the share of values above `bound` is below `allowed`, above it, or undecided at this error level."""
    factor = spread_factor(values, bound)
    trials = int(len(values) / factor)
    if trials == 0:
        return RateVerdict.OPEN
    hits = float((values > bound).sum()) / factor
    pmf = binomial_pmf(trials, allowed)
    if float(pmf[: math.ceil(hits) + 1].sum()) <= level:
        return RateVerdict.HOLDS
    if float(pmf[math.floor(hits) :].sum()) <= level:
        return RateVerdict.BROKEN
    return RateVerdict.OPEN


def least_sample(allowed: float, level: float) -> int:
    """Requests needed for "holds" if none of them exceeds the bound."""
    return math.ceil(math.log(level) / math.log1p(-allowed))


@dataclass(frozen=True, slots=True)
class SearchStep:
    """One run: a number of requests at a rate, after `WARM_UP_S` that do not count."""

    rate_per_s: float
    requests: int
    look: int


@dataclass(frozen=True, slots=True)
class RateResult:
    """Result at a rate, over all its runs. `why`: the generator's problem that invalidated the last run.

    `late`: the generator delay is that problem, or part of it.
    """

    rate_per_s: float
    requests: int
    exceeding: int
    factor: float
    verdict: RateVerdict
    why: str = ""
    late: bool = False


@dataclass(slots=True)
class Search:
    """Requests runs (`next_step`) and takes their records (`observe`) until the interval is narrow. Rates per s.

    ClaimsError for an invalid range. Each run lasts at least `least_s`: a growing queue takes time to show.
    """

    goal: Goal
    from_per_s: float
    to_per_s: float
    error_rate: float = ERROR_RATE
    precision: float = PRECISION
    least_s: float = 5.0
    results: list[RateResult] = field(default_factory=list)
    _values: list[Times] = field(default_factory=list)
    _step: SearchStep | None = None

    def __post_init__(self) -> None:
        if not 0 < self.from_per_s < self.to_per_s < math.inf:
            raise ClaimsError(f"--from {self.from_per_s:g} --to {self.to_per_s:g}: expected two rates, the lower first")
        self._step = self._first_look(self.from_per_s)

    @property
    def level(self) -> float:
        """Error probability of a single verdict: that of the search, divided by its maximum number of verdicts."""
        ratio = math.log(self.to_per_s / self.from_per_s) / math.log1p(self.precision)
        halvings = max(0, math.ceil(math.log2(ratio)))
        return self.error_rate / (LOOKS * (2 + 2 * halvings))

    @property
    def holds_per_s(self) -> float | None:
        """Highest rate shown to keep the bound."""
        return max((result.rate_per_s for result in self.results if result.verdict is RateVerdict.HOLDS), default=None)

    @property
    def broken_per_s(self) -> float | None:
        """Lowest rate shown to break it."""
        return min((result.rate_per_s for result in self.results if result.verdict is RateVerdict.BROKEN), default=None)

    def next_step(self) -> SearchStep | None:
        """The next run; None when the search is over."""
        return self._step

    def observe(self, rows: Rows) -> RateResult:
        """Take the records of the run requested by `next_step`; returns the result at its rate."""
        step = self._step
        if step is None:
            raise ValueError("the search is over; it has requested no run")
        counted = rows[rows["intended_s"] >= WARM_UP_S]
        before, bound_s = self._values, self.goal.bound_s
        values = np.concatenate([*before, self.goal.values(counted)])
        verdict, why = judged(values, bound_s, self.goal.allowed, self.level), ""
        self._values = [values]
        if verdict is not RateVerdict.HOLDS and (why := self._generator_problem(counted)):
            # A problem of the generator can only make a balancer look worse.
            verdict, self._values = RateVerdict.OPEN, before
        exceeding = int((values > bound_s).sum())
        spread = spread_factor(values, bound_s)
        late = bool(why) and self._delay_too_large(counted)
        result = RateResult(step.rate_per_s, len(values), exceeding, spread, verdict, why, late)
        if verdict is RateVerdict.OPEN and step.look < (MOST_INVALID if why else LOOKS):
            more = step.requests if why or step.look == 1 else 2 * step.requests
            self._step = SearchStep(step.rate_per_s, more, step.look + 1)
        else:
            self.results.append(result)
            self._values = []
            rate_per_s = self._next_rate()
            self._step = None if rate_per_s is None else self._first_look(rate_per_s)
        return result

    def _generator_problem(self, rows: Rows) -> str:
        """Reason why a run does not count against the balancer; empty if there is none."""
        unsent = int((rows["failure"] == Failure.NOT_SENT).sum())
        if unsent:
            return f"{unsent} requests could not be sent"
        if self._delay_too_large(rows):
            return f"the generator delay was {_generator_delay_s(rows) * 1e3:.3g} ms"
        return ""

    def _delay_too_large(self, rows: Rows) -> bool:
        """Whether the generator delay is so large that the run does not count against the balancer."""
        return bool(self.goal.series) and delay_too_large(_generator_delay_s(rows), self.goal.bound_s)

    def _first_look(self, rate_per_s: float) -> SearchStep:
        requests = max(2.0 * least_sample(self.goal.allowed, self.level), rate_per_s * self.least_s)
        return SearchStep(rate_per_s, math.ceil(requests), 1)

    def _next_rate(self) -> float | None:
        verdicts = {result.rate_per_s: result.verdict for result in self.results}
        if verdicts[self.from_per_s] is not RateVerdict.HOLDS:
            return None
        if self.to_per_s not in verdicts:
            return self.to_per_s
        if verdicts[self.to_per_s] is RateVerdict.HOLDS:
            return None
        low = self.holds_per_s or self.from_per_s
        high = min(self.to_per_s, self.broken_per_s or self.to_per_s)
        undecided = [rate for rate, verdict in verdicts.items() if verdict is RateVerdict.OPEN and low < rate < high]
        ends = [low, min(undecided), max(undecided), high] if undecided else [low, high]
        gaps = [(ends[place + 1] / ends[place], place) for place in range(0, len(ends), 2)]
        ratio, place = max(gaps)
        return None if ratio <= 1.0 + self.precision else math.sqrt(ends[place] * ends[place + 1])


def _generator_delay_s(rows: Rows) -> float:
    """Generator delay at the 99th percentile, in seconds; 0 if no request was sent."""
    sent = rows[~np.isnan(rows["sent_s"])]
    return float(np.quantile(sent["sent_s"] - sent["intended_s"], 0.99)) if len(sent) else 0.0
