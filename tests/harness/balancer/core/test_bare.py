"""The bare gateway: calls of a user's policy, and the snapshots passed to it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.balancer.core.bare import POLL_TIMER, BareGateway, WrongPickError, settled_from_error
from harness.balancer.health.breaker import Settled
from harness.gateway.protocol import (
    Backend,
    Cancel,
    Commit,
    Exit,
    Reply,
    Request,
    Send,
    SendHealthCheck,
    SetTimer,
)
from harness.scenario.model import Kind
from tests.harness.balancer.driver import GatewayDriver, of_type

A, B = Backend("a", "127.0.0.1:1"), Backend("b", "127.0.0.1:2", weight=2.0)


class RecordingPolicy:
    """A policy that picks `choice` and records all calls."""

    def __init__(self, choice: str | None = "a") -> None:
        self.choice = choice
        self.picked_for: list[Request] = []
        self.snapshots: list[dict[str, Backend]] = []
        self.results: list[tuple[str, float, str | None]] = []

    def pick(self, request: Request) -> str | None:
        self.picked_for.append(request)
        return self.choice

    def update_backends(self, backends: Sequence[Backend]) -> None:
        self.snapshots.append({backend.id: backend for backend in backends})

    def report_result(self, backend_id: str, latency_s: float, error: str | None) -> None:
        self.results.append((backend_id, latency_s, error))


class Bench(GatewayDriver):
    """A bare gateway around a recording policy, by default with members a and b."""

    def __init__(self, choice: str | None = "a", members: tuple[Backend, ...] = (A, B)) -> None:
        self.policy = RecordingPolicy(choice)
        super().__init__(BareGateway(self.policy, attempt_timeout_s=4.0, poll_s=0.25), *members)

    def send(self, model: str = "m", kind: Kind = Kind.INFERENCE) -> Send:
        """A new request arrives; its attempt must go to the policy's choice."""
        send = super().send(model, kind)
        assert (send.request_id, send.backend_id, send.timeout_s) == (self.requests, self.policy.choice, 4.0)
        return send

    def report(self, backend: str, ok: bool, report: Backend | None = None) -> None:
        assert self.health_result(backend, ok, report) == []

    def in_flight(self) -> dict[str, int]:
        """Requests in flight by backend in a new snapshot."""
        self.report("a", ok=True)
        return {name: backend.in_flight for name, backend in self.policy.snapshots[-1].items()}


# --- results ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error", "reported"),
    [
        (200, None, None),
        (399, None, None),
        (400, None, "status:400"),
        (503, None, "status:503"),
        (None, "refused", "refused"),
        (None, "reset", "reset"),
        (None, "timeout", "timeout"),
        (None, "aborted", "aborted"),
        (200, "reset", "reset"),
        (503, "timeout", "timeout"),
    ],
)
def test_each_pick_is_reported_exactly_once(status: int | None, error: str | None, reported: str | None) -> None:
    bench = Bench()
    bench.now_s = 1.0
    send = bench.send()
    bench.now_s = 1.5
    if status is not None:
        assert bench.head(send, status) == [Commit(1, send.attempt_id)]
    assert bench.policy.results == []
    for bench.now_s in (3.0, 4.0):
        bench.end(send, error)
    assert bench.policy.results == [("a", 2.0, reported)]
    assert bench.gateway.idle


@pytest.mark.parametrize("committed", [False, True])
def test_a_client_that_leaves_is_reported_once_when_its_attempt_ends(committed: bool) -> None:
    bench = Bench()
    send = bench.send()
    if committed:
        bench.head(send)
    bench.now_s = 0.5
    assert bench.client_gone(1) == [Cancel(send.attempt_id)]
    assert bench.head(send) == []
    assert bench.policy.results == []
    assert bench.end(send, "aborted") == []
    assert bench.policy.results == [("a", 0.5, "aborted")]
    assert bench.client_gone(1) == []


def test_no_pick_is_503_and_reported_to_nobody() -> None:
    bench = Bench(None)
    assert bench.arrive() == [Reply(1, 503, "the policy picked no backend")]
    assert bench.policy.results == []
    assert bench.gateway.idle


