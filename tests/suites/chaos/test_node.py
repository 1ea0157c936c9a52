"""Chaos on hand-written histories: what is lost before, during and after a fault plan, and whose answers come."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from harness.claims.features import Affinity, Backoff, Breaker, Claims, Ejection, Failover, HealthChecks
from harness.evidence.history import History, StepSeen
from harness.property.declare import catalogue
from harness.property.findings import Held, Within
from harness.property.verdict import Outcome
from harness.scenario.arrivals import Arrival
from harness.scenario.faults import Kill, Leave
from harness.scenario.model import Echo, Kind, Stream
from suites.chaos import fleet as chaos_fleet
from suites.chaos import node as chaos
from suites.chaos.evidence import (
    AFTER_S,
    BEFORE_S,
    START_S,
    healed_s,
    over_s,
    recovery_s,
    sent_while_struck,
    under,
    under_any,
)
from tests.suites.histories import history_of, outcome

WITHIN_S = 1.0
CLAIMS = Claims((Failover(within_s=WITHIN_S), Affinity(virtual_nodes=150)))
END_S = BEFORE_S + chaos.FOR_S
BOUND_S = END_S + WITHIN_S


def healed(history: History) -> History:
    """Every fault took effect when it was asked for and healed when it was due."""
    steps = []
    for planned, seen in zip(history.scenario.timeline, history.steps, strict=True):
        steps.append(replace(seen, healed_s=seen.effective_s + getattr(planned, "for_s")))  # noqa: B009
    return replace(history, steps=tuple(steps))


def crash(claims: Claims = CLAIMS) -> History:
    """In turn; while the second is away, to the other two."""
    scenario = chaos.node_crash(claims)

    def place(arrival: Arrival) -> int:
        return arrival.number % 2 * 2 if BEFORE_S <= arrival.at_s < END_S else arrival.number % 3

    return healed(history_of(scenario, place))


def lost_between(history: History, start_s: float, end_s: float, most: int | None = None) -> History:
    """`history` with the requests sent in [start_s, end_s), or the first `most` of them, answered 502."""
    sent_s = history.requests["sent_s"]
    numbers = np.flatnonzero((sent_s >= start_s) & (sent_s < end_s))[:most]
    requests = history.requests.copy()
    requests["status"][numbers] = 502
    return replace(history, requests=requests)


# --- recovers -----------------------------------------------------------------------------------------------


def test_what_is_lost_until_the_bound_is_forgiven_and_no_later() -> None:
    early, last = chaos.node_crash_recovers(lost_between(crash(), BEFORE_S, BOUND_S), CLAIMS)
    assert isinstance(early, Held) and early.ok
    assert isinstance(last, Within) and WITHIN_S - 0.1 < last.observed_s <= WITHIN_S == last.high_s
    assert outcome(chaos.node_crash_recovers, lost_between(crash(), BEFORE_S, BOUND_S), CLAIMS) is Outcome.PASS
    assert outcome(chaos.node_crash_recovers, lost_between(crash(), BOUND_S, 99.0, 1), CLAIMS) is Outcome.FAIL


def test_losses_before_it_began_are_broken() -> None:
    assert outcome(chaos.node_crash_recovers, lost_between(crash(), 0.0, 0.5, 1), CLAIMS) is Outcome.FAIL
    just_before = lost_between(crash(), BEFORE_S - 0.1, BEFORE_S, 1)
    assert outcome(chaos.node_crash_recovers, just_before, CLAIMS) is Outcome.PASS


def test_the_time_counts_from_the_heal_as_it_was() -> None:
    """Half a second later than planned."""
    late = lost_between(crash(), BOUND_S, BOUND_S + 0.5)
    assert outcome(chaos.node_crash_recovers, late, CLAIMS) is Outcome.FAIL
    steps = tuple(replace(step, healed_s=step.healed_s + 0.5) for step in late.steps)
    assert outcome(chaos.node_crash_recovers, replace(late, steps=steps), CLAIMS) is Outcome.PASS


def test_harm_done_before_a_probe_saw_the_fault_is_the_faults() -> None:
    """It was asked for half a second before it was seen."""
    hurt = lost_between(crash(), BEFORE_S, BEFORE_S + 0.25)
    steps = tuple(replace(step, effective_s=step.asked_s + 0.5) for step in hurt.steps)
    assert outcome(chaos.node_crash_recovers, replace(hurt, steps=steps), CLAIMS) is Outcome.PASS
    contained = outcome(chaos.node_crash_contained, lost_between(replace(hurt, steps=steps), BEFORE_S, 1.9), CLAIMS)
    assert contained is Outcome.FAIL


def test_steps_are_carried_out_in_order_of_time_however_they_are_written() -> None:
    steps = (Leave("gpu-2", 2.0), Kill("gpu-1", BEFORE_S, 0.5))
    scenario = under("x", steps, 3, CLAIMS)
    seen = (StepSeen("Kill", 1, BEFORE_S, BEFORE_S, BEFORE_S + 0.5), StepSeen("Leave", 2, 2.0, 2.1))
    assert healed_s(replace(history_of(scenario, lambda arrival: 0), steps=seen)) == 2.1


def test_one_that_never_healed_says_nothing() -> None:
    steps = (StepSeen("Kill", 1, BEFORE_S, BEFORE_S),)
    assert outcome(chaos.node_crash_recovers, replace(crash(), steps=steps), CLAIMS) is Outcome.VACUOUS
    assert outcome(chaos.node_crash_contained, replace(crash(), steps=steps), CLAIMS) is Outcome.VACUOUS


def test_nothing_sent_later_is_undecided() -> None:
    steps = tuple(replace(step, healed_s=99.0) for step in crash().steps)
    assert outcome(chaos.node_crash_recovers, replace(crash(), steps=steps), CLAIMS) is Outcome.INCONCLUSIVE


def test_a_victim_that_was_hardly_used_proves_nothing() -> None:
    scenario = chaos.node_crash(CLAIMS)
    idle = healed(history_of(scenario, lambda arrival: 1 if arrival.number % 14 == 0 else 0))
    for item in (chaos.node_crash_recovers, chaos.node_crash_contained, chaos.grey_failure_nothing_lost):
        assert item(idle, CLAIMS) == []
    used = healed(history_of(scenario, lambda arrival: 1 if arrival.number % 10 == 0 else 0))
    assert len(chaos.node_crash_recovers(used, CLAIMS)) == 2


def test_the_longest_claimed_time_counts() -> None:
    assert recovery_s(CLAIMS) == WITHIN_S
    growing = Breaker(open_s=0.5, backoff=Backoff(multiplier=2.0, max_s=3.0, jitter=0.2))
    assert recovery_s(Claims((Failover(1.0), growing))) == pytest.approx(3.6)
    assert recovery_s(Claims((Failover(1.0), replace(growing, backoff=Backoff(1.0, 60.0, 0.0), open_s=2.0)))) == 2.0
    assert recovery_s(Claims((Failover(1.0), Ejection(open_s=4.0)))) == 4.0
    assert recovery_s(Claims((Failover(1.0), HealthChecks(0.5, 1.0, 2, 3)))) == 2.5
    assert recovery_s(Claims()) == 0.0


# --- the pace of a crowd ------------------------------------------------------------------------------------


def crowded(paces: dict[float, float], claims: Claims = CLAIMS) -> History:
    """A crowd that asks so often (per second) from each of these times on."""
    scenario = chaos.node_crash(claims)
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


def test_a_crowd_may_slow_down_until_the_bound_and_by_a_tenth_after_it() -> None:
    item = chaos.crowd_keeps_its_pace
    assert outcome(item, crowded({0.0: 290.0}), CLAIMS) is Outcome.PASS
    assert outcome(item, crowded({0.0: 290.0, END_S: 20.0, BOUND_S: 262.0}), CLAIMS) is Outcome.PASS
    assert outcome(item, crowded({0.0: 290.0, BOUND_S: 145.0}), CLAIMS) is Outcome.FAIL
    assert outcome(item, crowded({0.0: 290.0, BOUND_S: 340.0}), CLAIMS) is Outcome.PASS


def test_the_pace_says_nothing_where_nothing_was_struck_or_nothing_is_left() -> None:
    history = crowded({0.0: 290.0})
    assert outcome(chaos.crowd_keeps_its_pace, replace(history, steps=()), CLAIMS) is not Outcome.PASS
    late = replace(
        history, steps=tuple(replace(step, healed_s=history.scenario.end_s - WITHIN_S - 0.3) for step in history.steps)
    )
    assert outcome(chaos.crowd_keeps_its_pace, late, CLAIMS) is Outcome.INCONCLUSIVE


def test_the_pace_is_trusted_as_far_as_the_slack_of_all_that_was_counted() -> None:
    history = crowded({0.0: 290.0})
    (found,) = chaos.crowd_keeps_its_pace(history, CLAIMS)
    assert isinstance(found, Held)
    assert found.at_s == pytest.approx(BOUND_S) and found.until_s == history.scenario.end_s


def test_the_crowd_is_a_closed_loop_for_the_whole_run() -> None:
    scenario = chaos.node_crash(CLAIMS)
    (crowd,) = (stream for stream in scenario.load.streams if stream.chats is not None)
    assert crowd.end_s == scenario.end_s


# --- contained and nothing lost -----------------------------------------------------------------------------


def test_a_share_may_be_lost_and_no_more() -> None:
    held = crash()
    (found,) = chaos.node_crash_contained(held, CLAIMS)
    assert isinstance(found, Held) and found.observed == 0 and found.sample is not None
    assert isinstance(found.bound, int) and found.sample / 3 < found.bound < 0.5 * found.sample
    for most, due in ((found.bound, Outcome.PASS), (found.bound + 1, Outcome.FAIL)):
        assert outcome(chaos.node_crash_contained, lost_between(held, BEFORE_S, 99.0, most), CLAIMS) is due


def test_only_what_was_sent_while_it_was_struck_may_be_lost() -> None:
    """Away from 1.0 to 1.2 s and from 2.0 to 2.2 s: what was sent between does not count as struck."""
    scenario = under("x", (Kill("gpu-1", 1.0, 0.2), Kill("gpu-1", 2.0, 0.2)), 3, CLAIMS)
    history = healed(history_of(scenario, lambda arrival: arrival.number % 3))
    sent_s = history.requests["sent_s"]
    mask = sent_while_struck(history)
    assert set(mask[(sent_s > 1.25) & (sent_s < 1.75)]) == {False}
    assert set(mask[((sent_s > 1.0) & (sent_s < 1.15)) | ((sent_s > 2.0) & (sent_s < 2.15))]) == {True}


def test_losses_long_after_it_are_for_another_check() -> None:
    assert outcome(chaos.node_crash_contained, lost_between(crash(), BOUND_S, 99.0), CLAIMS) is Outcome.PASS


@pytest.mark.parametrize(
    ("item", "scenario"),
    [
        (chaos.grey_failure_nothing_lost, chaos.grey_failure),
        (chaos_fleet.packet_misery_nothing_lost, chaos_fleet.packet_misery),
    ],
)
def test_not_one_may_be_lost(item: object, scenario: object) -> None:
    backends = scenario(CLAIMS).backends  # type: ignore[operator]
    history = healed(history_of(scenario(CLAIMS), lambda arrival: arrival.number % backends))  # type: ignore[operator]
    assert outcome(item, history, CLAIMS) is Outcome.PASS  # type: ignore[arg-type]
    assert outcome(item, lost_between(history, 1.0, 2.0, 1), CLAIMS) is Outcome.FAIL  # type: ignore[arg-type]


@pytest.mark.parametrize("second", [0, int(BOUND_S)])
def test_losses_of_a_second_that_cannot_be_trusted_are_undecided(second: int) -> None:
    """Every second that a loss is counted in plays a part, before the fault and after it."""
    slack_s = np.zeros(int(crash().scenario.end_s) + 1)
    slack_s[second] = 0.5
    history = replace(lost_between(crash(), BEFORE_S - 0.1, BOUND_S), slack_s=slack_s)
    assert outcome(chaos.node_crash_contained, replace(history, slack_s=0 * slack_s), CLAIMS) is Outcome.FAIL
    assert outcome(chaos.node_crash_contained, history, CLAIMS) is Outcome.INCONCLUSIVE
    assert outcome(chaos.grey_failure_nothing_lost, history, CLAIMS) is Outcome.INCONCLUSIVE


# --- answers ------------------------------------------------------------------------------------------------


def test_answers_belong_to_their_requests() -> None:
    history = crash()
    assert outcome(chaos.node_crash_answers_belong, history, CLAIMS) is Outcome.PASS
    history.requests["echo"][10] = Echo.OTHER
    assert outcome(chaos.node_crash_answers_belong, history, CLAIMS) is Outcome.FAIL


@pytest.mark.parametrize(("kind", "due"), [(Kind.UPDATE, Outcome.FAIL), (Kind.INFERENCE, Outcome.PASS)])
def test_an_update_reaches_a_backend_once(kind: Kind, due: Outcome) -> None:
    """An inference may be tried again."""
    history = crash()
    history.attempts["kind"] = history.requests["kind"][history.attempts["request"]]
    again = history.attempts[history.attempts["kind"] == kind][:1].copy()
    again["backend"] = (again["backend"] + 1) % 3
    doubled = replace(history, attempts=np.concatenate([history.attempts, again]))
    assert outcome(chaos.node_crash_answers_belong, doubled, CLAIMS) is due


def test_without_a_fault_plan_there_is_nothing_to_say() -> None:
    calm = replace(crash(), steps=())
    for item in under_any(calm.scenario):
        assert item(calm, CLAIMS) == []


# --- scenarios ----------------------------------------------------------------------------------------------


def test_scenarios_last_until_all_has_recovered() -> None:
    scenario = chaos.node_crash(CLAIMS)
    assert scenario.timeline == (Kill("gpu-1", BEFORE_S, chaos.FOR_S),)
    assert over_s(scenario.timeline) == END_S and healed_s(crash()) == END_S
    assert 0.3 < scenario.load.streams[0].end_s - (BOUND_S + START_S + AFTER_S) < 0.5
    assert chaos.blackhole(Claims((Failover(within_s=4.0),))).timeline[0].for_s == 4.0  # type: ignore[union-attr]


def test_openai_has_neither_updates_nor_get() -> None:
    streams = chaos.node_crash(replace(CLAIMS, protocol="openai")).load.streams
    assert [stream.name for stream in streams] == ["traffic", chaos.CROWD]
    assert [len(stream.methods) for stream in streams] == [1, 1]


def test_properties_of_a_fault_plan_share_its_run() -> None:
    for name in ("node-crash", "blackhole", "grey-failure", "brown-out", "rolling-restart"):
        digests = [item.scenario(CLAIMS).digest() for item in catalogue() if item.name.startswith(f"chaos.{name}.")]
        assert len(digests) >= 2 and all(one == two for one, two in pairwise(digests))
