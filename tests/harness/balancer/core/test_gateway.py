"""The reference balancer as a specification: its actions for each event."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.picking.ring import HashRing
from harness.balancer.settings import SWITCHES, CheckSettings, EjectionSettings, Settings
from harness.gateway.protocol import (
    AttemptEnded,
    Cancel,
    ClientGone,
    Commit,
    Exit,
    HealthCheckResult,
    Reply,
    ResponseHead,
    SendHealthCheck,
    SetTimer,
    TimerFired,
)
from harness.scenario.model import Kind
from tests.harness.balancer.driver import GatewayDriver, only

CALM = Settings(attempt_timeout_s=2.0).without(SWITCHES - {"spread", "sessions"})
WATCHFUL = replace(CALM, health_checks=CheckSettings(unhealthy=1, healthy=1))
STRICT = replace(CALM, ejection=EjectionSettings(failures=2, open_s=1.0))


class Bench(GatewayDriver):
    """The reference gateway with members."""

    def __init__(self, settings: Settings, *members: str) -> None:
        super().__init__(ReferenceGateway(settings, Random(3)), *members)

    def fail(self, backend: str, times: int) -> None:
        """Let requests fail in a row; each must be sent to `backend`."""
        for _ in range(times):
            send = self.send()
            assert send.backend_id == backend
            self.end(send, "reset")

    def check(self, backend: str, ok: bool) -> None:
        """Start all health checks and deliver the result of `backend`'s."""
        for timer in self.started:
            assert isinstance(timer, SetTimer)
            check, _ = self.handle(TimerFired(timer.timer_id))
            assert isinstance(check, SendHealthCheck)
            if check.backend_id == backend:
                self.health_result(backend, ok, check_id=check.check_id)


def ring_order(*members: str) -> list[str]:
    """Owners of model "m" in ring order."""
    ring = HashRing()
    ring.set_members(members)
    return list(ring.nearest("m", len(members)))


# --- answers ----------------------------------------------------------------------------------------------


def test_an_answer_is_committed_at_its_head_and_ends_silently() -> None:
    bench = Bench(CALM, "a")
    send = bench.send()
    assert (send.request_id, send.backend_id, send.timeout_s) == (1, "a", 2.0)
    assert not bench.gateway.idle
    assert bench.head(send, 503) == [Commit(1, send.attempt_id)]
    assert not bench.gateway.idle
    assert bench.end(send) == []
    assert bench.gateway.idle


@pytest.mark.parametrize(("error", "status"), [("refused", 502), ("reset", 502), ("timeout", 504), ("aborted", 499)])
def test_an_attempt_without_an_answer_is_told_so(error: str, status: int) -> None:
    bench = Bench(CALM, "a")
    assert bench.end(bench.send(), error) == [Reply(1, status, f"attempt at a: {error}")]


@pytest.mark.parametrize("error", ["reset", "timeout", "aborted"])
def test_an_answer_that_breaks_off_gets_no_second_one(error: str) -> None:
    bench = Bench(CALM, "a")
    send = bench.send()
    bench.head(send)
    assert bench.end(send, error) == []
    assert bench.gateway.idle


@pytest.mark.parametrize("settings", [CALM, Settings()])
def test_without_backends_the_answer_is_503(settings: Settings) -> None:
    assert Bench(settings).arrive() == [Reply(1, 503, "no backend is ready", retry_after_s=1.0)]


@pytest.mark.parametrize("committed", [False, True])
def test_a_client_that_leaves_cancels_its_attempt(committed: bool) -> None:
    bench = Bench(CALM, "a")
    send = bench.send()
    if committed:
        bench.head(send)
    assert bench.client_gone(1) == [Cancel(send.attempt_id)]
    assert bench.head(send) == []
    assert bench.end(send, "aborted") == []
    assert bench.gateway.idle
    assert bench.client_gone(1) == []


def test_stale_ids_are_ignored() -> None:
    bench = Bench(CALM, "a")
    send = bench.send()
    bench.end(send, "reset")
    stale = (ResponseHead(send.attempt_id, 200), AttemptEnded(send.attempt_id, "reset"), ClientGone(1))
    for event in (*stale, TimerFired(99), HealthCheckResult(99, "a", False)):
        assert bench.handle(event) == []
    assert bench.gateway.idle


# --- picks ------------------------------------------------------------------------------------------------


def test_inference_goes_to_the_owner_on_the_ring() -> None:
    bench = Bench(CALM, "c", "a", "b")
    ring = HashRing(CALM.virtual_nodes)
    ring.set_members("abc")
    models = [f"model-{number}" for number in range(50)]
    assert [bench.send(model).backend_id for model in models] == [ring.owner(model) for model in models]


@pytest.mark.parametrize(("model", "kind"), [("m", Kind.UPDATE), ("", Kind.INFERENCE)])
def test_what_has_no_owner_goes_to_the_less_loaded_of_two(model: str, kind: Kind) -> None:
    bench = Bench(CALM, "a", "b")
    assert Counter(bench.send(model, kind).backend_id for _ in range(40)) == {"a": 20, "b": 20}