@pytest.mark.parametrize("choice", ["stranger", "", 0, A, ["a"]])
def test_a_pick_that_is_no_member_is_a_fault_and_says_so(choice: object) -> None:
    bench = Bench(choice)  # type: ignore[arg-type]
    with pytest.raises(WrongPickError) as caught:
        bench.arrive()
    assert str(caught.value) == f"RecordingPolicy.pick returned {choice!r}, which is no member; members: a, b"
    assert bench.policy.results == []


def test_a_pick_without_any_members() -> None:
    with pytest.raises(WrongPickError, match="returned 'a', which is no member; members: none"):
        Bench(members=()).arrive()


def test_a_departed_backend_is_no_member_but_its_attempts_are_reported() -> None:
    bench = Bench()
    send = bench.send()
    bench.members(B)
    with pytest.raises(WrongPickError, match="returned 'a', which is no member; members: b"):
        bench.arrive()
    bench.end(send)
    assert bench.policy.results == [("a", 0.0, None)]


@pytest.mark.parametrize(("error", "status"), [("refused", 502), ("reset", 502), ("timeout", 504), ("aborted", 499)])
def test_one_attempt_and_then_the_balancers_own_answer(error: str, status: int) -> None:
    bench = Bench()
    assert bench.end(bench.send(), error) == [Reply(1, status, f"attempt at a: {error}")]


def test_an_answer_that_breaks_off_gets_no_second_one() -> None:
    bench = Bench()
    send = bench.send()
    bench.head(send)
    assert bench.end(send, "reset") == []


def test_the_policy_sees_the_request_as_it_came() -> None:
    bench = Bench()
    bench.send()
    assert bench.policy.picked_for == [Request(1, 1, Kind.INFERENCE, "POST", "m")]


def test_failures_neither_eject_nor_hide_a_backend() -> None:
    bench = Bench()
    for _ in range(10):
        bench.end(bench.send(), "reset")
    bench.report("a", ok=False)
    bench.send()


# --- snapshots --------------------------------------------------------------------------------------------


def test_snapshots_at_start_at_changes_and_at_reports_only() -> None:
    bench = Bench()
    assert bench.policy.snapshots == [{"a": A, "b": B}]
    bench.end(bench.send())
    assert len(bench.policy.snapshots) == 1
    bench.members(B)
    assert bench.policy.snapshots[1:] == [{"b": B}]
    bench.report("b", ok=True)
    assert len(bench.policy.snapshots) == 3
    bench.report("a", ok=True)  # it left
    assert len(bench.policy.snapshots) == 3


def test_a_report_fills_the_snapshot_but_not_the_configuration() -> None:
    bench = Bench()
    bench.report("b", ok=True, report=Backend("b", "elsewhere", queue_depth=4, loaded_models=("m",)))
    expected = Backend("b", B.address, weight=2.0, queue_depth=4, loaded_models=("m",))
    assert bench.policy.snapshots[-1] == {"a": A, "b": expected}


def test_ready_is_the_last_check_and_figures_outlast_a_failed_one() -> None:
    bench = Bench()
    bench.report("a", ok=True, report=Backend("a", "", queue_depth=4, ready=False))
    assert bench.policy.snapshots[-1]["a"].ready
    bench.report("a", ok=False)
    assert (bench.policy.snapshots[-1]["a"].ready, bench.policy.snapshots[-1]["a"].queue_depth) == (False, 4)


def test_a_change_keeps_figures_and_takes_the_new_configuration() -> None:
    bench = Bench()
    bench.report("a", ok=True, report=Backend("a", "", queue_depth=4))
    bench.members(B, Backend("a", "127.0.0.1:9", weight=0.5))
    assert list(bench.policy.snapshots[-1]) == ["b", "a"]
    assert bench.policy.snapshots[-1]["a"] == Backend("a", "127.0.0.1:9", weight=0.5, queue_depth=4)


def test_who_returns_is_shown_without_old_figures() -> None:
    bench = Bench()
    bench.report("a", ok=False, report=Backend("a", "", queue_depth=4))
    bench.members(B)
    bench.members(A, B)
    assert bench.policy.snapshots[-1]["a"] == A


