"""How things end in the reference balancer: queues, drains, deadlines, budgets and the shutdown."""

from __future__ import annotations

from dataclasses import replace

from harness.balancer.health.breaker import BreakerSettings
from harness.balancer.requests.hedging import HedgeSettings
from harness.balancer.requests.limits import AdmissionSettings, BucketSettings
from harness.balancer.requests.retry import RetrySettings
from harness.balancer.settings import Settings
from harness.gateway.protocol import (
    Action,
    Backend,
    Cancel,
    CancelTimer,
    ClientGone,
    Commit,
    Exit,
    MembershipChanged,
    Reply,
    Request,
    RequestArrived,
    Send,
    SetTimer,
    ShutdownAsked,
    TimerFired,
)
from harness.scenario.model import Kind
from tests.harness.balancer.core.test_gateway import CALM, Bench


def limited(concurrency: int = 1, queue: int = 2000) -> Settings:
    return replace(CALM, limits=AdmissionSettings(concurrency=concurrency, queue=queue))


def arrive(bench: Bench, number: int) -> list[Action]:
    request = Request(number, 1, Kind.INFERENCE, "POST", "m")
    return bench.gateway.handle(RequestArrived(request), bench.now_s)


def test_a_long_queue_is_answered_when_its_backends_are_gone() -> None:
    bench = Bench(limited(), "a")
    (send,) = arrive(bench, 1)
    assert isinstance(send, Send)
    for number in range(2, 1500):
        assert arrive(bench, number) == []
    bench.members()
    replies = bench.end(send, "reset")
    assert len([action for action in replies if isinstance(action, Reply)]) == 1499
    assert bench.gateway.idle


def test_a_place_is_free_only_when_no_backend_works_on_it() -> None:
    bench = Bench(limited(), "a")
    (send,) = arrive(bench, 1)
    assert isinstance(send, Send)
    assert arrive(bench, 2) == []
    assert bench.gateway.handle(ClientGone(1), 0.0) == [Cancel(send.attempt_id)]
    (following,) = bench.end(send, "aborted")
    assert isinstance(following, Send) and following.request_id == 2


def test_the_queue_has_one_timer() -> None:
    settings = replace(CALM, limits=AdmissionSettings(requests=BucketSettings(10.0, kind="leaky"), queue=100))
    bench = Bench(settings, "a")
    timers = {
        action.timer_id for number in range(20) for action in arrive(bench, number) if isinstance(action, SetTimer)
    }
    assert len(timers) == 1


def test_every_drain_has_its_deadline() -> None:
    bench = Bench(replace(CALM, drain_deadline_s=30.0), "a", "b")
    sends = [bench.send("", Kind.UPDATE) for _ in range(2)]
    assert {send.backend_id for send in sends} == {"a", "b"}
    cut: list[int] = []
    due: list[tuple[float, int]] = []
    for at_s, members in ((0.0, ("b",)), (10.0, ())):
        bench.now_s = at_s
        due += [(action.at_s, action.timer_id) for action in bench.members(*members) if isinstance(action, SetTimer)]
    while due:
        due.sort()
        at_s, timer_id = due.pop(0)
        for action in bench.gateway.handle(TimerFired(timer_id), at_s):
            if isinstance(action, SetTimer):
                due.append((action.at_s, action.timer_id))
            elif isinstance(action, Cancel):
                cut.append(action.attempt_id)
    assert sorted(cut) == [send.attempt_id for send in sends]


def test_after_a_shutdown_nothing_new_is_taken() -> None:
    bench = Bench(CALM, "a")
    send = bench.send()
    assert bench.gateway.handle(ShutdownAsked(), 0.0) == []
    assert bench.ask() == Reply(2, 503, "shutting down", retry_after_s=1.0)
    bench.head(send)
    assert bench.end(send) == [Exit()]


def test_our_own_deadline_is_not_the_backends_fault() -> None:
    settings = replace(CALM, breaker=BreakerSettings(failures=1), retry=RetrySettings(attempts=1, deadline_s=0.5))
    bench = Bench(settings, "a")
    send = bench.send()
    assert send.timeout_s == 0.5
    bench.end(send, "timeout")
    assert isinstance(bench.ask(), Send)


def test_a_retry_that_finds_no_backend_costs_no_budget() -> None:
    settings = replace(CALM, retry=RetrySettings(budget_share=0.0, budget_floor=1))
    bench = Bench(settings, "a")
    (timer,) = [action for action in bench.end(bench.send(), "reset") if isinstance(action, SetTimer)]
    bench.members()
    assert bench.gateway.handle(TimerFired(timer.timer_id), 0.1) == [Reply(1, 503, "no backend is ready", 1.0)]
    bench.members("a")
    assert any(isinstance(action, SetTimer) for action in bench.end(bench.send(), "reset"))
    assert not bench.gateway.idle


