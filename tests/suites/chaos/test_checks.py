"""Chaos on hand-written histories: losses before, during and after a fault plan, and answers to other requests."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from harness.chaos.fault_plans import FAULT_PLANS
from harness.claims.features import Affinity, Backoff, Breaker, Claims, Ejection, Failover, HealthChecks
from harness.evidence.history import History, StepSeen
from harness.property.findings import Held, Within
from harness.property.verdict import Outcome
from harness.scenario.arrivals import Arrival
from harness.scenario.faults import Kill, Leave
from harness.scenario.model import Echo, Kind, Stream
from suites.chaos.evidence import healed_s, sent_during_faults
from suites.chaos.properties import PROPERTIES, TABLE, under_any
from suites.chaos.scenarios import (
    AFTER_S,
    BEFORE_S,
    CROWD,
    FOR_S,
    START_S,
    blackhole,
    node_crash,
    over_s,
    recovery_s,
    under,
)
from tests.suites.histories import history_of, outcome

NAMED = {item.name.removeprefix("chaos."): item for item in PROPERTIES}
node_crash_recovers = NAMED["node-crash.recovers"]
node_crash_contained = NAMED["node-crash.contained"]
node_crash_answers_belong = NAMED["node-crash.answers-belong"]
crowd_keeps_its_pace = NAMED["node-crash.crowd-keeps-its-pace"]
grey_failure_nothing_lost = NAMED["grey-failure.nothing-lost"]

WITHIN_S = 1.0
CLAIMS = Claims((Failover(within_s=WITHIN_S), Affinity(virtual_nodes=150)))
END_S = BEFORE_S + FOR_S
BOUND_S = END_S + WITHIN_S


def healed(history: History) -> History:
    """The same history with every fault healed when due."""
    steps = []
    for planned, observed in zip(history.scenario.timeline, history.steps, strict=True):
        steps.append(replace(observed, healed_s=observed.effective_s + getattr(planned, "for_s")))  # noqa: B009
    return replace(history, steps=tuple(steps))


def crash(claims: Claims = CLAIMS) -> History:
    """Requests go to all backends in turn, and to the other two while the second is away."""
    scenario = node_crash(claims)

    def backend_of(arrival: Arrival) -> int:
        return arrival.number % 2 * 2 if BEFORE_S <= arrival.at_s < END_S else arrival.number % 3

    return healed(history_of(scenario, backend_of))


def lost_between(history: History, start_s: float, end_s: float, most: int | None = None) -> History:
    """`history` with the requests sent in [start_s, end_s), or the first `most` of them, answered 502."""
    sent_s = history.requests["sent_s"]
    numbers = np.flatnonzero((sent_s >= start_s) & (sent_s < end_s))[:most]
    requests = history.requests.copy()
    requests["status"][numbers] = 502
    return replace(history, requests=requests)


# --- recovers -----------------------------------------------------------------------------------------------


def test_losses_up_to_the_bound_are_allowed_and_later_ones_are_not() -> None:
    early, last = node_crash_recovers(lost_between(crash(), BEFORE_S, BOUND_S), CLAIMS)
    assert isinstance(early, Held) and early.ok
    assert isinstance(last, Within) and WITHIN_S - 0.1 < last.observed_s <= WITHIN_S == last.high_s
    assert outcome(node_crash_recovers, lost_between(crash(), BEFORE_S, BOUND_S), CLAIMS) is Outcome.PASS
    assert outcome(node_crash_recovers, lost_between(crash(), BOUND_S, 99.0, 1), CLAIMS) is Outcome.FAIL


def test_losses_before_the_plan_fail() -> None:
    assert outcome(node_crash_recovers, lost_between(crash(), 0.0, 0.5, 1), CLAIMS) is Outcome.FAIL
    just_before = lost_between(crash(), BEFORE_S - 0.1, BEFORE_S, 1)
    assert outcome(node_crash_recovers, just_before, CLAIMS) is Outcome.PASS


def test_the_time_counts_from_the_heal_as_it_was() -> None:
    """The fault heals half a second later than planned."""
    late = lost_between(crash(), BOUND_S, BOUND_S + 0.5)
    assert outcome(node_crash_recovers, late, CLAIMS) is Outcome.FAIL
    steps = tuple(replace(step, healed_s=step.healed_s + 0.5) for step in late.steps)
    assert outcome(node_crash_recovers, replace(late, steps=steps), CLAIMS) is Outcome.PASS


def test_losses_before_a_probe_observed_the_fault_belong_to_it() -> None:
    """The fault was requested half a second before it was observed."""
    history = lost_between(crash(), BEFORE_S, BEFORE_S + 0.25)
    steps = tuple(replace(step, effective_s=step.asked_s + 0.5) for step in history.steps)
    assert outcome(node_crash_recovers, replace(history, steps=steps), CLAIMS) is Outcome.PASS
    contained = outcome(node_crash_contained, lost_between(replace(history, steps=steps), BEFORE_S, 1.9), CLAIMS)
    assert contained is Outcome.FAIL


def test_steps_are_executed_in_order_of_time() -> None:
    steps = (Leave("gpu-2", 2.0), Kill("gpu-1", BEFORE_S, 0.5))
    scenario = under("x", steps, 3, CLAIMS)
    observed = (StepSeen("Kill", 1, BEFORE_S, BEFORE_S, BEFORE_S + 0.5), StepSeen("Leave", 2, 2.0, 2.1))
    assert healed_s(replace(history_of(scenario, lambda arrival: 0), steps=observed)) == 2.1


def test_a_fault_that_never_healed_is_vacuous() -> None:
    steps = (StepSeen("Kill", 1, BEFORE_S, BEFORE_S),)
    assert outcome(node_crash_recovers, replace(crash(), steps=steps), CLAIMS) is Outcome.VACUOUS
    assert outcome(node_crash_contained, replace(crash(), steps=steps), CLAIMS) is Outcome.VACUOUS


def test_without_later_requests_it_is_undecided() -> None:
    steps = tuple(replace(step, healed_s=99.0) for step in crash().steps)
    assert outcome(node_crash_recovers, replace(crash(), steps=steps), CLAIMS) is Outcome.INCONCLUSIVE


def test_a_hardly_used_faulty_backend_yields_no_finding() -> None:
    scenario = node_crash(CLAIMS)
    idle = healed(history_of(scenario, lambda arrival: 1 if arrival.number % 14 == 0 else 0))
    for item in (node_crash_recovers, node_crash_contained, grey_failure_nothing_lost):
        assert item(idle, CLAIMS) == []
    used = healed(history_of(scenario, lambda arrival: 1 if arrival.number % 10 == 0 else 0))
    assert len(node_crash_recovers(used, CLAIMS)) == 2


def test_the_longest_claimed_time_counts() -> None:
    assert recovery_s(CLAIMS) == WITHIN_S
    growing = Breaker(open_s=0.5, backoff=Backoff(multiplier=2.0, max_s=3.0, jitter=0.2))
    assert recovery_s(Claims((Failover(1.0), growing))) == 3.0
    assert recovery_s(Claims((Failover(1.0), replace(growing, backoff=Backoff(1.0, 60.0, 0.0), open_s=2.0)))) == 2.0
    assert recovery_s(Claims((Failover(1.0), Ejection(open_s=4.0)))) == 4.0
    assert recovery_s(Claims((Failover(1.0), HealthChecks(0.5, 1.0, 2, 3)))) == 2.5
    assert recovery_s(Claims()) == 0.0


# --- the pace of virtual users ------------------------------------------------------------------------------


def closed_loop(paces: dict[float, float], claims: Claims = CLAIMS) -> History:
    """Virtual users with these request rates (per second), each from the given time on."""
    scenario = node_crash(claims)
    starts_s = [*paces, scenario.end_s]
    parts = [
        Stream("crowd", start_s, rate_per_s, round((until_s - start_s) * rate_per_s))
        for (start_s, rate_per_s), until_s in zip(paces.items(), starts_s[1:], strict=True)
    ]
    traffic, *_ = scenario.load.streams
    load = replace(scenario.load, streams=(*parts, traffic))
    history = healed(history_of(replace(scenario, load=load), lambda arrival: arrival.number % 3))
    requests = history.requests.copy()
    requests["stream"] = np.where(requests["stream"] < len(parts), 0, 1)
    return replace(history, requests=requests)


def test_virtual_users_may_slow_down_until_the_bound_and_by_a_tenth_after_it() -> None:
    item = crowd_keeps_its_pace
    assert outcome(item, closed_loop({0.0: 290.0}), CLAIMS) is Outcome.PASS
    assert outcome(item, closed_loop({0.0: 290.0, END_S: 20.0, BOUND_S: 262.0}), CLAIMS) is Outcome.PASS
    assert outcome(item, closed_loop({0.0: 290.0, BOUND_S: 145.0}), CLAIMS) is Outcome.FAIL
    assert outcome(item, closed_loop({0.0: 290.0, BOUND_S: 340.0}), CLAIMS) is Outcome.PASS


def test_the_pace_is_not_judged_without_a_fault_or_enough_time_after_it() -> None:
    history = closed_loop({0.0: 290.0})
    assert outcome(crowd_keeps_its_pace, replace(history, steps=()), CLAIMS) is not Outcome.PASS
    late = replace(
        history, steps=tuple(replace(step, healed_s=history.scenario.end_s - WITHIN_S - 0.3) for step in history.steps)
    )
    assert outcome(crowd_keeps_its_pace, late, CLAIMS) is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("slack_s", [0.5, 0.6, 0.7])
def test_slack_that_leaves_no_time_before_the_plan_decides_nothing(slack_s: float) -> None:
    slow = closed_loop({0.0: 290.0, BOUND_S: 15.0})
    slack = np.zeros(int(slow.scenario.end_s) + 1)
    slack[0] = slack_s
    assert outcome(crowd_keeps_its_pace, slow, CLAIMS) is Outcome.FAIL
    assert outcome(crowd_keeps_its_pace, replace(slow, slack_s=slack), CLAIMS) is Outcome.INCONCLUSIVE


def test_the_pace_covers_all_seconds_that_were_counted() -> None:
    history = closed_loop({0.0: 290.0})
    (found,) = crowd_keeps_its_pace(history, CLAIMS)
    assert isinstance(found, Held)
    assert found.at_s == pytest.approx(BOUND_S) and found.until_s == history.scenario.end_s


def test_virtual_users_run_for_the_whole_run() -> None:
    scenario = node_crash(CLAIMS)
    (crowd,) = (stream for stream in scenario.load.streams if stream.chats is not None)
    assert crowd.end_s == scenario.end_s


# --- contained and nothing lost -----------------------------------------------------------------------------


def test_a_share_may_be_lost_and_no_more() -> None:
    held = crash()
    (found,) = node_crash_contained(held, CLAIMS)
    assert isinstance(found, Held) and found.observed == 0 and found.sample is not None
    assert isinstance(found.bound, int) and found.sample / 3 < found.bound < 0.5 * found.sample
    for most, due in ((found.bound, Outcome.PASS), (found.bound + 1, Outcome.FAIL)):
        assert outcome(node_crash_contained, lost_between(held, BEFORE_S, 99.0, most), CLAIMS) is due


def test_only_requests_sent_during_faults_may_be_lost() -> None:
    """The backend is away from 1.0 to 1.2 s and from 2.0 to 2.2 s; requests sent in between do not count."""
    scenario = under("x", (Kill("gpu-1", 1.0, 0.2), Kill("gpu-1", 2.0, 0.2)), 3, CLAIMS)
    history = healed(history_of(scenario, lambda arrival: arrival.number % 3))
    during, requests = sent_during_faults(history), history.all_requests()
    assert len(requests.sent_between(1.25, 1.75)) and not during.sent_between(1.25, 1.75)
    away = requests.sent_between(1.0, 1.15) | requests.sent_between(2.0, 2.15)
    assert len(away) == len(during & away) > 0


def test_losses_after_the_bound_are_left_to_another_check() -> None:
    assert outcome(node_crash_contained, lost_between(crash(), BOUND_S, 99.0), CLAIMS) is Outcome.PASS


@pytest.mark.parametrize("name", ["grey-failure.nothing-lost", "packet-misery.nothing-lost"])
def test_not_one_may_be_lost(name: str) -> None:
    item = NAMED[name]
    scenario = item.scenario(CLAIMS)
    history = healed(history_of(scenario, lambda arrival: arrival.number % scenario.backends))
    assert outcome(item, history, CLAIMS) is Outcome.PASS
    assert outcome(item, lost_between(history, 1.0, 2.0, 1), CLAIMS) is Outcome.FAIL


@pytest.mark.parametrize("second", [0, int(BOUND_S)])
def test_losses_of_a_second_that_cannot_be_trusted_are_undecided(second: int) -> None:
    """The slack of every second with a counted loss matters, before the fault and after it."""
    slack_s = np.zeros(int(crash().scenario.end_s) + 1)
    slack_s[second] = 0.5
    history = replace(lost_between(crash(), BEFORE_S - 0.1, BOUND_S), slack_s=slack_s)
    assert outcome(node_crash_contained, replace(history, slack_s=0 * slack_s), CLAIMS) is Outcome.FAIL
    assert outcome(node_crash_contained, history, CLAIMS) is Outcome.INCONCLUSIVE
    assert outcome(grey_failure_nothing_lost, history, CLAIMS) is Outcome.INCONCLUSIVE


# --- answers ------------------------------------------------------------------------------------------------


def test_answers_belong_to_their_requests() -> None:
    history = crash()
    assert outcome(node_crash_answers_belong, history, CLAIMS) is Outcome.PASS
    history.requests["echo"][10] = Echo.OTHER
    assert outcome(node_crash_answers_belong, history, CLAIMS) is Outcome.FAIL


@pytest.mark.parametrize(("kind", "due"), [(Kind.UPDATE, Outcome.FAIL), (Kind.INFERENCE, Outcome.PASS)])
def test_an_update_reaches_a_backend_once(kind: Kind, due: Outcome) -> None:
    """An inference may be retried."""
    history = crash()
    history.attempts["kind"] = history.requests["kind"][history.attempts["request"]]
    again = history.attempts[history.attempts["kind"] == kind][:1].copy()
    again["backend"] = (again["backend"] + 1) % 3
    doubled = replace(history, attempts=np.concatenate([history.attempts, again]))
    assert outcome(node_crash_answers_belong, doubled, CLAIMS) is due


def test_without_a_fault_plan_no_finding() -> None:
    without_steps = replace(crash(), steps=())
    for item in under_any(without_steps.scenario):
        assert item(without_steps, CLAIMS) == []


# --- scenarios ----------------------------------------------------------------------------------------------


def test_scenarios_last_until_all_has_recovered() -> None:
    scenario = node_crash(CLAIMS)
    assert scenario.timeline == (Kill("gpu-1", BEFORE_S, FOR_S),)
    assert over_s(scenario.timeline) == END_S and healed_s(crash()) == END_S
    assert 0.3 < scenario.load.streams[0].end_s - (BOUND_S + START_S + AFTER_S) < 0.5
    assert blackhole(Claims((Failover(within_s=4.0),))).timeline[0].for_s == 4.0  # type: ignore[union-attr]


def test_openai_has_neither_updates_nor_get() -> None:
    streams = node_crash(replace(CLAIMS, protocol="openai")).load.streams
    assert [stream.name for stream in streams] == ["traffic", CROWD]
    assert [len(stream.methods) for stream in streams] == [1, 1]


def test_every_named_fault_plan_is_in_the_table() -> None:
    assert sorted(row.plan for row in TABLE) == sorted(FAULT_PLANS)
    for row in TABLE:
        assert row.scenario(CLAIMS).name == row.plan


def test_properties_of_a_fault_plan_share_its_run() -> None:
    for name in ("node-crash", "blackhole", "grey-failure", "brown-out", "rolling-restart"):
        digests = [item.scenario(CLAIMS).digest() for item in PROPERTIES if item.name.startswith(f"chaos.{name}.")]
        assert len(digests) >= 2 and all(one == two for one, two in pairwise(digests))
