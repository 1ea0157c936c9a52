"""A state machine that drives the reference balancer with any events that the protocol allows, in any order.

The rules send events and the invariants hold for any settings: every action is allowed, each client that stays gets one
answer, counts equal the attempts in flight, cached sets and totals equal those computed from all members, and no state
is left at the end. A subclass chooses the settings and may check more in `check` and in invariants of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.settings import Settings
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
from tests.harness.balancer.driver import of_type

NAMES = ("gpu-0", "gpu-1", "gpu-2", "gpu-3")
MEMBERS = st.runner().flatmap(lambda machine: machine.memberships)
KINDS = (Kind.INFERENCE, Kind.INFERENCE, Kind.UPDATE)
REQUESTS = st.sampled_from(
    list(product(["", "m", "n", "o"], KINDS, ["", "", "s", "t"], ["normal", "high", "critical"]))
)
"""Model, kind, session and urgency in one draw, which is faster than four."""
ERRORS = ("refused", "reset", "timeout", "aborted")
STATUSES = st.sampled_from([200, 200, 404, 500, 503])
PICK = st.integers(0, 10_000)


@dataclass
class Live:
    """An attempt that has not ended. `joined`: number of its backend's join (see `GatewayMachine.members`).

    `cancelled`: not by the deadline of a drain, which leaves the attempt to the request: its answer may be committed,
    and it is cancelled again with the request. `late_head`: the head came after the attempt was cancelled.
    """

    request_id: int
    backend: str
    joined: int
    status: int = 0
    committed: bool = False
    cancelled: bool = False
    late_head: bool = False


class GatewayMachine(RuleBasedStateMachine):
    """Follows the protocol's rules as a driver does and checks every action."""

    chosen: ClassVar[Settings]
    seed: ClassVar[int]
    memberships: ClassVar[st.SearchStrategy[list[str]]] = st.lists(st.sampled_from(NAMES), unique=True)
    first_members: ClassVar[st.SearchStrategy[list[str]]] = memberships
    requests_before_shutdown: ClassVar[int]
    in_parallel: ClassVar[int] = 2
    """Most attempts of one request that may be in flight and not cancelled: one and a hedge."""

    def __init__(self) -> None:
        super().__init__()
        self.gateway = ReferenceGateway(self.chosen, Random(self.seed))
        self.now_s = 0.0
        self.requests = 0
        self.members: dict[str, int] = {}  # number of each member's latest join
        self.joins = 0
        self.staying: set[int] = set()  # requests whose client is present and has no complete answer
        self.answers: Counter[int] = Counter()
        self.live: dict[int, Live] = {}
        self.attempts: set[int] = set()
        self.timers: dict[int, float] = {}
        self.checks: dict[int, tuple[str, int]] = {}  # backend and number of its join
        self.checks_sent: set[int] = set()
        self.stopping = self.exited = False

    # --- the driver's side of the protocol -------------------------------------------------------------

    def handle(self, event: Event) -> list[Action]:
        """Send `event`, carry out and check the resulting actions, and return them."""
        actions = self.gateway.handle(event, self.now_s)
        for action in actions:
            self.carry_out(action, event)
        self.check(event, actions)
        return actions

    def check(self, event: Event, actions: list[Action]) -> None:
        """For subclasses: check the actions that `event` caused, after they were carried out."""

    def carry_out(self, action: Action, event: Event) -> None:
        match action:
            case Send():
                self.check_send(action)
                self.attempts.add(action.attempt_id)
                name = action.backend_id
                self.live[action.attempt_id] = Live(action.request_id, name, self.members[name])
            case Cancel(attempt_id) if isinstance(event, TimerFired):
                attempt = self.live[attempt_id]
                assert self.members.get(attempt.backend) != attempt.joined, (
                    "only the deadline of a drain cancels, of a backend that left"
                )
            case Cancel(attempt_id):
                assert not self.live[attempt_id].cancelled
                self.live[attempt_id].cancelled = True
            case Commit(request_id, attempt_id):
                attempt = self.live[attempt_id]
                assert attempt.request_id == request_id and attempt.status
                assert not attempt.committed and not attempt.cancelled
                attempt.committed = True
                self.answer(request_id)
            case Reply(request_id):
                self.answer(request_id)
                self.staying.discard(request_id)
            case SetTimer(timer_id, at_s):
                assert at_s >= min([self.now_s, *self.timers.values()]), "in the past, and no other timer is late"
                self.timers[timer_id] = at_s
            case CancelTimer(timer_id):
                del self.timers[timer_id]
            case SendHealthCheck(check_id, backend):
                assert check_id not in self.checks_sent and backend in self.members
                self.checks_sent.add(check_id)
                self.checks[check_id] = (backend, self.members[backend])
            case Exit():
                assert self.stopping and not self.live and not self.exited
                self.exited = True

    def check_send(self, send: Send) -> None:
        """Only for a client that waits, to a member, under a new id, in time, and beside at most a hedge."""
        assert send.request_id in self.staying and not self.answers[send.request_id]
        assert send.attempt_id not in self.attempts and send.backend_id in self.members
        assert 0 < send.timeout_s <= self.chosen.attempt_timeout_s
        in_parallel = len(self.uncancelled(send.request_id))
        assert in_parallel < self.in_parallel, f"{in_parallel} attempts in flight before {send}"

    def uncancelled(self, request_id: int) -> list[int]:
        return [key for key, item in self.live.items() if item.request_id == request_id and not item.cancelled]

    def answer(self, request_id: int) -> None:
        assert request_id in self.staying
        self.answers[request_id] += 1

    def head(self, attempt_id: int, status: int) -> None:
        attempt = self.live[attempt_id]
        attempt.status, attempt.late_head = status, attempt.cancelled
        self.handle(ResponseHead(attempt_id, status))

    def complete(self, attempt_id: int) -> None:
        """The answer's body is received; one that is not committed by then is aborted."""
        if not self.live[attempt_id].committed:
            self.handle(FirstByte(attempt_id))
        self.end(attempt_id, None if self.live[attempt_id].committed else "aborted")

    def end(self, attempt_id: int, error: str | None) -> None:
        attempt = self.live.pop(attempt_id)
        self.ended(attempt, error)
        self.handle(AttemptEnded(attempt_id, error))
        if attempt.committed:
            self.staying.discard(attempt.request_id)

    def ended(self, attempt: Live, error: str | None) -> None:
        """For subclasses: note the result of an attempt, before the gateway receives it."""

    # --- rules ----------------------------------------------------------------------------------------

    @initialize(members=st.runner().flatmap(lambda machine: machine.first_members))
    def begin(self, members: list[str]) -> None:
        self.change(members)

    @precondition(lambda self: not self.exited)
    @rule(members=MEMBERS)
    def change(self, members: list[str]) -> None:
        for name in set(self.members) - set(members):
            del self.members[name]
        for name in members:
            if name not in self.members:
                self.joins += 1
                self.members[name] = self.joins
        self.handle(MembershipChanged(tuple(Backend(name, name, weight=1.0 + (name == "gpu-1")) for name in members)))

    @precondition(lambda self: not self.exited)
    @rule(features=REQUESTS)
    def request_arrives(self, features: tuple[str, Kind, str, str]) -> None:
        self.arrive(*features)

    def arrive(self, model: str, kind: Kind = Kind.INFERENCE, session: str = "", urgency: str = "normal") -> None:
        self.requests += 1
        self.staying.add(self.requests)
        request = Request(self.requests, 1, kind, "POST", model, session, urgency, prompt_tokens=5)
        self.handle(RequestArrived(request))

    def equal_results(self, model: str, status: int, error: str | None, times: int, gap_s: float) -> None:
        """Send requests one after another that end at once with `status` (0: without a head) and `error`."""
        for _ in range(times):
            self.arrive(model)
            attempt_id = next(reversed(self.live), None)
            if attempt_id is None or self.live[attempt_id].request_id != self.requests:
                return
            if status:
                self.head(attempt_id, status)
            if error is None:
                self.complete(attempt_id)
            else:
                self.end(attempt_id, error)
            self.time_passes(gap_s)
            if self.exited:
                return

    @precondition(lambda self: any(not item.status for item in self.live.values()))
    @rule(pick=PICK, status=STATUSES)
    def head_comes(self, pick: int, status: int) -> None:
        headless = [key for key, item in self.live.items() if not item.status]
        self.head(headless[pick % len(headless)], status)

    @precondition(lambda self: any(item.status for item in self.live.values()))
    @rule(pick=PICK)
    def answer_is_whole(self, pick: int) -> None:
        with_head = [key for key, item in self.live.items() if item.status]
        self.complete(with_head[pick % len(with_head)])

    @precondition(lambda self: self.live)
    @rule(pick=PICK, error=st.sampled_from(ERRORS))
    def attempt_fails(self, pick: int, error: str) -> None:
        self.end(list(self.live)[pick % len(self.live)], error)

    @precondition(lambda self: self.staying)
    @rule(pick=PICK)
    def client_goes(self, pick: int) -> None:
        request_id = sorted(self.staying)[pick % len(self.staying)]
        self.staying.discard(request_id)
        waiting = self.uncancelled(request_id)
        actions = self.handle(ClientGone(request_id))
        assert of_type(Cancel, actions) == [Cancel(key) for key in waiting]

    def fire_next(self) -> None:
        self.fire(min(self.timers, key=lambda item: (self.timers[item], item)))

    def fire(self, timer_id: int) -> None:
        self.now_s = max(self.now_s, self.timers.pop(timer_id))
        self.handle(TimerFired(timer_id))

    @precondition(lambda self: self.checks)
    @rule(pick=PICK, ok=st.sampled_from([True, True, False]), queue_depth=st.sampled_from([None, 0, 1, 2, 3, 4]))
    def check_answers(self, pick: int, ok: bool, queue_depth: int | None) -> None:
        check_id = sorted(self.checks)[pick % len(self.checks)]
        name, joined = self.checks.pop(check_id)
        self.check_answered(check_id, name, joined, ok)
        report = Backend(name, name, queue_depth=queue_depth) if ok and queue_depth is not None else None
        assert self.handle(HealthCheckResult(check_id, name, ok, report)) == []

    def check_answered(self, check_id: int, name: str, joined: int, ok: bool) -> None:
        """For subclasses: note the result of a health check, before the gateway receives it."""

    @rule(seconds=st.sampled_from([0.05, 0.1, 0.5, 1.0, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: not self.stopping and self.requests > self.requests_before_shutdown)
    @rule()
    def shutdown_is_asked(self) -> None:
        self.stopping = True
        self.handle(ShutdownAsked())

    # --- invariants -----------------------------------------------------------------------------------

    @invariant()
    def each_client_has_one_answer_or_is_known(self) -> None:
        """An unanswered request has an attempt, a retry timer or a place in the queue: the gateway has a record."""
        assert all(count == 1 for count in self.answers.values() if count)
        known = self.gateway._exchanges
        assert all(number in known for number in self.staying if not self.answers[number])
        assert not known or not self.exited

    @invariant()
    def counts_equal_the_attempts_in_flight(self) -> None:
        counts = Counter(item.backend for item in self.live.values())
        members = self.gateway._members
        assert {name: members._loads.in_flight(name) for name in NAMES} == {name: counts[name] for name in NAMES}
        assert members.known == {*self.members, *counts}
        assert self.gateway.idle == (not self.live and not self.staying)

    @invariant()
    def exit_follows_the_last_request(self) -> None:
        assert self.exited == (self.stopping and not self.live and not self.staying)

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
                self.fire_next()
        assert not self.staying and not self.live and self.gateway.idle
        assert self.gateway._members._loads.total_in_flight == self.gateway._members._eligible.total == 0
        self.each_client_has_one_answer_or_is_known()
        self.counts_equal_the_attempts_in_flight()
        self.exit_follows_the_last_request()


def machine_settings(examples: int) -> settings:
    """Hypothesis settings: the same examples in every run."""
    return settings(
        derandomize=True,
        deadline=None,
        database=None,
        max_examples=examples,
        stateful_step_count=60,
        suppress_health_check=list(HealthCheck),
    )
