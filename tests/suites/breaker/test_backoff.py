"""Properties of backoff on hand-written histories."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from harness.claims.features import Backoff
from harness.property.findings import Held, Within
from harness.property.verdict import Outcome
from harness.scenario.model import UnsupportedError
from suites.breaker.backoff import backoff_grows, backoff_jittered
from tests.suites.breaker_histories import BREAKER, CLAIMS, FAILS_S, claiming, failing_fleet, fleet, one_faulty
from tests.suites.histories import outcome


@pytest.mark.parametrize(
    ("opens_s", "expected"),
    [
        ((0.5, 1.0, 1.4), Outcome.PASS),
        ((0.5, 0.81, 1.21), Outcome.PASS),
        ((0.5, 0.75, 1.4), Outcome.FAIL),  # 0.8 is the minimum
        ((0.5, 1.3, 1.4), Outcome.FAIL),  # 1.2 is the maximum, plus a wait of 15 ms
        ((0.5, 1.0, 2.0), Outcome.FAIL),  # above the cap
        ((0.5, 0.5, 0.5), Outcome.FAIL),
    ],
)
def test_each_open_time_in_its_band(opens_s: tuple[float, ...], expected: Outcome) -> None:
    history, _ = one_faulty(*opens_s)
    assert outcome(backoff_grows, history, CLAIMS) is expected


def test_figures_of_the_backoff() -> None:
    second, third = backoff_grows(one_faulty()[0], CLAIMS)
    assert isinstance(second, Within) and isinstance(third, Within)
    assert second.low_s == pytest.approx(0.8) and 1.2 < second.high_s < 1.23
    assert third.low_s == pytest.approx(1.2) and 1.5 < third.high_s < 1.53
    assert 1.0 <= second.observed_s < 1.02 and 1.4 <= third.observed_s < 1.42


def test_without_growth_or_jitter_unsupported() -> None:
    steady = claiming(replace(BREAKER, backoff=Backoff(1.0, 60.0, 0.0)))
    with pytest.raises(UnsupportedError, match="no backoff"):
        backoff_grows(one_faulty()[0], steady)
    with pytest.raises(UnsupportedError, match="no jitter"):
        backoff_jittered(fleet(0.5), steady)


def test_open_times_without_jitter() -> None:
    """Eight open times: by chance all lie within 6.3 % once in ten thousand runs; waits spread them a bit."""
    (found,) = backoff_jittered(fleet(0.48), CLAIMS)
    assert isinstance(found, Held) and found.sample == 8 and not found.ok
    assert found.bound == pytest.approx(0.2 * 1e-4 ** (1 / 8)) and found.alpha == 1e-4
    spread = failing_fleet((0.45, 1.0), (0.5, 1.0), (0.5, 0.9), (0.5, 1.0))
    (found,) = backoff_jittered(spread, CLAIMS)
    assert isinstance(found, Held) and found.ok and float(str(found.observed)) > 0.0633


def test_open_times_at_the_cap_do_not_count() -> None:
    """Jitter allows a second open time of 1.2 s; a cap of 1.1 s excludes that."""
    capped = claiming(replace(BREAKER, backoff=Backoff(2.0, 1.1, 0.2)))
    (found,) = backoff_jittered(fleet(0.45), capped)
    assert isinstance(found, Held) and found.sample == 4


def test_an_open_time_cut_by_the_end_of_the_load_yields_no_finding() -> None:
    """The last open time did not have to end before the load did."""
    history, _ = one_faulty(0.5, 1.0, 99.0)
    assert len(backoff_grows(history, CLAIMS)) == 2
    requests = history.requests.copy()
    requests["sent_s"][requests["sent_s"] > FAILS_S + 2.5] = math.nan
    cut = replace(history, requests=requests)
    assert len(backoff_grows(cut, CLAIMS)) == 1