def test_load_is_what_is_in_flight() -> None:
    bench = Bench(CALM, "a", "b")
    sends = [bench.send("", Kind.UPDATE) for _ in range(20)]
    for send in sends:
        if send.backend_id == "a":
            bench.end(send)
    assert {bench.send("", Kind.UPDATE).backend_id for _ in range(10)} == {"a"}


def test_load_survives_a_leave_and_return() -> None:
    bench = Bench(CALM, "a")
    old = [bench.send() for _ in range(3)]
    bench.members("b")
    bench.members("a", "b")
    assert {bench.send("", Kind.UPDATE).backend_id for _ in range(2)} == {"b"}
    for send in old:
        bench.end(send)
    assert {bench.send("", Kind.UPDATE).backend_id for _ in range(2)} == {"a"}


def test_nothing_goes_to_who_left() -> None:
    bench = Bench(CALM, "a", "b", "c")
    first, second, third = ring_order("a", "b", "c")
    bench.members(second, third)
    assert bench.send().backend_id == second
    assert first not in {bench.send("", Kind.UPDATE).backend_id for _ in range(30)}


# --- ejection ---------------------------------------------------------------------------------------------


def test_an_ejected_owner_is_passed_over_for_the_next() -> None:
    bench = Bench(STRICT, "a", "b", "c")
    first, second, _ = ring_order("a", "b", "c")
    bench.fail(first, 2)
    assert bench.send().backend_id == second
    assert first not in {bench.send("", Kind.UPDATE).backend_id for _ in range(30)}
    bench.now_s = 1.0
    assert bench.send().backend_id == first


@pytest.mark.parametrize(
    ("status", "error", "counts"),
    [
        (None, "refused", True),
        (None, "reset", True),
        (200, "timeout", True),
        (500, None, True),
        (503, None, True),
        (499, None, False),
        (200, None, False),
        (None, "aborted", False),
    ],
)
def test_what_counts_as_a_failure(status: int | None, error: str | None, counts: bool) -> None:
    bench = Bench(STRICT, "a")
    for _ in range(2):
        send = bench.send()
        if status is not None:
            bench.head(send, status)
        bench.end(send, error)
    (action,) = bench.arrive()
    assert isinstance(action, Reply) == counts


def test_an_aborted_attempt_does_not_clear_the_run() -> None:
    bench = Bench(STRICT, "a")
    for error in ("reset", "aborted", "reset"):
        bench.end(bench.send(), error)
    only(Reply, bench.arrive())


def test_results_from_before_a_return_count_for_nobody() -> None:
    bench = Bench(STRICT, "a")
    old = [bench.send() for _ in range(2)]
    bench.members()
    bench.members("a")
    for send in old:
        bench.end(send, "reset")
    bench.send()


def test_an_ejected_backend_that_returns_starts_clean() -> None:
    bench = Bench(STRICT, "a")
    bench.fail("a", 2)
    bench.members()
    bench.members("a")
    bench.fail("a", 1)
    bench.send()


def test_ejection_can_be_switched_off() -> None:
    bench = Bench(CALM, "a")
    bench.fail("a", 20)


# --- readiness --------------------------------------------------------------------------------------------


def test_who_is_not_ready_is_passed_over_for_the_next() -> None:
    bench = Bench(WATCHFUL, "a", "b", "c")
    first, second, _ = ring_order("a", "b", "c")
    bench.check(first, ok=False)
    assert bench.send().backend_id == second
    assert first not in {bench.send("", Kind.UPDATE).backend_id for _ in range(30)}
    bench.check(first, ok=True)
    assert bench.send().backend_id == first


def test_checks_have_the_settings_numbers() -> None:
    bench = Bench(replace(CALM, health_checks=CheckSettings(interval_s=0.25, timeout_s=0.75)), "a")
    timer = only(SetTimer, bench.started)
    bench.now_s = 2.0
    check, again = bench.handle(TimerFired(timer.timer_id))
    assert isinstance(check, SendHealthCheck)
    assert (check.backend_id, check.timeout_s) == ("a", 0.75)
    assert again == SetTimer(timer.timer_id, 2.25)


def test_health_checks_can_be_switched_off() -> None:
    assert Bench(CALM, "a", "b").started == []


# --- shutdown ---------------------------------------------------------------------------------------------


def test_an_idle_balancer_exits_at_once() -> None:
    assert Bench(CALM, "a").shut_down() == [Exit()]


def test_a_busy_one_exits_with_its_last_request() -> None:
    bench = Bench(CALM, "a")
    first, second, third = (bench.send() for _ in range(3))
    bench.head(second)
    assert bench.shut_down() == []
    assert bench.end(second) == []
    assert bench.client_gone(third.request_id) == [Cancel(third.attempt_id)]
    assert bench.end(third, "aborted") == []
    assert bench.end(first, "reset") == [Reply(1, 502, "attempt at a: reset"), Exit()]


def test_exit_is_said_once() -> None:
    bench = Bench(CALM, "a")
    bench.shut_down()
    assert bench.health_result("a", True) == []
