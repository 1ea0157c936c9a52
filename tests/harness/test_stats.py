"""Bands, limits and the sequential test: against scipy, published tables and simulation."""

from __future__ import annotations

import math
from itertools import repeat
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from harness import stats
from harness.stats import (
    ALPHA,
    BETA,
    COARSE_RING,
    Decision,
    ShareTest,
    band,
    beta_binomial_pmf,
    binomial_pmf,
    remap_band,
)

Zone = tuple[float, float]
Limits = tuple[float | None, float | None]

TRIALS = (1, 2, 17, 200, 3000)
RATES = (0.005, 0.05, 1 / 6, 0.5, 0.9)
SHAPES = ((1.0, 1.0), (100.0, 200.0), (150.0, 450.0), (160.0, 10_080.0))


# --- probabilities and bands ------------------------------------------------------------------------------


@pytest.mark.parametrize("trials", [0, *TRIALS])
@pytest.mark.parametrize("rate", [0.0, *RATES, 1.0])
def test_binomial_is_scipys(trials: int, rate: float) -> None:
    expected = scipy_stats.binom.pmf(np.arange(trials + 1), trials, rate)
    np.testing.assert_allclose(binomial_pmf(trials, rate), expected, rtol=1e-8, atol=1e-300)


@pytest.mark.parametrize("trials", [0, *TRIALS])
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_beta_binomial_is_scipys(trials: int, a: float, b: float) -> None:
    expected = scipy_stats.betabinom.pmf(np.arange(trials + 1), trials, a, b)
    np.testing.assert_allclose(beta_binomial_pmf(trials, a, b), expected, rtol=1e-6, atol=1e-300)


def quantiles(distribution: Any, alpha: float) -> tuple[int, int]:
    return int(distribution.ppf(alpha / 2)), int(distribution.isf(alpha / 2))


@pytest.mark.parametrize("alpha", [1e-4, 1e-4 / 8, 0.05])
@pytest.mark.parametrize("trials", [17, 200, 3000])
def test_bands_are_scipys_quantiles(trials: int, alpha: float) -> None:
    for rate in RATES:
        assert band(binomial_pmf(trials, rate), alpha) == quantiles(scipy_stats.binom(trials, rate), alpha)
    for a, b in SHAPES:
        assert band(beta_binomial_pmf(trials, a, b), alpha) == quantiles(scipy_stats.betabinom(trials, a, b), alpha)


def test_a_band_is_the_narrowest_that_keeps_its_promise() -> None:
    low, high = band(binomial_pmf(500, 0.25))
    below, above = scipy_stats.binom(500, 0.25).cdf, scipy_stats.binom(500, 0.25).sf
    assert below(low - 1) < ALPHA / 2 <= below(low)
    assert above(high) <= ALPHA / 2 < above(high - 1)


@pytest.mark.parametrize(
    ("backends", "keys", "virtual_nodes", "low", "high"),
    [
        (3, 1000, 100, 0.2200, 0.4590),
        (3, 2000, 150, 0.2420, 0.4320),
        (4, 2000, 150, 0.1765, 0.3325),
        (4, 10_000, 160, 0.1854, 0.3221),
        (8, 10_000, 200, 0.0928, 0.1620),
        (16, 1000, 150, 0.0310, 0.1020),
        (64, 10_000, 100, 0.0088, 0.0243),
        (5, 1000, 150, 0.1300, 0.2800),
        (9, 10_000, 160, 0.0794, 0.1482),
    ],
)
def test_published_bands_of_keys_that_move_on_a_ring(
    backends: int, keys: int, virtual_nodes: int, low: float, high: float
) -> None:
    expected = (round(low * keys), round(high * keys))
    assert remap_band(keys, backends, "ring", virtual_nodes) == expected
    assert remap_band(keys, backends, "any", virtual_nodes) == remap_band(keys, backends, "ring", COARSE_RING)


@pytest.mark.parametrize("algorithm", ["rendezvous", "jump", "maglev"])
@pytest.mark.parametrize(
    ("backends", "keys", "low", "high"),
    [(3, 1000, 0.2760, 0.3920), (4, 2000, 0.2130, 0.2880), (8, 10_000, 0.1123, 0.1380), (65, 2000, 0.0060, 0.0270)],
)
def test_published_bands_of_keys_that_move_elsewhere(
    algorithm: str, backends: int, keys: int, low: float, high: float
) -> None:
    assert remap_band(keys, backends, algorithm, 150) == (round(low * keys), round(high * keys))


