"""Health-weighted shares on hand-written histories: shares just inside and outside their zones, times, evidence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.claims.features import Claims
from harness.evidence.history import History
from harness.property.findings import Sampled, Undecided, Within
from harness.property.verdict import Outcome
from suites.health_share.scenarios import (
    FAILING,
    HEALED,
    HEALTHY,
    NOT_READY,
    READY_AGAIN,
    TAIL,
    cap_of,
    even_zone,
    one_fails,
    one_has_a_tail,
    one_not_ready,
    recovered_zone,
    returned_zone,
    tail_zone,
    weighed_zone,
)
from suites.health_share.shares import (
    errors_by_their_weight,
    healthy_even,
    latency_by_its_weight,
    not_ready_nothing,
    not_ready_returns,
    recovery_even,
)
from suites.margins import KNOWN_WITHIN_S
from tests.suites.health_share_histories import CLAIMS, SHARE, SICK, lost, rate, shared, shifted, why
from tests.suites.histories import outcome

# --- healthy ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "due"), [(0.25, "pass"), (0.275, "pass"), (0.375, "fail"), (0.125, "fail")])
def test_an_even_share(share: float, due: str) -> None:
    history = shared(one_not_ready(CLAIMS), healthy=share)
    findings = [finding for finding in healthy_even(history, CLAIMS) if isinstance(finding, Sampled)]
    assert len(findings) == 4
    assert {(item.conform, item.violate, item.alpha) for item in findings} == {(*even_zone(4), 0.25e-4)}
    assert np.mean(findings[SICK].hits) == pytest.approx(share, abs=1e-3)
    assert len(findings[SICK].hits) == cap_of(even_zone(4), 0.25e-4) == 1291
    assert outcome(healthy_even, history, CLAIMS) == Outcome(due)


def test_only_the_healthy_time_is_judged() -> None:
    assert outcome(healthy_even, shared(one_not_ready(CLAIMS), trickle=1.0, ready_again=1.0), CLAIMS) is Outcome.PASS


def test_a_fleet_without_health_checks_is_healthy_to_the_end() -> None:
    claims = Claims((SHARE,))
    scenario = one_not_ready(claims)
    assert not scenario.timeline and scenario.phases == (scenario.phase(HEALTHY),)
    assert outcome(healthy_even, shared(scenario), claims) is Outcome.PASS
    assert not_ready_nothing(shared(scenario), claims) == not_ready_returns(shared(scenario), claims) == []


@pytest.mark.parametrize(("kept", "findings"), [(646, "sampled"), (645, "undecided"), (0, "undecided")])
def test_half_of_the_requests_must_have_reached_a_backend(kept: int, findings: str) -> None:
    history = shared(one_not_ready(CLAIMS))
    few = history.attempts[history.attempts["request"] < kept]
    found = healthy_even(replace(history, attempts=few), CLAIMS)
    assert {type(item).__name__.lower() for item in found} == {findings}
    if findings == "undecided":
        assert why(healthy_even, replace(history, attempts=few)) == f"only {kept} of 1291 requests reached a backend"


# --- errors and recovery ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "due"), [(1 / 6, "pass"), (0.15, "pass"), (0.178, "pass"), (0.0909, "fail"), (0.25, "fail"), (0, "fail")]
)
def test_a_share_by_the_weight_of_the_errors(share: float, due: str) -> None:
    history = shared(one_fails(CLAIMS), failing=share, trickle=share)
    found = rate(errors_by_their_weight, history)
    assert (found.conform, found.violate) == weighed_zone(0.6, 4)
    assert np.mean(found.hits) == pytest.approx(share, abs=2e-3)
    assert len(found.hits) >= 1745
    assert outcome(errors_by_their_weight, history, CLAIMS) == Outcome(due)
    assert outcome(recovery_even, history, CLAIMS) is Outcome.PASS


def test_the_window_fills_from_when_the_fault_took_effect() -> None:
    scenario = one_fails(CLAIMS)
    assert rate(errors_by_their_weight, shared(scenario)).at_s == pytest.approx(0.1 + 2.0 + 2 * KNOWN_WITHIN_S)
    late = shifted(shared(scenario, failing=1 / 6), effective_s=1.0)
    assert rate(errors_by_their_weight, late).at_s == pytest.approx(0.1 + 1.0 + 2.0 + KNOWN_WITHIN_S)
    assert rate(errors_by_their_weight, late).until_s == pytest.approx(scenario.phase(FAILING).end_s)


def test_too_few_requests_in_between_decide_nothing() -> None:
    history = shifted(shared(one_fails(CLAIMS), failing=0.21, trickle=0.21), effective_s=1.5)
    assert outcome(errors_by_their_weight, history, CLAIMS) is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("share", "due"), [(0.25, "pass"), (0.2375, "pass"), (0.4, "pass"), (0.1666, "fail"), (0, "fail")]
)
def test_a_share_that_is_even_again(share: float, due: str) -> None:
    history = shared(one_fails(CLAIMS), healed=share, trickle=share)
    found = rate(recovery_even, history)
    assert (found.conform, found.violate) == recovered_zone(0.6, 4)
    assert outcome(recovery_even, history, CLAIMS) == Outcome(due)


def test_recovery_counts_from_when_the_fault_had_healed() -> None:
    scenario = one_fails(CLAIMS)
    healed = scenario.phase(HEALED)
    assert rate(recovery_even, shared(scenario)).at_s == pytest.approx(healed.start_s)
    late = shifted(shared(scenario), healed_s=0.5)
    assert rate(recovery_even, late).at_s == pytest.approx(healed.start_s - KNOWN_WITHIN_S + 0.5)
    never = shifted(shared(scenario), healed_s=float("nan"))
    assert why(recovery_even, never) == "the end of the fault was not observed"


def test_without_a_fault_no_finding() -> None:
    history = replace(shared(one_fails(CLAIMS)), steps=())
    assert errors_by_their_weight(history, CLAIMS) == recovery_even(history, CLAIMS) == []


def test_without_any_request_no_finding() -> None:
    history = shared(one_fails(CLAIMS))
    unsent = history.requests.copy()
    unsent["sent_s"] = np.nan
    history = replace(history, requests=unsent)
    assert errors_by_their_weight(history, CLAIMS) == recovery_even(history, CLAIMS) == []


# --- latency ------------------------------------------------------------------------------------------------


def with_tail(
    share: float = 0.2634,
    quick_s: float = 0.02,
    slow_s: float = 0.4,
    every: int = 10,
    overhead_s: float = 0.0,
    claims: Claims = CLAIMS,
) -> History:
    """Answers take `quick_s` at their backends, and one in `every` of gpu-1 takes `slow_s`; clients see `overhead_s`
    more."""
    scenario = one_has_a_tail(claims)
    history = shared(scenario, tail=share)
    requests, attempts = history.requests.copy(), history.attempts.copy()
    mine = np.flatnonzero(attempts["backend"] == SICK)
    attempts["end_s"] = attempts["start_s"] + quick_s
    attempts["end_s"][mine[::every]] = attempts["start_s"][mine[::every]] + slow_s
    requests["end_s"][attempts["request"]] = attempts["end_s"] + overhead_s
    return replace(history, requests=requests, attempts=attempts)


@pytest.mark.parametrize(("share", "due"), [(0.2634, "pass"), (1 / 3, "fail"), (0.1296, "fail"), (0.0, "fail")])
def test_a_share_by_the_latency_that_was_measured(share: float, due: str) -> None:
    history = with_tail(share)
    found = rate(latency_by_its_weight, history)
    if share:
        assert found.conform == (0.263, 0.264)  # .715 / 2.715 = .26335
    assert found.violate == tail_zone(CLAIMS, 3)[1]
    assert outcome(latency_by_its_weight, history, CLAIMS) == Outcome(due)


def test_what_clients_saw_widens_the_zone() -> None:
    assert rate(latency_by_its_weight, with_tail(overhead_s=0.01)).conform == (0.263, 0.266)  # 30/410: .7220/2.7220


def test_a_backend_that_is_left_out_for_its_tail_is_judged_as_planned() -> None:
    found = rate(latency_by_its_weight, with_tail(0.0))
    assert found.conform == (0.259, 0.28)  # .7/2.7 to .775/2.775
    assert not any(found.hits)


def test_a_claimed_baseline_takes_the_place_of_the_fleets() -> None:
    claims = Claims((replace(SHARE, baseline_p99_s=0.04),))
    scenario = one_has_a_tail(claims)
    assert scenario.server.update_s == 0.02 and {step.factor for step in scenario.timeline} == {40.0}  # type: ignore[union-attr]
    found = rate(latency_by_its_weight, with_tail(slow_s=0.8, claims=claims), claims)
    assert found.conform == (0.263, 0.264)
    found = rate(latency_by_its_weight, with_tail(slow_s=0.4, claims=claims), claims)
    assert found.conform == (0.267, 0.268)  # .73/2.73


@pytest.mark.parametrize(("slow_s", "decided"), [(0.082, True), (0.078, False)])
def test_a_tail_that_costs_too_little_decides_nothing(slow_s: float, decided: bool) -> None:
    """The scenario plans for a latency score of at most a quarter: 20 of 80 ms."""
    history = with_tail(slow_s=slow_s)
    if decided:
        assert rate(latency_by_its_weight, history).conform == (0.278, 0.279)
    else:
        assert "too close to even" in why(latency_by_its_weight, history)


@pytest.mark.parametrize(("every", "decided"), [(45, True), (55, False)])
def test_a_tail_must_be_seen(every: int, decided: bool) -> None:
    history = with_tail(every=every)
    if decided:
        assert rate(latency_by_its_weight, history).conform == (0.263, 0.264)
    else:
        assert why(latency_by_its_weight, history) == "too few answers of gpu-1 were slow for a tail"


def test_a_first_stretch_that_came_late_moves_the_start() -> None:
    start_s = one_has_a_tail(CLAIMS).phase(TAIL).start_s
    assert rate(latency_by_its_weight, with_tail()).at_s == pytest.approx(start_s)
    assert rate(latency_by_its_weight, shifted(with_tail(), effective_s=0.3)).at_s == pytest.approx(start_s + 0.3)


def test_the_window_before_the_stretch_counts() -> None:
    """gpu-1 is excluded as soon as the period begins, because of slow answers before it."""
    history = with_tail()
    attempts = history.attempts
    later = np.flatnonzero((attempts["start_s"] >= 1.2) & (attempts["backend"] == SICK))
    attempts["backend"][later] = 0
    attempts["end_s"][later] = attempts["start_s"][later] + 0.02
    history.requests["end_s"][attempts["request"][later]] = attempts["end_s"][later]
    found = rate(latency_by_its_weight, history)
    assert found.conform == (0.263, 0.264)
    assert not any(found.hits)


def test_answers_after_the_stretch_and_errors_have_no_part_in_a_p99() -> None:
    history = with_tail()
    attempts, end_s = history.attempts, history.scenario.end_s
    other = np.flatnonzero(attempts["backend"] == 0)
    attempts["status"][other[::20]] = 503
    attempts["end_s"][other[::20]] += 0.5
    assert rate(latency_by_its_weight, history).conform == (0.263, 0.264)
    late = other[attempts["start_s"][other] > end_s - 0.5]
    attempts["end_s"][late] = end_s + 1.0
    assert rate(latency_by_its_weight, history).conform == (0.263, 0.264)


def test_a_backend_with_few_answers_has_lost_nothing() -> None:
    claims = Claims((replace(SHARE, baseline_p99_s=0.04),))
    history = with_tail(slow_s=0.8, claims=claims)
    attempts = history.attempts
    other = np.flatnonzero(attempts["backend"] == 2)
    attempts["backend"][other[19:]] = 0
    attempts["end_s"][other[:19]] += 1.0
    assert rate(latency_by_its_weight, history, claims).conform == (0.263, 0.264)


def test_without_a_tail_no_finding() -> None:
    assert latency_by_its_weight(replace(with_tail(), steps=()), CLAIMS) == []


# --- not ready ----------------------------------------------------------------------------------------------


def out_until(last_s: float, healthy: float = 0.25) -> History:
    """gpu-1 has its share while it is ready, and gets its last request `last_s` after it stops being ready."""
    scenario = one_not_ready(CLAIMS)
    history = shared(scenario, healthy=healthy)
    out_s, back_s = scenario.phase(NOT_READY).start_s, scenario.phase(NOT_READY).end_s
    attempts = history.attempts.copy()
    start_s = attempts["start_s"]
    attempts["backend"][(start_s >= out_s) & (start_s < back_s)] = 0
    row = int(np.flatnonzero(start_s <= out_s + last_s + 1e-9)[-1])
    attempts["backend"][row], attempts["start_s"][row] = SICK, out_s + last_s
    return replace(history, attempts=attempts)


@pytest.mark.parametrize(("last_s", "due"), [(0.8, "pass"), (1.999, "pass"), (2.001, "fail"), (2.9, "fail")])
def test_nothing_once_it_must_be_out(last_s: float, due: str) -> None:
    history = out_until(last_s)
    (found,) = not_ready_nothing(history, CLAIMS)
    assert isinstance(found, Within)
    assert (found.low_s, found.high_s) == (0.0, 2.0)
    assert found.observed_s == pytest.approx(last_s)
    assert found.at_s == one_not_ready(CLAIMS).phase(NOT_READY).start_s
    assert outcome(not_ready_nothing, history, CLAIMS) == Outcome(due)


def test_it_is_out_from_when_it_took_effect() -> None:
    (found,) = not_ready_nothing(shifted(out_until(2.1), effective_s=0.2), CLAIMS)
    assert isinstance(found, Within) and found.observed_s == pytest.approx(1.9)


def test_slack_counts_and_noise_decides_nothing() -> None:
    """The limit for slack is a fifth of the shortest interval, half a second."""
    history = out_until(2.08)
    assert outcome(not_ready_nothing, replace(history, slack_s=np.full(9, 0.09)), CLAIMS) is Outcome.PASS
    assert outcome(not_ready_nothing, replace(history, slack_s=np.full(9, 0.07)), CLAIMS) is Outcome.FAIL
    assert outcome(not_ready_nothing, replace(history, slack_s=np.full(9, 0.11)), CLAIMS) is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(("healthy", "findings"), [(0.13, 1), (0.12, 0), (0.0, 0)])
def test_a_backend_without_a_share_has_none_to_lose(healthy: float, findings: int) -> None:
    assert len(not_ready_nothing(out_until(0.5, healthy), CLAIMS)) == findings


@pytest.mark.parametrize(("quiet_s", "sample"), [(0.48, 52), (0.52, None)])
def test_silence_says_something_only_while_others_get_requests(quiet_s: float, sample: int | None) -> None:
    back_s = one_not_ready(CLAIMS).phase(NOT_READY).end_s
    history = lost(out_until(0.5), lambda sent_s: (sent_s > back_s - quiet_s) & (sent_s < back_s))
    (found,) = not_ready_nothing(history, CLAIMS)
    if sample is None:
        assert isinstance(found, Undecided) and "requests reached other backends" in found.why
    else:
        assert isinstance(found, Within) and found.sample == sample


@pytest.mark.parametrize(
    ("share", "due"), [(0.25, "pass"), (0.225, "pass"), (0.275, "pass"), (0.1, "fail"), (0.5, "fail"), (0.0, "fail")]
)
def test_a_share_once_it_is_ready_again(share: float, due: str) -> None:
    history = shared(one_not_ready(CLAIMS), ready_again=share)
    found = rate(not_ready_returns, history)
    assert (found.conform, found.violate) == returned_zone(4)
    assert outcome(not_ready_returns, history, CLAIMS) == Outcome(due)


def test_its_return_counts_from_when_it_was_ready() -> None:
    """One health check after at most half a second, answered within one."""
    phase = one_not_ready(CLAIMS).phase(READY_AGAIN)
    history = shared(one_not_ready(CLAIMS))
    assert rate(not_ready_returns, history).at_s == pytest.approx(phase.start_s)
    assert rate(not_ready_returns, shifted(history, healed_s=0.4)).at_s == pytest.approx(
        phase.start_s - KNOWN_WITHIN_S + 0.4
    )
    never = shifted(history, healed_s=float("nan"))
    assert why(not_ready_returns, never) == "the end of the fault was not observed"
