"""The reference balancer under a driver that delivers any events the protocol allows, in any order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.picking.ring import HashRing
from harness.balancer.settings import CheckSettings, EjectionSettings, Settings
from harness.gateway.protocol import (
    Action,
    AttemptEnded,
    Backend,
    Cancel,
    CancelTimer,
    ClientGone,
    Commit,
    Event,
    Exit,
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

NAMES = ("gpu-0", "gpu-1", "gpu-2")
CHECKS = CheckSettings(unhealthy=2, healthy=1)
EJECTION = EjectionSettings(failures=2, open_s=4.0)
SETTINGS = Settings(
    virtual_nodes=5,
    bounded_load=None,
    checks=CHECKS,
    ejection=EJECTION,
    breaker=None,
    health=None,
    hedge=None,
    retry=None,
)
MEMBERS = st.lists(st.sampled_from(NAMES), unique=True)
PICK = st.integers(0, 10_000)
ERRORS = st.sampled_from([None, "refused", "reset", "timeout", "aborted"])


@dataclass
class Live:
    """An attempt that has not ended."""

    request_id: int
    backend: str
    stay: int
    status: int = 0
    committed: bool = False


@dataclass
class Stay:
    """Results and checks that the balancer received of a backend since it last joined."""

    number: int
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


class DriverMachine(RuleBasedStateMachine):
    """Follows the protocol's rules, counts answers, and compares every action with its own model of the backends."""

    def __init__(self) -> None:
        super().__init__()
        self.gateway = ReferenceGateway(SETTINGS, Random(5))
        self.now_s = 0.0
        self.numbers = 0
        self.stays: dict[str, Stay] = {}
        self.stays_begun = 0
        self.staying: set[int] = set()  # requests whose client is present and has no complete answer
        self.answers: Counter[int] = Counter()
        self.live: dict[int, Live] = {}
        self.attempts_made: set[int] = set()
        self.timers: dict[int, float] = {}
        self.checks: dict[int, tuple[str, int]] = {}
        self.stopping = False
        self.exited = False

    # --- the driver's side of the protocol -------------------------------------------------------------

    def tell(self, event: Event) -> list[Action]:
        actions = self.gateway.handle(event, self.now_s)
        for action in actions:
            self.carry_out(action)
        return actions

    def carry_out(self, action: Action) -> None:
        match action:
            case Send(attempt_id, request_id, backend, timeout_s):
                assert request_id in self.staying and self.answers[request_id] == 0
                assert all(attempt.request_id != request_id for attempt in self.live.values())
                assert attempt_id not in self.attempts_made
                assert backend in self.stays and self.stays[backend].eligible(self.now_s)
                assert timeout_s == SETTINGS.attempt_timeout_s
                self.attempts_made.add(attempt_id)
                self.live[attempt_id] = Live(request_id, backend, self.stays[backend].number)
            case Cancel(attempt_id):
                assert attempt_id in self.live
            case Commit(request_id, attempt_id):
                attempt = self.live[attempt_id]
                assert attempt.request_id == request_id and attempt.status and not attempt.committed
                attempt.committed = True
                self.answer(request_id)
            case Reply(request_id):
                self.answer(request_id)
                self.staying.discard(request_id)
            case SetTimer(timer_id, at_s):
                assert at_s >= self.now_s
                self.timers[timer_id] = at_s
            case CancelTimer(timer_id):
                del self.timers[timer_id]
            case SendHealthCheck(check_id, backend):
                assert check_id not in self.checks and backend in self.stays
                self.checks[check_id] = (backend, self.stays[backend].number)
            case Exit():
                assert self.stopping and not self.live and not self.exited
                self.exited = True

    def answer(self, request_id: int) -> None:
        assert request_id in self.staying
        self.answers[request_id] += 1

    def head(self, attempt_id: int, status: int) -> None:
        self.live[attempt_id].status = status
        self.tell(ResponseHead(attempt_id, status))

    def end(self, attempt_id: int, error: str | None) -> None:
        attempt = self.live.pop(attempt_id)
        stay = self.stays.get(attempt.backend)
        failed = attempt.status >= 500 or error in ("refused", "reset", "timeout")
        good = error is None and attempt.status < 400
        if stay is not None and stay.number == attempt.stay and (failed or good):
            stay.settle(good, self.now_s)
        self.tell(AttemptEnded(attempt_id, error))
        if attempt.committed:
            self.staying.discard(attempt.request_id)

    # --- what may happen ------------------------------------------------------------------------------

    @initialize(members=MEMBERS)
    def begin(self, members: list[str]) -> None:
        self.change(members)

    @precondition(lambda self: not self.exited)
    @rule(members=MEMBERS)
    def change(self, members: list[str]) -> None:
        for name in set(self.stays) - set(members):
            del self.stays[name]
        for name in members:
            if name not in self.stays:
                self.stays_begun += 1
                self.stays[name] = Stay(self.stays_begun)
        self.tell(MembershipChanged(tuple(Backend(name, name) for name in members)))

    @precondition(lambda self: not self.exited)
    @rule(model=st.sampled_from(["", "m", "n", "o"]), kind=st.sampled_from(Kind))
    def request_arrives(self, model: str, kind: Kind) -> None:
        self.numbers += 1
        self.staying.add(self.numbers)
        actions = self.tell(RequestArrived(Request(self.numbers, 1, kind, "POST", model)))
        able = not self.stopping and any(stay.eligible(self.now_s) for stay in self.stays.values())
        assert [type(action) for action in actions] == [Send if able else Reply]
        if able and model and kind is Kind.INFERENCE:
            ring = HashRing(SETTINGS.virtual_nodes)
            ring.set_members(self.stays)
            owner = ring.owner(model, lambda name: self.stays[name].eligible(self.now_s))
            assert self.live[max(self.live)].backend == owner

    @precondition(lambda self: self.stays and not self.exited)
    @rule(
        model=st.sampled_from(["m", "n"]), status=st.sampled_from([0, 404, 500]), error=ERRORS, times=st.integers(1, 3)
    )
    def requests_end_at_once(self, model: str, status: int, error: str | None, times: int) -> None:
        """Several equal results in a row, so that backends are ejected often."""
        for _ in range(times if status or error else 0):
            self.request_arrives(model, Kind.INFERENCE)
            attempt_id = next(reversed(self.live), None)
            if attempt_id is None or self.live[attempt_id].request_id != self.numbers:
                return
            if status:
                self.head(attempt_id, status)
            self.end(attempt_id, error)
            if self.exited:
                return

    @precondition(lambda self: any(not attempt.status for attempt in self.live.values()))
    @rule(pick=PICK, status=st.sampled_from([200, 404, 500, 503]))
    def head_comes(self, pick: int, status: int) -> None:
        headless = [key for key, attempt in self.live.items() if not attempt.status]
        self.head(headless[pick % len(headless)], status)

    @precondition(lambda self: any(attempt.committed for attempt in self.live.values()))
    @rule(pick=PICK)
    def answer_is_whole(self, pick: int) -> None:
        committed = [key for key, attempt in self.live.items() if attempt.committed]
        self.end(committed[pick % len(committed)], None)

    @precondition(lambda self: self.live)
    @rule(pick=PICK, error=st.sampled_from(["refused", "reset", "timeout", "aborted"]))
    def attempt_fails(self, pick: int, error: str) -> None:
        self.end(list(self.live)[pick % len(self.live)], error)

    @precondition(lambda self: self.staying)
    @rule(pick=PICK)
    def client_goes(self, pick: int) -> None:
        request_id = sorted(self.staying)[pick % len(self.staying)]
        self.staying.discard(request_id)
        waiting = [key for key, attempt in self.live.items() if attempt.request_id == request_id]
        assert self.tell(ClientGone(request_id)) == [Cancel(key) for key in waiting]

    @precondition(lambda self: self.timers and not self.exited)
    @rule(pick=PICK)
    def timer_fires(self, pick: int) -> None:
        """Any timer, so that they fire in any order, including timers of backends that left."""
        timer_id = sorted(self.timers)[pick % len(self.timers)]
        self.now_s = max(self.now_s, self.timers.pop(timer_id))
        self.tell(TimerFired(timer_id))

    @precondition(lambda self: self.checks)
    @rule(pick=PICK, ok=st.booleans())
    def check_answers(self, pick: int, ok: bool) -> None:
        check_id = sorted(self.checks)[pick % len(self.checks)]
        backend, number = self.checks.pop(check_id)
        stay = self.stays.get(backend)
        # A check that began before one whose result is known is ignored.
        if stay is not None and stay.number == number and check_id >= stay.newest_check:
            stay.newest_check = check_id
            stay.failed_checks = 0 if ok else stay.failed_checks + 1
        assert self.tell(HealthCheckResult(check_id, backend, ok)) == []

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(number=st.sampled_from([-(10**6), 10**6]), error=st.sampled_from([None, "reset"]))
    def stale_events_come(self, number: int, error: str | None) -> None:
        for event in (
            AttemptEnded(number, error),
            ResponseHead(number, 200),
            ClientGone(number),
            TimerFired(number),
            HealthCheckResult(number, "gpu-0", False),
        ):
            assert self.tell(event) == []

    @precondition(lambda self: not self.stopping and self.numbers > 3)
    @rule()
    def shutdown_is_asked(self) -> None:
        self.stopping = True
        self.tell(ShutdownAsked())

    # --- what always holds ----------------------------------------------------------------------------

    @invariant()
    def every_client_that_stays_has_one_answer_or_an_attempt(self) -> None:
        assert all(count == 1 for count in self.answers.values() if count)
        in_flight = {attempt.request_id for attempt in self.live.values()}
        assert self.staying <= in_flight
        waiting = {attempt.request_id for attempt in self.live.values() if not attempt.committed}
        assert all(self.answers[number] == (number not in waiting) for number in self.staying)

    @invariant()
    def counters_say_what_is_in_flight(self) -> None:
        counts = Counter(attempt.backend for attempt in self.live.values())
        assert self.gateway.idle == (not self.live)
        loads = self.gateway._members._loads
        assert {name: loads.in_flight(name) for name in {*self.stays, *counts}} == {
            name: counts[name] for name in {*self.stays, *counts}
        }
        assert self.gateway._members.known == {*self.stays, *counts}

    @invariant()
    def exit_comes_exactly_with_the_last_attempt(self) -> None:
        assert self.exited == (self.stopping and not self.live)

    def teardown(self) -> None:
        """After all attempts ended, each request whose client stayed has one answer and no state is left."""
        for attempt_id in list(self.live):
            self.end(attempt_id, "reset")
        self.every_client_that_stays_has_one_answer_or_an_attempt()
        self.counters_say_what_is_in_flight()
        self.exit_comes_exactly_with_the_last_attempt()
        assert not self.staying


TestMachine = DriverMachine.TestCase
TestMachine.settings = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=80,
    stateful_step_count=60,
    suppress_health_check=list(HealthCheck),
)
