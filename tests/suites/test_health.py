"""Health on hand-written histories: losses around the claimed time, and the longest time without a health check."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.claims.features import Breaker, Claims, Ejection, Failover, HealthChecks
from harness.evidence.history import History
from harness.evidence.tables import HEALTH_CHECK
from harness.property.findings import Finding, Within
from harness.property.verdict import Outcome
from harness.scenario.arrivals import Arrival
from harness.scenario.faults import Blackhole, Kill
from harness.scenario.model import Method
from suites.health import AFTER_S, BEFORE_S, failover_within_bound, health_checks_independent, one_dies, one_is_silent
from tests.suites.histories import history_of, lost, outcome

WITHIN_S = 1.5
CLAIMS = Claims((Failover(within_s=WITHIN_S),))
OPENAI = replace(CLAIMS, protocol="openai")
BOUND_S = BEFORE_S + WITHIN_S


def survivors_after(arrival: Arrival) -> int:
    """All three in turn; once gpu-1 is dead, the other two."""
    return arrival.number % 3 if arrival.at_s < BEFORE_S else arrival.number % 2 * 2


def dying(claims: Claims = CLAIMS) -> History:
    """One of three backends dies and nothing is lost."""
    return history_of(one_dies(claims), survivors_after)


def by_method(findings: list[Finding]) -> dict[str, Within]:
    """Findings by the method named in their notes."""
    assert all(isinstance(found, Within) for found in findings)
    return {found.note.split(":")[0]: found for found in findings if isinstance(found, Within)}


def holds(found: Within) -> bool:
    """Whether a finding holds without slack."""
    return found.low_s <= found.observed_s <= found.high_s


def first_after(history: History, at_s: float, method: Method) -> int:
    """Number of the first request by this method that was sent later than `at_s`."""
    requests = history.requests
    return int(np.flatnonzero((requests["sent_s"] > at_s) & (requests["method"] == method))[0])


def last_until(history: History, at_s: float, method: Method) -> int:
    """Number of the last request by this method that was sent no later than `at_s`."""
    requests = history.requests
    return int(np.flatnonzero((requests["sent_s"] <= at_s) & (requests["method"] == method))[-1])


def test_nothing_lost() -> None:
    found = by_method(failover_within_bound(dying(), CLAIMS))
    assert {name: (item.observed_s, item.low_s, item.high_s) for name, item in found.items()} == {
        "POST": (0.0, 0.0, WITHIN_S),
        "GET": (0.0, 0.0, WITHIN_S),
    }
    assert {item.sample for item in found.values()} <= {89, 90}
    assert {(item.at_s, item.until_s) for item in found.values()} == {(BOUND_S, BOUND_S + AFTER_S)}
    assert "0 lost after the death" in found["POST"].note
    assert "latency p50/p99 ms: gpu-0 10.0/10.0, gpu-1 10.0/10.0, gpu-2 10.0/10.0" in found["POST"].note


def test_openai_has_no_get() -> None:
    assert set(by_method(failover_within_bound(dying(OPENAI), OPENAI))) == {"POST"}


@pytest.mark.parametrize("method", [Method.POST, Method.GET])
def test_losses_count_from_the_claimed_time_on(method: Method) -> None:
    other = (Method.GET if method is Method.POST else Method.POST).name
    last = last_until(dying(), BOUND_S, method)
    found = by_method(failover_within_bound(lost(dying(), [last]), CLAIMS))
    assert holds(found[method.name]) and found[method.name].observed_s > WITHIN_S - 0.02
    assert f"{method.name}: 1 lost after the death, 0 of" in found[method.name].note
    first = first_after(dying(), BOUND_S, method)
    found = by_method(failover_within_bound(lost(dying(), [last, first]), CLAIMS))
    assert not holds(found[method.name]) and found[method.name].observed_s < WITHIN_S + 0.02
    assert f"{method.name}: 2 lost after the death, 1 of" in found[method.name].note
    assert holds(found[other]) and found[other].observed_s == 0.0


def test_losses_before_the_death_are_not_blamed_on_it() -> None:
    found = by_method(failover_within_bound(lost(dying(), range(10)), CLAIMS))
    assert holds(found["GET"]) and "0 lost after the death" in found["GET"].note


def test_the_time_counts_from_when_the_death_took_effect() -> None:
    """The death takes effect half a second late, so losses until half a second after the claimed time are allowed."""
    history = lost(dying(), [first_after(dying(), BOUND_S, Method.GET)])
    late = tuple(replace(step, effective_s=step.effective_s + 0.5) for step in history.steps)
    assert outcome(failover_within_bound, history, CLAIMS) is Outcome.FAIL
    assert outcome(failover_within_bound, replace(history, steps=late), CLAIMS) is Outcome.PASS


@pytest.mark.parametrize(("every", "findings"), [(6, 2), (7, 0)])
def test_a_victim_without_its_share_proves_nothing(every: int, findings: int) -> None:
    """A third is fair; every sixth request is the least that counts."""
    history = history_of(one_dies(CLAIMS), lambda arrival: 1 if arrival.number % every == 0 else 0)
    assert len(failover_within_bound(history, CLAIMS)) == findings


def test_a_victim_that_was_never_used_is_vacuous() -> None:
    history = history_of(one_dies(CLAIMS), lambda arrival: 0)
    assert failover_within_bound(history, CLAIMS) == []
    assert outcome(failover_within_bound, history, CLAIMS) is Outcome.VACUOUS


def test_without_a_death_no_finding() -> None:
    assert failover_within_bound(replace(dying(), steps=()), CLAIMS) == []


def test_noise_leaves_the_end_undecided() -> None:
    """The shortest interval is the claimed time; a fifth of it is 300 ms."""
    noisy = replace(dying(), slack_s=np.full(5, 0.31))
    assert outcome(failover_within_bound, noisy, CLAIMS) is Outcome.INCONCLUSIVE
    assert outcome(failover_within_bound, replace(noisy, slack_s=np.full(5, 0.29)), CLAIMS) is Outcome.PASS


def test_the_scenario_lasts_as_long_as_the_claim() -> None:
    slow = Claims((Failover(within_s=30.0), Ejection(open_s=2.0), Breaker(open_s=3.0), HealthChecks(interval_s=0.5)))
    scenario = one_dies(slow)
    assert scenario.phase("after").end_s == BEFORE_S + 30.0 + AFTER_S
    assert scenario.intervals_s == (30.0, 2.0, 3.0, 0.5)
    assert scenario.timeline == (Kill("gpu-1", BEFORE_S),)


# --- health checks ----------------------------------------------------------------------------------------------

CHECKED = Claims((HealthChecks(interval_s=0.5, timeout_s=1.0),))
SILENCE = one_is_silent(CHECKED)
SILENT_S, END_S = SILENCE.phase("silent").start_s, SILENCE.phase("silent").end_s


def polled(period_s: float, delay_s: float = 0.0, backends: tuple[int, ...] = (1, 2)) -> History:
    """These backends are checked every `period_s`, first 20 ms after the silence began, the last `delay_s` later."""
    rows = []
    for backend in backends:
        later_s = delay_s if backend == backends[-1] else 0.0
        times_s = np.arange(SILENT_S + 0.02 - 2 * period_s, END_S + 2 * period_s, period_s)
        rows += [(backend, 200, at_s + (later_s if at_s > SILENT_S + 0.1 else 0.0)) for at_s in times_s]
    health_checks = np.array(sorted(rows, key=lambda row: row[2]), dtype=HEALTH_CHECK)
    return replace(history_of(SILENCE, lambda arrival: arrival.number % 3), health_checks=health_checks)


def test_health_checks_go_on_at_their_interval() -> None:
    found = health_checks_independent(polled(0.5), CHECKED)
    assert len(found) == 2
    for item in found:
        assert isinstance(item, Within) and item.observed_s == pytest.approx(0.5) and item.high_s == 0.75
        assert (item.at_s, item.until_s, item.sample) == (SILENT_S, END_S, 4)


@pytest.mark.parametrize(("delay_s", "due"), [(0.24, Outcome.PASS), (0.26, Outcome.FAIL), (1.0, Outcome.FAIL)])
def test_one_that_is_kept_waiting(delay_s: float, due: Outcome) -> None:
    assert outcome(health_checks_independent, polled(0.5, delay_s), CHECKED) is due


@pytest.mark.parametrize("period_s", [1.0, 1.5, 5.0])
def test_one_after_the_other(period_s: float) -> None:
    """A loop that waits for the silent backend, with a pause of the interval or without; or no further check."""
    assert outcome(health_checks_independent, polled(period_s), CHECKED) is Outcome.FAIL


def test_the_silent_one_is_not_judged_and_unseen_ones_are_undecided() -> None:
    assert outcome(health_checks_independent, polled(0.5, backends=(2,)), CHECKED) is Outcome.INCONCLUSIVE
    assert len(health_checks_independent(polled(0.5, backends=(0, 1, 2)), CHECKED)) == 2
    assert health_checks_independent(replace(polled(0.5), steps=()), CHECKED) == []


def test_the_silence_outlasts_a_time_limit_and_two_intervals() -> None:
    assert SILENCE.timeline == (Blackhole("gpu-0", 0.5),) and pytest.approx(2.5) == END_S
    assert SILENCE.intervals_s == (0.5, 1.0)
    slow = one_is_silent(Claims((HealthChecks(interval_s=2.0, timeout_s=3.0),)))
    assert slow.phase("silent").end_s == 2.0 + 2 * 2.0 + 3.0
