"""Findings: the results that a property's check yields, one for each occasion on which the promise was tested.

A finding states what was observed and what is allowed. The judge alone (`harness.judge`) adds slack (timing
uncertainty) and chance and derives an outcome.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.stats import ALPHA, BETA

Number = float | int
Bound = Number | tuple[Number, Number]


@dataclass(frozen=True, slots=True)
class Held:
    """A fact of order or count, true or false. `exact`: no delay can cause a breach, so slack never matters.

    `alpha` is the false-alarm rate of a bound that depends on chance (0: none is possible). Times are in seconds of
    the run.

    >>> finding = held(3 <= 2, at_s=1.5, observed=3, bound=2, note="attempts of request 7")
    >>> finding.ok
    False
    """

    ok: bool
    at_s: float
    observed: Bound
    bound: Bound
    exact: bool = False
    until_s: float | None = None
    sample: int | None = None
    alpha: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Within:
    """A time that must lie in [low_s, high_s]; the judge widens both ends by the slack of that period.

    >>> finding = within(observed_s=2.04, low_s=2.0, high_s=2.5, at_s=4.0, note="time until the first probe")
    >>> finding.low_s <= finding.observed_s <= finding.high_s
    True
    """

    observed_s: float
    low_s: float
    high_s: float
    at_s: float
    until_s: float | None = None
    sample: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A rate, judged by the truncated sequential test (`harness.stats.ShareTest`). `hits` are in order of time.

    Rates in `conform` meet the promise; rates at or beyond an end of `violate` break it (None: that side is not
    tested).
    """

    hits: tuple[bool, ...]
    conform: tuple[float, float]
    violate: tuple[float | None, float | None]
    at_s: float
    until_s: float | None = None
    alpha: float = ALPHA
    beta: float = BETA
    note: str = ""


@dataclass(frozen=True, slots=True)
class Undecided:
    """An occasion on which the evidence does not decide; `why` says what is missing.

    >>> undecided("no backend saw a request of key 3", at_s=2.0).why
    'no backend saw a request of key 3'
    """

    why: str
    at_s: float = 0.0


Finding = Held | Within | Sampled | Undecided
Findings = Iterator[Finding]

held = Held
within = Within
undecided = Undecided


def sampled(
    hits: Sequence[bool],
    *,
    conform: tuple[float, float],
    violate: tuple[float | None, float | None],
    at_s: float,
    until_s: float | None = None,
    alpha: float = ALPHA,
    beta: float = BETA,
    note: str = "",
) -> Sampled:
    """A rate finding. Hits must be independent of each other: use one hit per connection or request.

    >>> to_gpu_0 = [True, False, False, True]
    >>> finding = sampled(to_gpu_0, conform=(0.45, 0.55), violate=(0.3, 0.7), at_s=0.0, note="share of gpu-0")
    >>> finding.hits
    (True, False, False, True)
    """
    flags = tuple(bool(hit) for hit in hits)
    return Sampled(flags, conform, violate, at_s, until_s, alpha, beta, note)