def test_no_room_is_counted_for_members_of_weight_0() -> None:
    bench = Bench(replace(CALM, bounded_load=1.25))
    members = (Backend("a", "a"), Backend("b", "b", weight=0.0), Backend("c", "c", weight=0.0))
    bench.gateway.handle(MembershipChanged(members), 0.0)
    assert [bench.send().backend_id for _ in range(5)] == ["a"] * 5


def test_a_place_that_is_free_before_the_rate_allows_sets_the_timer() -> None:
    limits = AdmissionSettings(requests=BucketSettings(1.0, kind="leaky"), concurrency=1, queue=1)
    bench = Bench(replace(CALM, limits=limits), "a")
    (send,) = arrive(bench, 1)
    assert isinstance(send, Send)
    assert arrive(bench, 2) == []
    bench.gateway.handle(ClientGone(1), 0.1)
    (timer,) = bench.end(send, "aborted")
    assert isinstance(timer, SetTimer) and timer.at_s == 1.0
    (following,) = bench.gateway.handle(TimerFired(timer.timer_id), 1.0)
    assert isinstance(following, Send) and following.request_id == 2


def test_a_leg_that_lost_is_cancelled_once() -> None:
    """Also where its end has not come yet when the client leaves the winner's answer."""
    bench = Bench(replace(CALM, hedge=HedgeSettings(quantile=0.5, share=1.0, minimum=1)), "a", "b")
    first = bench.send("m")
    bench.head(first)
    bench.end(first)
    primary, timer = bench.gateway.handle(RequestArrived(Request(2, 1, Kind.INFERENCE, "POST", "m")), 0.0)
    assert isinstance(primary, Send) and isinstance(timer, SetTimer)
    (other,) = bench.gateway.handle(TimerFired(timer.timer_id), timer.at_s)
    assert isinstance(other, Send)
    assert bench.head(other) == [Commit(2, other.attempt_id), Cancel(primary.attempt_id)]
    assert bench.gateway.handle(ClientGone(2), 1.0) == [Cancel(other.attempt_id)]


# --- deadlines in the queue -------------------------------------------------------------------------------

QUEUED = replace(limited(queue=1), retry=RetrySettings(attempts=1, deadline_s=3.0))
GIVEN_UP = Reply(2, 504, "no time left in the queue")


def queued(bench: Bench, number: int = 2, urgency: str = "normal") -> tuple[list[Action], SetTimer]:
    """A request that finds no place: what else is done about it, and its deadline's timer."""
    request = Request(number, 1, Kind.INFERENCE, "POST", "m", urgency=urgency)
    *others, timer = bench.gateway.handle(RequestArrived(request), bench.now_s)
    assert isinstance(timer, SetTimer)
    return others, timer


def test_a_request_waits_in_the_queue_until_its_deadline() -> None:
    bench = Bench(QUEUED, "a")
    (send,) = arrive(bench, 1)
    assert isinstance(send, Send)
    bench.now_s = 1.0
    others, timer = queued(bench)
    assert others == [] and timer.at_s == 4.0
    assert bench.gateway.handle(TimerFired(timer.timer_id), 4.0) == [GIVEN_UP]
    bench.now_s = 4.0
    others, timer = queued(bench, 3)
    assert others == [], "its place in the queue is free"
    bench.head(send)
    cancelled, following = bench.end(send)
    assert cancelled == CancelTimer(timer.timer_id)
    assert isinstance(following, Send) and following.request_id == 3


def test_who_is_admitted_has_no_deadline_in_the_queue_any_more() -> None:
    bench = Bench(QUEUED, "a")
    (send,) = arrive(bench, 1)
    assert isinstance(send, Send)
    _, timer = queued(bench)
    bench.now_s = 2.0
    bench.head(send)
    cancelled, following = bench.end(send)
    assert cancelled == CancelTimer(timer.timer_id)
    assert isinstance(following, Send) and following.request_id == 2
    assert following.timeout_s == 1.0, "what is left of the three seconds"
    assert bench.gateway.handle(TimerFired(timer.timer_id), 3.0) == []


def test_who_leaves_the_queue_leaves_no_timer() -> None:
    bench = Bench(QUEUED, "a")
    arrive(bench, 1)
    _, timer = queued(bench)
    others, urgent = queued(bench, 3, "critical")
    assert others == [Reply(2, 503, "displaced by urgency", 1.0), CancelTimer(timer.timer_id)]
    assert bench.gateway.handle(ClientGone(3), 1.0) == [CancelTimer(urgent.timer_id)]
    _, last = queued(bench, 4)
    assert last.timer_id not in (timer.timer_id, urgent.timer_id)


def test_without_a_deadline_requests_wait_as_long_as_it_takes() -> None:
    bench = Bench(limited(), "a")
    arrive(bench, 1)
    assert arrive(bench, 2) == []
