"""Ends in the reference balancer: queues, drains, deadlines, budgets and shutdown."""

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
    Commit,
    Exit,
    Reply,
    Send,
    SetTimer,
)
from harness.scenario.model import Kind
from tests.harness.balancer.core.test_gateway import CALM, Bench
from tests.harness.balancer.driver import of_type, only


def limited(concurrency: int = 1, queue: int = 2000) -> Settings:
    return replace(CALM, limits=AdmissionSettings(concurrency=concurrency, queue=queue))


def test_a_long_queue_is_answered_when_its_backends_are_gone() -> None:
    bench = Bench(limited(), "a")
    send = bench.send()
    for _ in range(1498):
        assert bench.arrive() == []
    bench.members()
    assert len(of_type(Reply, bench.end(send, "reset"))) == 1499
    assert bench.gateway.idle


def test_a_place_is_free_only_when_no_backend_works_on_it() -> None:
    bench = Bench(limited(), "a")
    send = bench.send()
    assert bench.arrive() == []
    assert bench.client_gone(1) == [Cancel(send.attempt_id)]
    assert only(Send, bench.end(send, "aborted")).request_id == 2


def test_the_queue_has_one_timer() -> None:
    settings = replace(CALM, limits=AdmissionSettings(requests=BucketSettings(10.0, kind="leaky"), queue=100))
    bench = Bench(settings, "a")
    timers = [timer.timer_id for _ in range(20) for timer in of_type(SetTimer, bench.arrive())]
    assert len(set(timers)) == 1


def test_every_drain_has_its_deadline() -> None:
    bench = Bench(replace(CALM, drain_deadline_s=30.0), "a", "b")
    sends = [bench.send("", Kind.UPDATE) for _ in range(2)]
    assert {send.backend_id for send in sends} == {"a", "b"}
    timers = of_type(SetTimer, bench.members("b"))
    bench.now_s = 10.0
    timers += of_type(SetTimer, bench.members())
    cut = [action.attempt_id for action in of_type(Cancel, bench.fire_all(timers))]
    assert sorted(cut) == [send.attempt_id for send in sends]


def test_after_a_shutdown_nothing_new_is_taken() -> None:
    bench = Bench(CALM, "a")
    send = bench.send()
    assert bench.shut_down() == []
    assert bench.arrive() == [Reply(2, 503, "shutting down", retry_after_s=1.0)]
    bench.head(send)
    assert bench.end(send) == [Exit()]


def test_our_own_deadline_is_not_the_backends_fault() -> None:
    settings = replace(CALM, breaker=BreakerSettings(failures=1), retry=RetrySettings(attempts=1, deadline_s=0.5))
    bench = Bench(settings, "a")
    send = bench.send()
    assert send.timeout_s == 0.5
    bench.end(send, "timeout")
    bench.send()


def test_a_retry_that_finds_no_backend_costs_no_budget() -> None:
    settings = replace(CALM, retry=RetrySettings(budget_share=0.0, budget_floor=1))
    bench = Bench(settings, "a")
    (timer,) = of_type(SetTimer, bench.end(bench.send(), "reset"))
    bench.members()
    assert bench.fire(timer) == [Reply(1, 503, "no backend is ready", 1.0)]
    bench.members("a")
    assert of_type(SetTimer, bench.end(bench.send(), "reset"))
    assert not bench.gateway.idle


def test_no_room_is_counted_for_members_of_weight_0() -> None:
    bench = Bench(replace(CALM, bounded_load=1.25))
    bench.members("a", Backend("b", "b", weight=0.0), Backend("c", "c", weight=0.0))
    assert [bench.send().backend_id for _ in range(5)] == ["a"] * 5


def test_a_place_that_is_free_before_the_rate_allows_sets_the_timer() -> None:
    limits = AdmissionSettings(requests=BucketSettings(1.0, kind="leaky"), concurrency=1, queue=1)
    bench = Bench(replace(CALM, limits=limits), "a")
    send = bench.send()
    assert bench.arrive() == []
    bench.now_s = 0.1
    bench.client_gone(1)
    timer = only(SetTimer, bench.end(send, "aborted"))
    assert timer.at_s == 1.0
    assert only(Send, bench.fire(timer)).request_id == 2


def test_a_leg_that_lost_is_cancelled_once() -> None:
    """Even if it has not ended when the client leaves during the winner's answer."""
    bench = Bench(replace(CALM, hedge=HedgeSettings(quantile=0.5, share=1.0, minimum=1)), "a", "b")
    first = bench.send("m")
    bench.head(first)
    bench.end(first)
    primary, timer = bench.arrive()
    assert isinstance(primary, Send) and isinstance(timer, SetTimer)
    other = only(Send, bench.fire(timer))
    assert bench.head(other) == [Commit(2, other.attempt_id), Cancel(primary.attempt_id)]
    bench.now_s = 1.0
    assert bench.client_gone(2) == [Cancel(other.attempt_id)]


# --- deadlines in the queue -------------------------------------------------------------------------------

QUEUED = replace(limited(queue=1), retry=RetrySettings(attempts=1, deadline_s=3.0))
GIVEN_UP = Reply(2, 504, "no time left in the queue")


def queued(bench: Bench, urgency: str = "normal") -> tuple[list[Action], SetTimer]:
    """A new request that is queued: all other actions, and its deadline's timer."""
    *others, timer = bench.arrive(urgency=urgency)
    assert isinstance(timer, SetTimer)
    return others, timer


def test_a_request_waits_in_the_queue_until_its_deadline() -> None:
    bench = Bench(QUEUED, "a")
    send = bench.send()
    bench.now_s = 1.0
    others, timer = queued(bench)
    assert others == [] and timer.at_s == 4.0
    assert bench.fire(timer) == [GIVEN_UP]
    others, timer = queued(bench)
    assert others == [], "its place in the queue is free"
    bench.head(send)
    cancelled, following = bench.end(send)
    assert cancelled == CancelTimer(timer.timer_id)
    assert isinstance(following, Send) and following.request_id == 3


def test_who_is_admitted_has_no_deadline_in_the_queue_any_more() -> None:
    bench = Bench(QUEUED, "a")
    send = bench.send()
    _, timer = queued(bench)
    bench.now_s = 2.0
    bench.head(send)
    cancelled, following = bench.end(send)
    assert cancelled == CancelTimer(timer.timer_id)
    assert isinstance(following, Send) and following.request_id == 2
    assert following.timeout_s == 1.0, "what is left of the three seconds"
    assert bench.fire(timer) == []


def test_who_leaves_the_queue_leaves_no_timer() -> None:
    bench = Bench(QUEUED, "a")
    bench.arrive()
    _, timer = queued(bench)
    others, urgent = queued(bench, "critical")
    assert others == [Reply(2, 503, "displaced by urgency", 1.0), CancelTimer(timer.timer_id)]
    bench.now_s = 1.0
    assert bench.client_gone(3) == [CancelTimer(urgent.timer_id)]
    _, last = queued(bench)
    assert last.timer_id not in (timer.timer_id, urgent.timer_id)


def test_without_a_deadline_requests_wait_as_long_as_it_takes() -> None:
    bench = Bench(limited(), "a")
    bench.arrive()
    assert bench.arrive() == []
