"""Scenarios of health-weighted shares: their planned zones, and the claims for which they can be built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.claims.features import Claims, HealthChecks
from harness.scenario.model import Kind, Scenario, UnsupportedError
from suites.health_share.scenarios import (
    cap_of,
    even_zone,
    full_share,
    full_zone,
    one_fails,
    one_has_a_tail,
    one_holds_a_model,
    one_not_ready,
    recovered_zone,
    returned_zone,
    share_of,
    tail_zone,
    warm_zone,
    weighed_zone,
)
from tests.suites.health_share_histories import CLAIMS, SHARE


def test_zones_are_those_of_the_statistics_page() -> None:
    assert share_of(0.6, 4) == pytest.approx(1 / 6)
    conform, violate = weighed_zone(0.6, 4)
    assert conform == pytest.approx((0.15, 0.1781), abs=5e-5)
    assert violate == pytest.approx((0.0909, 0.25), abs=5e-5)
    assert cap_of(((0.15, 0.1781), (0.0909, 0.25))) == 1745


def test_zones_around_an_even_share() -> None:
    assert [*even_zone(4)[0], *even_zone(4)[1]] == pytest.approx([0.225, 0.275, 0.125, 0.375])
    assert [*returned_zone(4)[0], *returned_zone(4)[1]] == pytest.approx([0.225, 0.275, 0.1, 0.5])
    conform, (low, high) = recovered_zone(0.6, 4)
    assert [*conform, low] == pytest.approx([0.2375, 0.2625, 1 / 6])
    assert high is None


def test_zones_of_latency_and_memory() -> None:
    conform, violate = tail_zone(CLAIMS, 3)
    assert [*conform, *violate] == pytest.approx([0.7 / 2.7, 0.775 / 2.775, 0.35 / 2.7, 1 / 3])
    assert full_share(CLAIMS, 2) == pytest.approx(0.4125 / 1.0125)
    conform, violate = full_zone(CLAIMS, 2)
    assert [*conform, *violate] == pytest.approx([0.4125 / 1.0125, 0.4125 / 1.0125, 0.20625 / 0.80625, 0.5])
    assert warm_zone(CLAIMS, 2) == ((0.5, 0.5), (full_share(CLAIMS, 2), None))


def test_nobody_weighs_anything() -> None:
    assert share_of(0.0, 2, others=0.0) == 0.0


def test_scenarios_last_as_long_as_the_claims() -> None:
    longer = Claims((replace(SHARE, window_s=10.0), HealthChecks(interval_s=2.0, unhealthy=3)))
    assert one_fails(longer).end_s == pytest.approx(one_fails(CLAIMS).end_s + 16.0)
    assert one_not_ready(longer).end_s == pytest.approx(one_not_ready(CLAIMS).end_s + 5.0 + 1.5)
    assert one_fails(longer).intervals_s == (10.0,)
    assert one_not_ready(longer).intervals_s == (10.0, 2.0, 1.0)


@pytest.mark.parametrize("scenario_of", [one_fails, one_not_ready, one_has_a_tail, one_holds_a_model])
def test_all_updates_come_over_connections_of_their_own(scenario_of: Callable[[Claims], Scenario]) -> None:
    streams = [stream for stream in scenario_of(CLAIMS).load.streams if stream.kind is Kind.UPDATE]
    assert {stream.connections.value for stream in streams} == {"fresh"}
    assert max(stream.rate_per_s for stream in streams) <= 750.0
    assert scenario_of(CLAIMS).end_s < 10.0


@pytest.mark.parametrize(
    ("scenario_of", "change", "told"),
    [
        (one_fails, {"errors": 0.1, "memory": 0.5}, "the weight of errors is 0.1, below 0.15"),
        (
            one_fails,
            {"errors": 0.9, "latency": 0.1, "memory": 0.0, "connections": 0.0},
            "without errors a score is 0.1",
        ),
        (one_fails, {"minimum_calls": 200}, "200 calls in a window of 2 s need 900 requests/s"),
        (one_has_a_tail, {"latency": 0.1}, "the weight of latency is 0.1"),
        (one_has_a_tail, {"baseline_p99_s": 0.2}, "a baseline of 0.2 s needs answers of 4 s"),
        (one_has_a_tail, {"window_s": 0.1}, "20 calls in a window of 0.1 s need"),
        (one_holds_a_model, {"memory": 0.1}, "the weight of memory is 0.1"),
        (one_holds_a_model, {"errors": 0.5, "memory": 0.4}, "without errors and memory a score is 0.1"),
        (one_holds_a_model, {"window_s": 0.9}, "a report counts for 0.9 s"),
    ],
)
def test_what_cannot_be_seen_is_not_supported(
    scenario_of: Callable[[Claims], Scenario], change: dict[str, float], told: str
) -> None:
    claims = replace(CLAIMS, features=(replace(SHARE, **change), CLAIMS[HealthChecks]))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=told):
        scenario_of(claims)


@pytest.mark.parametrize("scenario_of", [one_fails, one_not_ready, one_has_a_tail, one_holds_a_model])
def test_openai_has_no_updates(scenario_of: Callable[[Claims], Scenario]) -> None:
    with pytest.raises(UnsupportedError, match="protocol openai has no updates"):
        scenario_of(replace(CLAIMS, protocol="openai"))


def test_rare_health_checks_cannot_report_a_hold() -> None:
    claims = Claims((replace(SHARE, window_s=4.0), HealthChecks(interval_s=1.4)))
    with pytest.raises(UnsupportedError, match="too rare to report"):
        one_holds_a_model(claims)
