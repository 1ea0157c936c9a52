"""The way in: one timer for the queue, and places that are free only when nobody works on them any more."""

from __future__ import annotations

from itertools import count

from harness.balancer.core.admission import AdmissionGate
from harness.balancer.core.exchange import Exchange
from harness.balancer.requests.limits import AdmissionSettings, BucketSettings
from harness.gateway.protocol import Reply, Request, SetTimer
from harness.scenario.model import Kind


def doorway(**limits: object) -> AdmissionGate:
    """With timers numbered from -1 down."""
    numbers = count(1)
    return AdmissionGate(AdmissionSettings(**limits), lambda at_s: SetTimer(-next(numbers), at_s))  # type: ignore[arg-type]


def request(number: int, urgency: str = "normal") -> Request:
    """An inference."""
    return Request(number, 1, Kind.INFERENCE, "POST", "m", urgency=urgency)


def begun(number: int, underway: int) -> Exchange:
    """A request that was admitted, with so many attempts underway."""
    return Exchange(request(number), 0.0, admitted=True, in_flight=underway)


def test_admitted_refused_queued_and_displaced() -> None:
    door = doorway(concurrency=1, queue=1)
    decisions = [door.submit(request(number), 0.0) for number in (1, 2, 3)]
    assert [item.admitted for item in decisions] == [True, False, False]
    assert [item.rejected for item in decisions] == [None, None, 3]
    assert [item.actions for item in decisions] == [[], [], [Reply(3, 503, "over the limit", 1.0)]]
    urgent = door.submit(request(4, "critical"), 0.0)
    assert (urgent.admitted, urgent.rejected) == (False, 2)
    assert urgent.actions == [Reply(2, 503, "displaced by urgency", 1.0)]
    assert door.client_done(begun(1, 0), 1.0) == [] and list(door.ready) == [4]


def test_a_place_is_held_until_the_last_attempt_ends() -> None:
    door = doorway(concurrency=1, queue=1)
    door.submit(request(1), 0.0)
    door.submit(request(2), 0.0)
    assert door.client_done(begun(1, 2), 0.1) == [] and not door.idle
    door.attempt_ended(7, 0.1)
    door.attempt_ended(1, 0.1)
    assert not door.ready and not door.idle
    door.attempt_ended(1, 0.2)
    assert list(door.ready) == [2] and door.idle


def test_a_place_that_is_free_before_the_rate_allows_sets_the_timer() -> None:
    door = doorway(requests=BucketSettings(1.0, kind="leaky"), concurrency=1, queue=1)
    door.submit(request(1), 0.0)
    assert door.submit(request(2), 0.0).actions == []
    door.client_done(begun(1, 1), 0.1)
    assert door.attempt_ended(1, 0.2) == [SetTimer(-1, 1.0)]
    assert door.timer_fired(1.0) == [] and list(door.ready) == [2]


def test_the_one_timer_is_moved_until_it_fires() -> None:
    door = doorway(requests=BucketSettings(1.0, kind="leaky"), queue=5)
    door.submit(request(1), 0.0)
    actions = [action for number in (2, 3) for action in door.submit(request(number), 0.0).actions]
    assert actions[0] == SetTimer(-1, 1.0) and actions == [actions[0]] * len(actions)
    assert door.timer_fired(1.0) == [SetTimer(-2, 2.0)]


def test_who_leaves_the_queue_is_forgotten() -> None:
    door = doorway(concurrency=1, queue=1)
    door.submit(request(1), 0.0)
    door.submit(request(2), 0.0)
    assert door.client_done(Exchange(request(2), 0.0), 0.1) == []
    assert not door.submit(request(3), 0.2).admitted, "there is room in the queue again, and none to run"
    door.client_done(begun(1, 0), 0.3)
    assert list(door.ready) == [3]