@pytest.mark.parametrize(
    ("trials", "rate", "low", "high"),
    [
        (200, 1 / 6, 0.0750, 0.2750),
        (300, 1 / 4, 0.1567, 0.3500),
        (500, 1 / 3, 0.2540, 0.4160),
        (1000, 1 / 8, 0.0860, 0.1670),
        (2000, 0.05, 0.0320, 0.0700),
        (5000, 1 / 6, 0.1464, 0.1874),
        (10_000, 1 / 4, 0.2333, 0.2670),
        (20_000, 1 / 8, 0.1160, 0.1342),
    ],
)
def test_published_bands_of_shares(trials: int, rate: float, low: float, high: float) -> None:
    low_count, high_count = band(binomial_pmf(trials, rate))
    assert (round(low_count / trials, 4), round(high_count / trials, 4)) == (low, high)


# --- the sequential test ----------------------------------------------------------------------------------

SIXTY: tuple[Zone, Limits] = ((0.15, 0.1781), (0.0909, 0.25))
THIRD: tuple[Zone, Limits] = ((1 / 3, 1 / 3), (0.2667, 0.4))
HEDGE: tuple[Zone, Limits] = ((0.0, 0.05), (None, 0.10))
ACTIVE: tuple[Zone, Limits] = ((0.03, 1.0), (0.005, None))
TABLE: list[tuple[tuple[Zone, Limits], int, tuple[int, int]]] = [
    (SIXTY, 1745, (203, 377)),
    (((1 / 6, 1 / 6), (0.1429, 0.1892)), 15_615, (2415, 2793)),
    (THIRD, 2833, (843, 1047)),
    (((0.25, 0.25), (0.2, 0.3)), 4319, (966, 1196)),
    (((0.125, 0.125), (0.0625, 0.25)), 1166, (102, 193)),
    (HEDGE, 1393, (0, 103)),
    (((0.0, 0.05), (None, 0.08)), 3471, (0, 226)),
    (ACTIVE, 1255, (17, 1255)),
    (((0.0, 0.005), (None, 0.05)), 528, (0, 11)),
]
"""Published figures: zones, largest number of trials, limits of the successes there."""


