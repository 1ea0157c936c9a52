"""Open times of a claimed breaker."""

from __future__ import annotations

import pytest

from harness.claims.breaker import Backoff, Breaker


def test_open_times_of_a_breaker_grow_within_their_bands() -> None:
    breaker = Breaker(open_s=0.5, backoff=Backoff(multiplier=2.0, max_s=1.5, jitter=0.2))
    bands = [breaker.open_band_s(turn) for turn in range(4)]
    assert bands == [pytest.approx(band) for band in ((0.4, 0.6), (0.8, 1.2), (1.2, 1.5), (1.2, 1.5))]
    assert (breaker.shortest_open_s, breaker.longest_open_s) == (bands[0][0], 1.5)
    steady = Breaker(open_s=2.0, backoff=Backoff(jitter=0.25))
    assert steady.open_band_s(5) == (1.5, 2.5)
    assert (steady.shortest_open_s, steady.longest_open_s) == (1.5, 2.5)


def test_a_growing_open_time_cannot_be_capped_below_its_start() -> None:
    with pytest.raises(ValueError, match=r"backoff\.max_s 60: expected open_s \(120\) or more"):
        Breaker(open_s=120.0, backoff=Backoff(multiplier=2.0))


def test_an_open_time_that_does_not_grow_needs_no_cap() -> None:
    assert Breaker(open_s=120.0).open_band_s(3) == (120.0, 120.0)
    assert Breaker(open_s=120.0).longest_open_s == 120.0
