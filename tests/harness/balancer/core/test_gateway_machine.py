"""The reference balancer under any events that the protocol allows: with checks and ejection alone, and with all on."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from harness.balancer.health.breaker import BreakerSettings
from harness.balancer.health.health_score import HealthSettings
from harness.balancer.health.readiness import RotationSettings
from harness.balancer.picking.ring import HashRing
from harness.balancer.requests.hedging import HedgeSettings
from harness.balancer.requests.limits import AdmissionSettings, BucketSettings
from harness.balancer.requests.retry import RetrySettings
from harness.balancer.settings import CheckSettings, EjectionSettings, Settings, SlowStartSettings
from harness.claims.features import Backoff
from harness.gateway.protocol import (
    Action,
    AttemptEnded,
    Cancel,
    ClientGone,
    Event,
    FirstByte,
    HealthCheckResult,
    Reply,
    Request,
    RequestArrived,
    ResponseHead,
    Send,
    TimerFired,
)
from harness.scenario.model import Kind
from tests.harness.balancer.core.gateway_machine import ERRORS, NAMES, PICK, GatewayMachine, Live, machine_settings

CHECKS = CheckSettings(unhealthy=2, healthy=1)
GROWTH = Backoff(multiplier=2.0, max_s=4.0, jitter=0.2)
EJECTION = EjectionSettings(failures=2, open_s=4.0, cap_share=1.0)


@dataclass
class BackendModel:
    """Results and checks that the balancer received of a backend since it last joined."""

    failures: int = 0
    ejected_until_s: float = 0.0
    failed_checks: int = 0
    newest_check: int = 0

    def eligible(self, now_s: float) -> bool:
        return now_s >= self.ejected_until_s and self.failed_checks < CHECKS.unhealthy

    def settle(self, ok: bool, now_s: float) -> None:
        if now_s < self.ejected_until_s:
            return
        self.failures = 0 if ok else self.failures + 1
        if self.failures == EJECTION.failures:
            self.failures, self.ejected_until_s = 0, now_s + EJECTION.open_s


class PlainMachine(GatewayMachine):
    """Health checks and ejection alone: few enough mechanisms to model which backends may receive which request."""

    chosen = Settings(
        virtual_nodes=5,
        attempt_timeout_s=2.0,
        bounded_load=None,
        health_checks=CHECKS,
        ejection=EJECTION,
        breaker=None,
        health_share=None,
        hedge=None,
        retry=None,
    )
    seed = 5
    requests_before_shutdown = 3
    memberships = first_members = st.lists(st.sampled_from(NAMES[:3]), unique=True)
    in_parallel = 1

    def __init__(self) -> None:
        super().__init__()
        self.models: dict[int, BackendModel] = {}  # by number of the join

    def model(self, name: str) -> BackendModel:
        return self.models.setdefault(self.members[name], BackendModel())

    def eligible(self) -> set[str]:
        return {name for name in self.members if self.model(name).eligible(self.now_s)}

    def check_send(self, send: Send) -> None:
        super().check_send(send)
        assert send.backend_id in self.eligible()
        assert send.timeout_s == self.chosen.attempt_timeout_s

    def ended(self, attempt: Live, error: str | None) -> None:
        status = 0 if attempt.late_head else attempt.status  # a late one is ignored
        failed = status >= 500 or error in ("refused", "reset", "timeout")
        good = error is None and status < 400
        if failed or good:
            self.models.setdefault(attempt.joined, BackendModel()).settle(good, self.now_s)

    def check_answered(self, check_id: int, name: str, joined: int, ok: bool) -> None:
        model = self.models.setdefault(joined, BackendModel())
        if check_id >= model.newest_check:  # one that began before another whose result is known is ignored
            model.newest_check = check_id
            model.failed_checks = 0 if ok else model.failed_checks + 1

    def check(self, event: Event, actions: list[Action]) -> None:
        match event:
            case RequestArrived(request):
                self.check_arrival(request, actions)
            case ClientGone(request_id):
                waiting = [key for key, attempt in self.live.items() if attempt.request_id == request_id]
                assert actions == [Cancel(key) for key in waiting]

    def check_arrival(self, request: Request, actions: list[Action]) -> None:
        """Each request is sent at once, inference for a model to its owner, or refused if no backend is eligible."""
        able = set() if self.stopping else self.eligible()
        assert [type(action) for action in actions] == [Send if able else Reply]
        if able and request.model and not request.session and request.kind is Kind.INFERENCE:
            ring = HashRing(self.chosen.virtual_nodes)
            ring.set_members(self.members)
            assert self.live[max(self.live)].backend == ring.owner(request.model, able.__contains__)

    @precondition(lambda self: self.members and not self.exited)
    @rule(
        model=st.sampled_from(["m", "n"]),
        status=st.sampled_from([0, 404, 500]),
        error=st.sampled_from([None, *ERRORS]),
        times=st.integers(1, 3),
    )
    def requests_end_at_once(self, model: str, status: int, error: str | None, times: int) -> None:
        """Several equal results in a row, so that backends are ejected often."""
        self.equal_results(model, status, error, times if status or error else 0, gap_s=0.0)

    @precondition(lambda self: self.timers and not self.exited)
    @rule(pick=PICK)
    def any_timer_fires(self, pick: int) -> None:
        """So that timers fire late and in any order, including timers of backends that left."""
        self.fire(sorted(self.timers)[pick % len(self.timers)])

    @rule(number=st.sampled_from([-(10**6), 10**6]), error=st.sampled_from([None, "reset"]))
    def stale_events_come(self, number: int, error: str | None) -> None:
        for event in (
            AttemptEnded(number, error),
            ResponseHead(number, 200),
            FirstByte(number),
            ClientGone(number),
            TimerFired(number),
            HealthCheckResult(number, "gpu-0", False),
        ):
            assert self.handle(event) == []

    @invariant()
    def every_client_that_stays_has_one_answer_or_an_attempt(self) -> None:
        assert self.staying <= {attempt.request_id for attempt in self.live.values()}
        waiting = {attempt.request_id for attempt in self.live.values() if not attempt.committed}
        assert all(self.answers[number] == (number not in waiting) for number in self.staying)


class WholeMachine(GatewayMachine):
    """Every mechanism on. Each one's decisions are tested elsewhere."""

    chosen = Settings(
        virtual_nodes=6,
        attempt_timeout_s=2.0,
        commit_at="first_byte",
        health_checks=CheckSettings(unhealthy=2, healthy=1, rotation=RotationSettings(queue_depth=3, jitter=0.1)),
        ejection=EjectionSettings(failures=3, open_s=3.0, cap_share=0.5),
        breaker=BreakerSettings(2, minimum_calls=4, window_s=5.0, open_s=1.0, successes=1, backoff=GROWTH),
        health_share=HealthSettings(0.9, 0.1, 0.0, 0.0, window_s=5.0, minimum_calls=2),
        hedge=HedgeSettings(quantile=0.5, share=0.5, window=20, minimum=1, load_threshold=100.0),
        retry=RetrySettings(budget_floor=3, budget_window_s=2.0, deadline_s=3.0),
        limits=AdmissionSettings(BucketSettings(8.0, 8.0), BucketSettings(100.0, kind="leaky"), concurrency=4, queue=2),
        slow_start=SlowStartSettings(1.0),
        drain_deadline_s=2.0,
    )
    seed = 3
    requests_before_shutdown = 8
    memberships = st.lists(st.sampled_from(NAMES), unique=True, min_size=1)
    first_members = st.just(list(NAMES[:3]))

    @precondition(lambda self: not self.exited)
    @rule(
        model=st.sampled_from(["m", "n"]),
        result=st.sampled_from([(200, None), (0, "refused"), (0, "reset")]),
        times=st.integers(2, 4),
    )
    def requests_end_one_by_one(self, model: str, result: tuple[int, str | None], times: int) -> None:
        """Several equal results with time between them, so that breakers open and close often."""
        self.equal_results(model, *result, times, gap_s=0.2)

    @precondition(lambda self: self.timers and not self.exited)
    @rule()
    def next_timer_fires(self) -> None:
        self.fire_next()


TestPlain = PlainMachine.TestCase
TestPlain.settings = machine_settings(examples=80)
TestWhole = WholeMachine.TestCase
TestWhole.settings = machine_settings(examples=100)