@pytest.mark.parametrize(("zones", "cap", "limits"), TABLE)
def test_published_caps_and_limits(zones: tuple[Zone, Limits], cap: int, limits: tuple[int, int]) -> None:
    test = ShareTest(*zones)
    assert abs(test.cap - cap) <= max(1, cap // 200)
    assert all(abs(observed - published) <= 1 for observed, published in zip(test.limits, limits, strict=True))


@pytest.mark.parametrize(("zones", "cap", "limits"), TABLE)
def test_limits_are_exact_at_the_cap(zones: tuple[Zone, Limits], cap: int, limits: tuple[int, int]) -> None:
    """At the cap each side alone has level alpha / (2 sides) and power 1 - beta; one grid step earlier it has not."""
    (low, high), (below, above) = zones
    test = ShareTest(*zones)
    level = ALPHA / (2 * ((below is not None) + (above is not None)))

    def sound(trials: int) -> bool:
        top = scipy_stats.binom.isf(level, trials, high)
        bottom = scipy_stats.binom.ppf(level, trials, low)
        powers = [scipy_stats.binom.sf(top, trials, above)] if above is not None else []
        powers += [scipy_stats.binom.cdf(bottom - 1, trials, below)] if below is not None else []
        return bool(min(powers) >= 1 - BETA)

    assert sound(test.cap)
    assert not sound(test.cap - max(1, test.cap // 200))
    if above is not None:
        assert test.limits[1] == scipy_stats.binom.isf(level, test.cap, high)
    if below is not None:
        assert test.limits[0] == scipy_stats.binom.ppf(level, test.cap, low)


@pytest.mark.parametrize(
    ("low", "high", "below", "above"),
    [(0.225, 0.275, 0.125, 0.375), (0.0, 0.01, None, 0.05), (0.5, 0.5, 0.3, None), (0.9, 0.97, 0.6, 1.0)],
)
def test_sizes_that_are_not_tried_would_not_do(
    low: float, high: float, below: float | None, above: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = stats._fixed_test.__wrapped__(low, high, below, above, ALPHA, BETA)
    monkeypatch.setattr(stats, "HOPELESS", 0.0)
    assert stats._fixed_test.__wrapped__(low, high, below, above, ALPHA, BETA) == found


def test_only_successes_fail_as_soon_as_the_likelihood_says() -> None:
    enough = math.ceil(math.log(2 / ALPHA) / math.log(0.10 / 0.05))
    test = ShareTest(*HEDGE)
    assert test.run(repeat(True)) == Decision("fail", enough, enough, test.cap)
    two_sided = math.ceil(math.log(4 / ALPHA) / math.log(0.25 / 0.1781))
    assert ShareTest(*SIXTY).run(repeat(True)).trials == two_sided


def test_only_failures_pass_as_soon_as_the_likelihood_says() -> None:
    enough = math.ceil(math.log(1 / BETA) / math.log(0.95 / 0.90))
    test = ShareTest(*HEDGE)
    assert test.run(repeat(False)) == Decision("pass", 0, enough, test.cap)
    assert ShareTest(*SIXTY).run(repeat(False)).verdict == "fail"


def paced(successes: int, trials: int) -> list[bool]:
    """`successes` hits spread evenly over `trials`, so that the share is constant."""
    return [(number + 1) * successes // trials > number * successes // trials for number in range(trials)]


@pytest.mark.parametrize(("past", "verdict"), [(0, "pass"), (1, "fail")])
def test_at_the_cap_the_exact_limits_decide(past: int, verdict: str) -> None:
    for zones, side in ((HEDGE, 1), (ACTIVE, 0)):
        test = ShareTest(*zones)
        successes = test.limits[side] + (past if side else -past)
        hits = [*paced(successes, test.cap), True, True]
        assert test.run(hits) == Decision(verdict, successes, test.cap, test.cap)


def test_a_side_that_was_cleared_stays_cleared() -> None:
    """Few hits at first clear the upper side, then many clear the lower side."""
    test = ShareTest((0.5, 0.5), (0.3, 0.7), alpha=0.01, beta=0.05)
    clear_upper = [False] * 9
    hits = clear_upper + [True] * 18
    decision = test.run(hits)
    weight_up, weight_down = math.log(0.7 / 0.5), math.log(0.3 / 0.5)
    upper_again = decision.successes * weight_up + (decision.trials - decision.successes) * weight_down
    assert decision.verdict == "pass"
    assert upper_again > -math.log(1 / 0.05)


@pytest.mark.parametrize("hits", [[], [True], paced(13, 200)])
def test_too_few_are_open(hits: list[bool]) -> None:
    test = ShareTest(*HEDGE)
    assert test.run(hits) == Decision("open", sum(hits), len(hits), test.cap)


@pytest.mark.parametrize(
    ("conform", "violate"),
    [
        ((0.1, 0.2), (None, 0.2)),
        ((0.1, 0.2), (0.1, None)),
        ((0.1, 0.2), (0.05, 0.15)),
        ((0.1, 0.2), (0.15, 0.3)),
        ((0.1, 0.2), (None, None)),
    ],
)
def test_zones_that_touch_are_refused(conform: Zone, violate: Limits) -> None:
    with pytest.raises(ValueError, match="must lie strictly inside"):
        ShareTest(conform, violate)


# --- rates of error, by simulation ------------------------------------------------------------------------


def verdicts(test: ShareTest, rate: float, runs: int) -> tuple[dict[str, int], float]:
    """Numbers of verdicts at a true `rate`, and the mean number of trials."""
    generator = np.random.default_rng(11)
    counts = {"pass": 0, "fail": 0, "open": 0}
    trials = 0
    for _ in range(runs):
        decision = test.run(generator.random(test.cap) < rate)
        counts[decision.verdict] += 1
        trials += decision.trials
    return counts, trials / runs


@pytest.mark.parametrize(
    ("conform", "violate", "edges", "wrong"),
    [
        ((0.4, 0.5), (0.2, 0.7), (0.4, 0.5), (0.2, 0.7)),
        ((0.0, 0.1), (None, 0.3), (0.1,), (0.3,)),
        ((0.6, 1.0), (0.3, None), (0.6,), (0.3,)),
    ],
)
def test_errors_are_as_rare_as_promised(
    conform: Zone, violate: Limits, edges: tuple[float, ...], wrong: tuple[float, ...]
) -> None:
    """Error rates at the edges of the zones, where they are largest; alpha and beta are large, so errors occur."""
    alpha, beta, runs = 0.04, 0.02, 4000
    test = ShareTest(conform, violate, alpha, beta)
    for rates, error, promised in ((edges, "fail", alpha), (wrong, "pass", 2 * beta)):
        for rate in rates:
            counts, _ = verdicts(test, rate, runs)
            assert counts["open"] == 0
            assert promised / 16 < counts[error] / runs
            assert scipy_stats.binomtest(counts[error], runs, promised, "greater").pvalue > 1e-4


@pytest.mark.parametrize(
    ("zones", "rate", "verdict", "published"),
    [
        (SIXTY, 0.15, "pass", 488),
        (SIXTY, 0.1781, "pass", 541),
        (SIXTY, 0.0909, "fail", 682),
        (SIXTY, 0.25, "fail", 662),
        (HEDGE, 0.05, "pass", 457),
        (HEDGE, 0.10, "fail", 490),
        (ACTIVE, 0.03, "pass", 284),
        (ACTIVE, 0.005, "fail", 604),
    ],
)
def test_published_numbers_of_trials(zones: tuple[Zone, Limits], rate: float, verdict: str, published: float) -> None:
    counts, mean = verdicts(ShareTest(*zones), rate, 400)
    assert counts[verdict] >= 398
    assert abs(mean / published - 1) < 0.1
