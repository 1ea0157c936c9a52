"""Admission gate: the queue has one timer, and a slot is released when its last attempt ends."""

from __future__ import annotations

from itertools import count

from harness.balancer.core.admission import AdmissionGate
from harness.balancer.core.exchange import Exchange
from harness.balancer.requests.limits import AdmissionSettings, BucketSettings
from harness.gateway.protocol import Reply, Request, SetTimer
from harness.scenario.model import Kind


def admission_gate(**limits: object) -> AdmissionGate:
    """A gate whose timers are numbered from -1 down."""
    numbers = count(1)
    return AdmissionGate(AdmissionSettings(**limits), lambda at_s: SetTimer(-next(numbers), at_s))  # type: ignore[arg-type]


def request(number: int, urgency: str = "normal") -> Request:
    """An inference request."""
    return Request(number, 1, Kind.INFERENCE, "POST", "m", urgency=urgency)


def admitted(number: int, in_flight: int) -> Exchange:
    """An admitted request with `in_flight` attempts."""
    return Exchange(request(number), 0.0, admitted=True, in_flight=in_flight)


def test_admitted_refused_queued_and_displaced() -> None:
    gate = admission_gate(concurrency=1, queue=1)
    decisions = [gate.submit(request(number), 0.0) for number in (1, 2, 3)]
    assert [item.admitted for item in decisions] == [True, False, False]
    assert [item.rejected for item in decisions] == [None, None, 3]
    assert [item.actions for item in decisions] == [[], [], [Reply(3, 503, "over the limit", 1.0)]]
    urgent = gate.submit(request(4, "critical"), 0.0)
    assert (urgent.admitted, urgent.rejected) == (False, 2)
    assert urgent.actions == [Reply(2, 503, "displaced by urgency", 1.0)]
    assert gate.client_done(admitted(1, 0), 1.0) == [] and list(gate.ready) == [4]


def test_a_place_is_held_until_the_last_attempt_ends() -> None:
    gate = admission_gate(concurrency=1, queue=1)
    gate.submit(request(1), 0.0)
    gate.submit(request(2), 0.0)
    assert gate.client_done(admitted(1, 2), 0.1) == [] and not gate.idle
    gate.attempt_ended(7, 0.1)
    gate.attempt_ended(1, 0.1)
    assert not gate.ready and not gate.idle
    gate.attempt_ended(1, 0.2)
    assert list(gate.ready) == [2] and gate.idle


def test_a_place_that_is_free_before_the_rate_allows_sets_the_timer() -> None:
    gate = admission_gate(requests=BucketSettings(1.0, kind="leaky"), concurrency=1, queue=1)
    gate.submit(request(1), 0.0)
    assert gate.submit(request(2), 0.0).actions == []
    gate.client_done(admitted(1, 1), 0.1)
    assert gate.attempt_ended(1, 0.2) == [SetTimer(-1, 1.0)]
    assert gate.timer_fired(1.0) == [] and list(gate.ready) == [2]


def test_the_one_timer_is_moved_until_it_fires() -> None:
    gate = admission_gate(requests=BucketSettings(1.0, kind="leaky"), queue=5)
    gate.submit(request(1), 0.0)
    actions = [action for number in (2, 3) for action in gate.submit(request(number), 0.0).actions]
    assert actions[0] == SetTimer(-1, 1.0) and actions == [actions[0]] * len(actions)
    assert gate.timer_fired(1.0) == [SetTimer(-2, 2.0)]


def test_who_leaves_the_queue_is_forgotten() -> None:
    gate = admission_gate(concurrency=1, queue=1)
    gate.submit(request(1), 0.0)
    gate.submit(request(2), 0.0)
    assert gate.client_done(Exchange(request(2), 0.0), 0.1) == []
    assert not gate.submit(request(3), 0.2).admitted, "the queue has room again, but no slot is free"
    gate.client_done(admitted(1, 0), 0.3)
    assert list(gate.ready) == [3]
