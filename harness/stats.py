"""Bands, exact limits and the truncated pair of sequential tests. numpy only; the tests compare with scipy.

The false-alarm rate is `alpha`, 1e-4 per property; a property with m simultaneous findings uses alpha/m for each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

ALPHA = 1e-4
BETA = 5e-4

HOPELESS = 0.4
"""Sizes below this share of the normal approximation's are not tried: of 7,000 exact sizes none was below 0.61."""

COARSE_RING = 10
"""Points per backend of the coarsest ring accepted as consistent hashing where no algorithm is claimed."""

Array = npt.NDArray[np.float64]


def _log_choose(trials: int) -> Array:
    counts = np.arange(trials + 1)
    log_factorial = _log_factorials(trials)
    logs: Array = log_factorial[trials] - log_factorial[counts] - log_factorial[trials - counts]
    return logs


@lru_cache(maxsize=64)
def _log_factorials(largest: int) -> Array:
    steps = np.log(np.arange(1, largest + 1))
    return np.concatenate(([0.0], np.cumsum(steps)))


def binomial_pmf(trials: int, rate: float) -> Array:
    """Probability of 0..trials successes; shape (trials + 1,)."""
    counts = np.arange(trials + 1)
    if rate <= 0.0 or rate >= 1.0:
        certain: Array = (counts == (0 if rate <= 0.0 else trials)).astype(np.float64)
        return certain
    logs = _log_choose(trials) + counts * math.log(rate) + (trials - counts) * math.log1p(-rate)
    pmf: Array = np.exp(logs)
    return pmf


def beta_binomial_pmf(trials: int, a: float, b: float) -> Array:
    """Probability of 0..trials successes when the rate itself is Beta(a, b); shape (trials + 1,)."""
    up = np.concatenate(([0.0], np.cumsum(np.log(a + np.arange(trials)))))
    down = np.concatenate(([0.0], np.cumsum(np.log(b + np.arange(trials)))))
    both = float(np.log(a + b + np.arange(trials)).sum())
    counts = np.arange(trials + 1)
    pmf: Array = np.exp(_log_choose(trials) + up[counts] + down[trials - counts] - both)
    return pmf


def band(pmf: Array, alpha: float = ALPHA) -> tuple[int, int]:
    """Two-sided band of counts: smallest and largest accepted by a test at alpha/2 on each side."""
    low = int(np.searchsorted(np.cumsum(pmf), alpha / 2))
    above = np.cumsum(pmf[::-1])[::-1]  # above[k] = P(X >= k)
    high = int(np.flatnonzero(np.append(above[1:], 0.0) <= alpha / 2)[0])
    return low, high


def remap_band(keys: int, backends: int, algorithm: str, virtual_nodes: int, alpha: float = ALPHA) -> tuple[int, int]:
    """Band for the number of `keys` that move when one of `backends` leaves a consistent hash.

    A ring with V virtual nodes a backend: BetaBinomial(keys, V, V (n-1)), over random node names (Dirichlet shares
    of a ring). Rendezvous, jump and Maglev tables: Binomial(keys, 1/n). "any" gets the band of a coarse ring.
    """
    if algorithm == "any":
        virtual_nodes = min(virtual_nodes, COARSE_RING)
    if algorithm in ("ring", "any"):
        return band(beta_binomial_pmf(keys, virtual_nodes, virtual_nodes * (backends - 1)), alpha)
    return band(binomial_pmf(keys, 1.0 / backends), alpha)


@dataclass(frozen=True, slots=True)
class Decision:
    """Result of a sequential test: `verdict` is "pass", "fail" or "open", after `trials` with `successes`."""

    verdict: str
    successes: int
    trials: int
    cap: int


class ShareTest:
    """Truncated Sobel-Wald pair of SPRTs for one rate.

    Conforming zone [low, high], violating at or below `violate[0]` or at or above `violate[1]`; either may be None for
    a one-sided test. P(fail | conforming) <= alpha; P(pass | violating) <= 2 beta; never more than `cap` trials.
    Sources: Wald 1945; Sobel and Wald 1949 (Ann. Math. Stat. 16 and 20).
    """

    def __init__(
        self,
        conform: tuple[float, float],
        violate: tuple[float | None, float | None],
        alpha: float = ALPHA,
        beta: float = BETA,
    ) -> None:
        low, high = conform
        below, above = violate
        sides = [(high, above)] if above is not None else []
        sides += [(low, below)] if below is not None else []
        if not sides or (above is not None and above <= high) or (below is not None and below >= low):
            raise ValueError(f"conform {conform} must lie strictly inside violate {violate}")
        self._level = alpha / (2 * len(sides))
        self._fail_at = math.log(1 / self._level)
        self._clear_at = -math.log(1 / beta)
        self._weights = [(_log_ratio(v, c), _log_ratio(1 - v, 1 - c)) for c, v in sides]
        self.cap, self.limits = _fixed_test(low, high, below, above, self._level, beta)

    def run(self, hits: Iterable[bool]) -> Decision:
        """Process `hits` one by one until the first decision, the cap, or the end ("open")."""
        successes = trials = 0
        cleared = [False] * len(self._weights)
        for hit in hits:
            successes, trials = successes + bool(hit), trials + 1
            ratios = [successes * up + (trials - successes) * down for up, down in self._weights]
            if max(ratios) >= self._fail_at:
                return Decision("fail", successes, trials, self.cap)
            cleared = [clear or ratio <= self._clear_at for clear, ratio in zip(cleared, ratios, strict=True)]
            if all(cleared):
                return Decision("pass", successes, trials, self.cap)
            if trials == self.cap:
                inside = self.limits[0] <= successes <= self.limits[1]
                return Decision("pass" if inside else "fail", successes, trials, self.cap)
        return Decision("open", successes, trials, self.cap)


def _log_ratio(violating: float, conforming: float) -> float:
    return math.log(max(violating, 1e-12) / max(conforming, 1e-12))


def _approximate_size(conform: float, violate: float, level: float, beta: float) -> float:
    """Size of a test between two rates by the normal approximation."""
    quantile = NormalDist().inv_cdf
    spread = quantile(1 - level) * math.sqrt(conform * (1 - conform))
    spread += quantile(1 - beta) * math.sqrt(violate * (1 - violate))
    return (spread / (violate - conform)) ** 2


@lru_cache(maxsize=256)
def _fixed_test(
    low: float, high: float, below: float | None, above: float | None, level: float, beta: float
) -> tuple[int, tuple[int, int]]:
    """Size of the truncating test and its limits: exact binomial at `level` on each side, power 1 - beta."""
    sides = [(low, below)] if below is not None else []
    sides += [(high, above)] if above is not None else []
    too_few = HOPELESS * max(_approximate_size(conform, violate, level, beta) for conform, violate in sides)
    trials = 10
    while True:
        if trials < too_few:
            trials += max(1, trials // 200)
            continue
        top, bottom = trials, 0
        powerful = True
        if above is not None:
            tail = np.cumsum(binomial_pmf(trials, high)[::-1])[::-1]  # P(X >= k)
            top = int(np.flatnonzero(np.append(tail[1:], 0.0) <= level)[0])
            powerful &= float(binomial_pmf(trials, above)[top + 1 :].sum()) >= 1 - beta
        if below is not None:
            bottom = int(np.searchsorted(np.cumsum(binomial_pmf(trials, low)), level))
            powerful &= float(binomial_pmf(trials, below)[:bottom].sum()) >= 1 - beta
        if powerful:
            return trials, (bottom, top)
        trials += max(1, trials // 200)
