"""The reference with every mechanism on, under a driver that delivers any events the protocol allows, in any order.

Each mechanism's decisions are tested elsewhere. These invariants must hold for any interaction: no attempt without an
unanswered request, one answer for each client that stays, no actions after the answer, counts that return to 0, and
cached sets and totals equal to those computed from all members.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.health.breaker import BreakerSettings
from harness.balancer.health.health_score import HealthSettings
from harness.balancer.health.readiness import RotationSettings
from harness.balancer.requests.hedging import HedgeSettings
from harness.balancer.requests.limits import AdmissionSettings, BucketSettings
from harness.balancer.requests.retry import RetrySettings
from harness.balancer.settings import CheckSettings, EjectionSettings, Settings, SlowStartSettings
from harness.gateway.protocol import (
    AttemptEnded,
    Backend,
    Cancel,
    CancelTimer,
    ClientGone,
    Commit,
    Event,
    Exit,
    FirstByte,
    HealthCheckResult,
    MembershipChanged,
    Reply,
    Request,
    RequestArrived,
    ResponseHead,
    Send,
    SendHealthCheck,
    SetTimer,
    ShutdownAsked,
    TimerFired,
)
from harness.scenario.model import Kind

NAMES = ("gpu-0", "gpu-1", "gpu-2", "gpu-3")
PICK = st.integers(0, 10_000)
WHOLE = Settings(
    virtual_nodes=6,
    commit_at="first_byte",
    checks=CheckSettings(unhealthy=2, healthy=1, rotation=RotationSettings(queue_depth=3, jitter=0.1)),
    ejection=EjectionSettings(failures=3, open_s=3.0, cap_share=0.5),
    breaker=BreakerSettings(failures=2, error_rate=0.5, minimum_calls=4, window_s=5.0, open_s=1.0, max_open_s=4.0),
    health=HealthSettings(errors=0.9, latency=0.1, memory=0.0, connections=0.0, window_s=5.0, minimum_calls=2),
    hedge=HedgeSettings(quantile=0.5, share=0.5, window=20, minimum=1, load_threshold=100.0),
    retry=RetrySettings(budget_floor=3, budget_window_s=2.0, deadline_s=3.0),
    limits=AdmissionSettings(BucketSettings(8.0, 8.0), BucketSettings(100.0, kind="leaky"), concurrency=4, queue=2),
    slow_start=SlowStartSettings(1.0),
    drain_deadline_s=2.0,
)


@dataclass
class Live:
    """An attempt that has not ended."""

    request_id: int
    backend: str
    status: int = 0
    committed: bool = False
    cancelled: bool = False


class DriverMachine(RuleBasedStateMachine):
    """Follows the protocol's rules and checks that every action is allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.gateway = ReferenceGateway(WHOLE, Random(3))
        self.now_s = 0.0
        self.numbers = 0
        self.members: set[str] = set()
        self.staying: set[int] = set()
        self.answers: Counter[int] = Counter()
        self.live: dict[int, Live] = {}
        self.made: set[int] = set()
        self.timers: dict[int, float] = {}
        self.checks: dict[int, str] = {}
        self.stopping = self.exited = False

    def tell(self, event: Event) -> None:
        for action in self.gateway.handle(event, self.now_s):
            match action:
                case Send(attempt_id, request_id, backend, timeout_s):
                    assert request_id in self.staying and not self.answers[request_id] and backend in self.members
                    assert attempt_id not in self.made and 0 < timeout_s <= WHOLE.attempt_timeout_s
                    self.made.add(attempt_id)
                    self.live[attempt_id] = Live(request_id, backend)
                    waiting = [item for item in self.live.values() if item.request_id == request_id]
                    assert sum(not item.cancelled for item in waiting) <= 2, "more than one hedge beside an attempt"
                case Cancel(attempt_id):
                    assert not self.live[attempt_id].cancelled
                    self.live[attempt_id].cancelled = True
                case Commit(request_id, attempt_id):
                    attempt = self.live[attempt_id]
                    assert attempt.request_id == request_id and attempt.status and not attempt.cancelled
                    attempt.committed = True
                    self.answer(request_id)
                case Reply(request_id):
                    self.answer(request_id)
                    self.staying.discard(request_id)
                case SetTimer(timer_id, at_s):
                    self.timers[timer_id] = at_s
                case CancelTimer(timer_id):
                    del self.timers[timer_id]
                case SendHealthCheck(check_id, backend):
                    self.checks[check_id] = backend
                case Exit():
                    assert self.stopping and not self.live and not self.exited
                    self.exited = True

    def answer(self, request_id: int) -> None:
        assert request_id in self.staying
        self.answers[request_id] += 1

    def end(self, attempt_id: int, error: str | None) -> None:
        attempt = self.live.pop(attempt_id)
        self.tell(AttemptEnded(attempt_id, error))
        if attempt.committed:
            self.staying.discard(attempt.request_id)

    # --- what may happen ------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.change(list(NAMES[:3]))

    @precondition(lambda self: not self.exited)
    @rule(members=st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
    def change(self, members: list[str]) -> None:
        self.members = set(members)
        self.tell(MembershipChanged(tuple(Backend(name, name, weight=1.0 + (name == "gpu-1")) for name in members)))

    @precondition(lambda self: not self.exited)
    @rule(
        kind=st.sampled_from([Kind.INFERENCE, Kind.INFERENCE, Kind.UPDATE]),
        model=st.sampled_from(["", "m", "n"]),
        session=st.sampled_from(["", "", "s", "t"]),
        urgency=st.sampled_from(["normal", "high", "critical"]),
    )
    def request_arrives(self, kind: Kind, model: str, session: str, urgency: str) -> None:
        self.numbers += 1
        self.staying.add(self.numbers)
        self.tell(RequestArrived(Request(self.numbers, 1, kind, "POST", model, session, urgency, prompt_tokens=5)))

    @precondition(lambda self: not self.exited)
    @rule(model=st.sampled_from(["m", "n"]), times=st.integers(2, 4), error=st.sampled_from(["refused", "reset", None]))
    def attempts_end_at_once(self, model: str, times: int, error: str | None) -> None:
        """Several equal results in a row, so that breakers and ejection act often."""
        for _ in range(times):
            self.request_arrives(Kind.INFERENCE, model, "", "normal")
            attempt_id = next(reversed(self.live), None)
            if attempt_id is None or self.live[attempt_id].request_id != self.numbers:
                return
            if error is None:
                self.live[attempt_id].status = 200
                self.tell(ResponseHead(attempt_id, 200))
                self.tell(FirstByte(attempt_id))
            self.end(attempt_id, error)
            self.time_passes(0.2)
            if self.exited:
                return

    @precondition(lambda self: any(not item.status and not item.cancelled for item in self.live.values()))
    @rule(pick=PICK, status=st.sampled_from([200, 200, 404, 500, 503]))
    def head_comes(self, pick: int, status: int) -> None:
        headless = [key for key, item in self.live.items() if not item.status and not item.cancelled]
        attempt_id = headless[pick % len(headless)]
        self.live[attempt_id].status = status
        self.tell(ResponseHead(attempt_id, status))

    @precondition(lambda self: any(item.status and not item.cancelled for item in self.live.values()))
    @rule(pick=PICK)
    def answer_is_whole(self, pick: int) -> None:
        with_head = [key for key, item in self.live.items() if item.status and not item.cancelled]
        attempt_id = with_head[pick % len(with_head)]
        if not self.live[attempt_id].committed:
            self.tell(FirstByte(attempt_id))
        self.end(attempt_id, None if self.live[attempt_id].committed else "aborted")

    @precondition(lambda self: self.live)
    @rule(pick=PICK, error=st.sampled_from(["refused", "reset", "timeout"]))
    def attempt_fails(self, pick: int, error: str) -> None:
        attempt_id = list(self.live)[pick % len(self.live)]
        self.end(attempt_id, "aborted" if self.live[attempt_id].cancelled else error)

    @precondition(lambda self: self.staying)
    @rule(pick=PICK)
    def client_goes(self, pick: int) -> None:
        request_id = sorted(self.staying)[pick % len(self.staying)]
        self.staying.discard(request_id)
        self.tell(ClientGone(request_id))

    @precondition(lambda self: self.timers and not self.exited)
    @rule()
    def next_timer_fires(self) -> None:
        timer_id = min(self.timers, key=lambda item: (self.timers[item], item))
        self.now_s = max(self.now_s, self.timers.pop(timer_id))
        self.tell(TimerFired(timer_id))

    @precondition(lambda self: self.checks)
    @rule(pick=PICK, ok=st.sampled_from([True, True, False]))
    def check_answers(self, pick: int, ok: bool) -> None:
        check_id = sorted(self.checks)[pick % len(self.checks)]
        name = self.checks.pop(check_id)
        self.tell(HealthCheckResult(check_id, name, ok, Backend(name, name, queue_depth=pick % 5) if ok else None))

    @rule(seconds=st.sampled_from([0.05, 0.5, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: not self.stopping and self.numbers > 8)
    @rule()
    def shutdown_is_asked(self) -> None:
        self.stopping = True
        self.tell(ShutdownAsked())

    # --- what always holds ----------------------------------------------------------------------------

    @invariant()
    def nobody_has_two_answers(self) -> None:
        assert all(count == 1 for count in self.answers.values() if count)

    @invariant()
    def who_stays_is_answered_or_worked_on(self) -> None:
        """By an attempt, a retry timer or the queue: the gateway has a record of each unanswered request."""
        known = self.gateway._exchanges
        assert all(number in known for number in self.staying if not self.answers[number])
        assert not known or not self.exited

    @invariant()
    def counts_say_what_is_in_flight(self) -> None:
        counts = Counter(item.backend for item in self.live.values())
        loads = self.gateway._members._loads
        assert {name: loads.in_flight(name) for name in NAMES} == {name: counts[name] for name in NAMES}
        if not self.live and not self.staying:
            assert self.gateway.idle

    @invariant()
    def cached_sets_and_totals_are_exact(self) -> None:
        members = self.gateway._members
        members._recheck_due(self.now_s)
        able = [name for name in members._names if members.eligible(name, self.now_s)]
        assert members._eligible.backends == set(able)
        assert members._eligible.total == sum(map(members._loads.in_flight, able))
        assert list(members._eligible_with_weight()) == [name for name in able if members._configured[name]]
        assert list(members._weightless) == [
            name for name in members._names if not members._quantised_weights.level(name)
        ]

    def teardown(self) -> None:
        """After all attempts ended and timers fired, each client that stayed has its answer and no state is left."""
        for _ in range(200):
            if not self.live and not self.staying:
                break
            for attempt_id in list(self.live):
                if attempt_id in self.live:
                    self.end(attempt_id, "aborted" if self.live[attempt_id].cancelled else "reset")
            if self.staying and self.timers and not self.exited:
                self.next_timer_fires()
        assert not self.staying and not self.live and self.gateway.idle
        assert self.gateway._members._loads.total_in_flight == self.gateway._members._eligible.total == 0
        assert all(self.answers[number] <= 1 for number in range(1, self.numbers + 1))
        assert self.exited == self.stopping


TestMachine = DriverMachine.TestCase
TestMachine.settings = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=100,
    stateful_step_count=60,
    suppress_health_check=list(HealthCheck),
)