def test_in_flight_counts_attempts_until_they_end_and_never_leaks() -> None:
    bench = Bench()
    first, second, third = (bench.send() for _ in range(3))
    bench.policy.choice = "b"
    fourth = bench.send()
    assert bench.in_flight() == {"a": 3, "b": 1}
    bench.client_gone(1)
    assert bench.in_flight() == {"a": 3, "b": 1}
    bench.end(first, "aborted")
    bench.end(second)
    bench.end(fourth, "refused")
    assert bench.in_flight() == {"a": 1, "b": 0}
    bench.members(B)
    bench.members(A, B)
    assert bench.in_flight() == {"a": 1, "b": 0}
    bench.end(third, "reset")
    assert bench.in_flight() == {"a": 0, "b": 0}
    assert bench.gateway.idle


# --- polls and shutdown -----------------------------------------------------------------------------------


def test_polls_all_members_at_its_own_pace() -> None:
    bench = Bench()
    assert bench.started == [SetTimer(POLL_TIMER, 0.0)]
    assert bench.members(A, B) == []
    timer, *others = bench.fire(SetTimer(POLL_TIMER, 2.0))
    assert timer == SetTimer(POLL_TIMER, 2.25)
    checks = of_type(SendHealthCheck, others)
    assert [check.backend_id for check in checks] == ["a", "b"]
    assert len({check.check_id for check in checks}) == 2
    assert bench.fire(SetTimer(POLL_TIMER + 1, 2.0)) == []


def test_exits_at_once_when_idle_else_with_the_last_attempt() -> None:
    assert Bench().shut_down() == [Exit()]
    bench = Bench()
    first, second = bench.send(), bench.send()
    assert bench.shut_down() == []
    bench.client_gone(2)
    assert bench.end(second, "aborted") == []
    assert bench.end(first, "timeout") == [Reply(1, 504, "attempt at a: timeout"), Exit()]


# --- health scores ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "settled"),
    [
        (None, Settled.OK),
        ("status:500", Settled.FAILED),
        ("refused", Settled.FAILED),
        ("reset", Settled.FAILED),
        ("timeout", Settled.FAILED),
        ("status:499", Settled.NEUTRAL),
        ("aborted", Settled.ABORTED),
    ],
)
def test_what_a_result_says_of_its_backend(error: str | None, settled: Settled) -> None:
    assert settled_from_error(error) is settled


@pytest.mark.parametrize("error", ["", "500", "status:", "status:5x", "cancelled"])
def test_other_words_are_no_result(error: str) -> None:
    with pytest.raises(ValueError, match="expected None, refused, reset, timeout, aborted or status:NNN"):
        settled_from_error(error)


def score(bench: Bench) -> dict[str, float]:
    """Health scores in the next snapshot, in hundredths."""
    bench.report("b", ok=True)
    return {name: round(backend.health_score, 2) for name, backend in bench.policy.snapshots[-1].items()}


def test_nothing_is_known_at_first_and_that_is_good() -> None:
    assert {backend.health_score for backend in Bench().policy.snapshots[-1].values()} == {1.0}


@pytest.mark.parametrize(("error", "left"), [("reset", 0.6), ("aborted", 1.0), (None, 1.0)])
def test_failures_cost_the_weight_of_errors(error: str | None, left: float) -> None:
    bench = Bench()
    for _ in range(20):
        bench.end(bench.send(), error)
    assert score(bench) == {"a": left, "b": 1.0}


def test_memory_in_use_costs_its_weight_and_what_can_be_evicted_nothing() -> None:
    bench = Bench()
    used = Backend("a", "", memory_total_mb=100.0, memory_used_mb=80.0, memory_evictable_mb=30.0)
    bench.report("a", ok=True, report=used)
    assert score(bench) == {"a": 0.9, "b": 1.0}


def test_requests_in_flight_beyond_the_free_ones_cost_theirs() -> None:
    bench = Bench()
    for _ in range(350):
        bench.send()
    assert score(bench) == {"a": 0.95, "b": 1.0}


def test_who_returns_is_as_good_as_new() -> None:
    bench = Bench()
    for _ in range(20):
        bench.end(bench.send(), "reset")
    assert score(bench)["a"] == 0.6
    bench.members(B)
    bench.members(A, B)
    assert score(bench) == {"a": 1.0, "b": 1.0}


def test_a_report_cannot_claim_a_score() -> None:
    bench = Bench()
    bench.report("a", ok=True, report=Backend("a", "", health_score=0.1))
    assert score(bench) == {"a": 1.0, "b": 1.0}
