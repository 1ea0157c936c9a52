"""Health on hand-written histories: what is lost just before and just after the claimed time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.arrivals import Arrival
from harness.claims import Breaker, Claims, Ejection, Failover, HealthChecks
from harness.history import History
from harness.model import Method
from harness.property import Finding, Within
from harness.timeline import Kill
from harness.verdict import Outcome
from suites.health import BEFORE_S, failover_within_bound, one_dies
from tests.suites.histories import history_of, lost, outcome

WITHIN_S = 1.5
CLAIMS = Claims((Failover(within_s=WITHIN_S),))
OPENAI = replace(CLAIMS, protocol="openai")
BOUND_S = BEFORE_S + WITHIN_S


def survivors_after(arrival: Arrival) -> int:
    """The three in turn; once gpu-1 is dead, the other two."""
    return arrival.number % 3 if arrival.at_s < BEFORE_S else arrival.number % 2 * 2


def dying(claims: Claims = CLAIMS) -> History:
    """One of three backends dies and nothing is lost."""
    return history_of(one_dies(claims), survivors_after)


def by_method(findings: list[Finding]) -> dict[str, Within]:
    """Findings by the method that their notes name."""
    assert all(isinstance(found, Within) for found in findings)
    return {found.note.split(":")[0]: found for found in findings if isinstance(found, Within)}


def holds(found: Within) -> bool:
    """Whether a finding holds where nothing has slack."""
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
    assert {item.sample for item in found.values()} <= {179, 180}
    assert {(item.at_s, item.until_s) for item in found.values()} == {(BOUND_S, 6.5)}
    assert "0 lost since the death" in found["POST"].note
    assert "latency p50/p99 ms: gpu-0 10.0/10.0, gpu-1 10.0/10.0, gpu-2 10.0/10.0" in found["POST"].note


def test_openai_has_no_get() -> None:
    assert set(by_method(failover_within_bound(dying(OPENAI), OPENAI))) == {"POST"}


@pytest.mark.parametrize("method", [Method.POST, Method.GET])
def test_losses_count_from_the_claimed_time_on(method: Method) -> None:
    other = (Method.GET if method is Method.POST else Method.POST).name
    last = last_until(dying(), BOUND_S, method)
    found = by_method(failover_within_bound(lost(dying(), [last]), CLAIMS))
    assert holds(found[method.name]) and found[method.name].observed_s > WITHIN_S - 0.02
    assert f"{method.name}: 1 lost since the death, 0 of" in found[method.name].note
    first = first_after(dying(), BOUND_S, method)
    found = by_method(failover_within_bound(lost(dying(), [last, first]), CLAIMS))
    assert not holds(found[method.name]) and found[method.name].observed_s < WITHIN_S + 0.02
    assert f"{method.name}: 2 lost since the death, 1 of" in found[method.name].note
    assert holds(found[other]) and found[other].observed_s == 0.0


def test_losses_before_the_death_are_not_blamed_on_it() -> None:
    found = by_method(failover_within_bound(lost(dying(), range(10)), CLAIMS))
    assert holds(found["GET"]) and "0 lost since the death" in found["GET"].note


def test_the_time_counts_from_when_the_death_took_effect() -> None:
    """Half a second late: what was lost until half a second after the claimed time is forgiven."""
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
    noisy = replace(dying(), slack_s=np.full(7, 0.31))
    assert outcome(failover_within_bound, noisy, CLAIMS) is Outcome.INCONCLUSIVE
    assert outcome(failover_within_bound, replace(noisy, slack_s=np.full(7, 0.29)), CLAIMS) is Outcome.PASS


def test_the_scenario_lasts_as_long_as_the_claim() -> None:
    slow = Claims((Failover(within_s=30.0), Ejection(open_s=2.0), Breaker(open_s=3.0), HealthChecks(interval_s=0.5)))
    scenario = one_dies(slow)
    assert scenario.phase("after").end_s == BEFORE_S + 30.0 + 3.0
    assert scenario.intervals_s == (30.0, 2.0, 3.0, 0.5)
    assert scenario.timeline == (Kill("gpu-1", BEFORE_S),)
