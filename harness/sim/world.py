"""The simulated world: clients, network, backends and faults around a gateway, on one heap of events.

Nothing here reads a clock or the global random source. Equal times keep the order in which they were scheduled. The
network takes `HOP_S` from anyone to anyone; a client that waits for its only connection sends late and its latency
counts from its intended time all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from random import Random

from harness.arrivals import Arrival, draw, key_name
from harness.balancer.protocol import (
    Action,
    AttemptEnded,
    Backend,
    Cancel,
    CancelTimer,
    CheckUp,
    CheckUpResult,
    ClientGone,
    Commit,
    Event,
    Exit,
    Gateway,
    MembershipChanged,
    NowFunction,
    Reply,
    Request,
    RequestArrived,
    ResponseHead,
    Send,
    SetTimer,
    TimerFired,
)
from harness.history import History
from harness.model import (
    Blackhole,
    Down,
    Echo,
    Failure,
    Fault,
    HarnessError,
    Join,
    Kill,
    Kind,
    Latency,
    Leave,
    Membership,
    Method,
    Reset,
    Scenario,
)
from harness.sim.backend import AttemptRow, SimBackend
from harness.sim.evidence import ClientRow, Evidence
from harness.target import Target
from mockgpu.events import Job

HOP_S = 0.0001
PATIENCE_S = 2.0
"""Virtual seconds after the last client's time limit at which a run ends whatever is still open, as in live."""

OPENAI_DEFAULT_MODEL = "default"


def play(target: Target, scenario: Scenario, seed: int) -> History:
    """Play `scenario` against the target's gateway in virtual time. The same seed gives the same history."""
    return Simulation(target, scenario, seed).run()


@dataclass(slots=True)
class _Attempt:
    id: int
    request_id: int
    backend: SimBackend
    row: AttemptRow | None = None
    status: int = 0
    body_here: bool = False


class Simulation:
    """One run. `run` plays it to its end and gives its history."""

    def __init__(self, target: Target, scenario: Scenario, seed: int) -> None:
        self._scenario = scenario
        self._seed = seed
        self._now = NowFunction()
        self._gateway: Gateway = target.gateway(scenario.off, self._now, Random(f"{seed}/gateway"))
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._backends = {
            f"gpu-{number}": SimBackend(number, scenario.server) for number in range(len(scenario.backend_ids))
        }
        self._arrivals = draw(scenario.load, seed)
        self._evidence = Evidence(scenario, seed, self._arrivals)
        self._attempts: dict[int, _Attempt] = {}
        self._timers: dict[int, float] = {}
        self._changes: list[Membership] = []
        self._events: deque[Event] = deque()
        self._busy = False
        self._open_requests = len(self._arrivals)
        self._leaving = 0  # clients of attempts that are gone, which the backend has yet to see
        self._idle_connections: list[int] = []
        self._connections = len(scenario.load.streams)
        self._queues: dict[int, deque[Arrival]] = {}
        self._connection_of: dict[int, int] = {}
        self._wakes: dict[str, float] = {}

    # --- the heap -----------------------------------------------------------------------------------------

    def run(self) -> History:
        """Play to the end. HarnessError if nothing is scheduled though something is open."""
        for arrival in self._arrivals:
            self._at(arrival.at_s, partial(self._due, arrival))
        for step in self._scenario.timeline:
            self._at(step.at_s, partial(self._step, step))
        self._tell(self._membership())
        longest_s = max((stream.timeout_s for stream in self._scenario.load.streams), default=0.0)
        last_s = self._scenario.end_s + longest_s + PATIENCE_S
        while self._open_requests or self._now.now_s < self._scenario.end_s or self._attempts or self._leaving:
            if self._evidence.died is not None:
                break
            if not self._heap and (self._open_requests or self._attempts):
                raise HarnessError(
                    f"the simulation is stuck at {self._now.now_s:.3f} s: {self._open_requests} requests and"
                    f" {len(self._attempts)} attempts are open and nothing is scheduled"
                )
            if not self._heap or self._heap[0][0] > last_s:
                break
            self._now.now_s, _, act = heappop(self._heap)
            act()
        return self._evidence.history(list(self._backends.values()))

    def _at(self, at_s: float, act: Callable[[], None]) -> None:
        self._order += 1
        heappush(self._heap, (max(at_s, self._now.now_s), self._order, act))

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        self._at(self._now.now_s + delay_s, act)

    # --- the gateway --------------------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        """Hand an event to the gateway; events that its actions cause wait their turn."""
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._events and self._evidence.died is None:
                following = self._events.popleft()
                try:
                    actions = self._gateway.handle(following, self._now.now_s)
                except Exception as error:
                    self._evidence.died = f"{type(error).__name__}: {error} (on {type(following).__name__})"
                    return
                for action in actions:
                    self._carry_out(action)
        finally:
            self._busy = False

    def _carry_out(self, action: Action) -> None:
        match action:
            case Send():
                self._send(action)
            case Cancel(attempt_id):
                self._cancel(attempt_id)
            case Commit(request_id, attempt_id):
                self._commit(request_id, attempt_id)
            case Reply(request_id, status):
                self._later(HOP_S, lambda: self._answer(request_id, status, None, Echo.NONE))
            case SetTimer(timer_id, at_s):
                self._timers[timer_id] = at_s
                self._at(at_s, lambda: self._timer(timer_id, at_s))
            case CancelTimer(timer_id):
                self._timers.pop(timer_id, None)
            case CheckUp():
                self._later(HOP_S, lambda: self._check_up(action))
            case Exit():
                pass

    def _timer(self, timer_id: int, at_s: float) -> None:
        if self._timers.get(timer_id) == at_s:
            del self._timers[timer_id]
            self._tell(TimerFired(timer_id))

    # --- clients ------------------------------------------------------------------------------------------

    def _due(self, arrival: Arrival) -> None:
        if arrival.connection < 0:
            if arrival.fresh or not self._idle_connections:
                self._connections += 1
                self._start(arrival, self._connections)
            else:
                self._start(arrival, self._idle_connections.pop())
            return
        queue = self._queues.setdefault(arrival.connection, deque())
        queue.append(arrival)
        if len(queue) == 1:
            self._start(arrival, arrival.connection)

    def _start(self, arrival: Arrival, connection: int) -> None:
        row = self._evidence.requests[arrival.number]
        row.sent_s, row.failure = self._now.now_s, Failure.OTHER  # stays so if the run ends first, as in live
        self._connection_of[arrival.number] = connection
        model = key_name(self._seed, arrival.key) if arrival.key >= 0 else OPENAI_DEFAULT_MODEL
        request = Request(
            id=arrival.number,
            connection=connection,
            kind=arrival.kind,
            method=Method(arrival.method).name,
            model=model if arrival.kind is Kind.INFERENCE else "",
            prompt_tokens=arrival.prompt_tokens,
        )
        self._later(HOP_S, lambda: self._tell(RequestArrived(request)))
        self._later(arrival.timeout_s, lambda: self._give_up(arrival.number))

    def _give_up(self, number: int) -> None:
        row = self._evidence.requests[number]
        if not row.done:
            row.failure, row.end_s = Failure.TIMEOUT, self._now.now_s
            self._done(number, row)
            self._later(HOP_S, lambda: self._tell(ClientGone(number)))

    def _answer(self, number: int, status: int, backend: SimBackend | None, echo: Echo) -> None:
        row = self._evidence.requests[number]
        if row.done:
            return
        row.status, row.first_byte_s, row.end_s, row.echo = status, self._now.now_s, self._now.now_s, echo
        row.answered_by, row.failure = backend.number if backend else -1, Failure.NONE
        self._done(number, row)

    def _done(self, number: int, row: ClientRow) -> None:
        row.done = True
        self._open_requests -= 1
        connection = self._connection_of.pop(number)
        queue = self._queues.get(connection)
        if queue is None:
            if not self._arrivals[number].fresh:
                self._idle_connections.append(connection)
            return
        queue.popleft()
        if queue:
            self._start(queue[0], connection)

    # --- attempts -----------------------------------------------------------------------------------------

    def _send(self, send: Send) -> None:
        backend = self._backends.get(send.backend_id)
        if backend is None:  # no such address, which ends as in live
            self._later(HOP_S, lambda: self._tell(AttemptEnded(send.attempt_id, "reset")))
            return
        attempt = _Attempt(send.attempt_id, send.request_id, backend)
        self._attempts[attempt.id] = attempt
        self._later(send.timeout_s, lambda: self._end(attempt, "timeout"))
        self._later(HOP_S, lambda: self._reach(attempt))

    def _reach(self, attempt: _Attempt) -> None:
        """An attempt gets to its backend, or to the fault in front of it."""
        backend = attempt.backend
        if attempt.id not in self._attempts or backend.silent:
            return
        if not backend.reachable or backend.resetting:
            error = "reset" if backend.reachable else "refused"
            self._later(HOP_S, lambda: self._end(attempt, error))
            return
        arrival = self._arrivals[attempt.request_id]
        model = key_name(self._seed, arrival.key) if arrival.key >= 0 else OPENAI_DEFAULT_MODEL
        update = arrival.kind is Kind.UPDATE
        job = Job(
            id=attempt.id,
            model="" if update else model,
            kind="update" if update else "inference",
            prompt_tokens=0 if update else arrival.prompt_tokens,
            output_tokens=0 if update else arrival.output_tokens,
        )
        attempt.row = AttemptRow(attempt.request_id, backend.number, int(arrival.kind), self._now.now_s)
        backend.arrive(self._now.now_s, attempt.id, attempt.row, job)
        self._advance(backend)

    def _advance(self, backend: SimBackend) -> None:
        """Take what the backend has ready, and come back when something happens next."""
        for answer in backend.advance(self._now.now_s):
            attempt = self._attempts.get(answer.attempt_id)
            if attempt is None or backend.silent:
                continue
            self._later(HOP_S + backend.delay_s, partial(self._head, attempt, answer.status))
        wake_s = backend.wake_s()
        if wake_s is not None and self._wakes.get(backend.id) != wake_s:
            self._wakes[backend.id] = wake_s
            self._at(wake_s, lambda: self._wake(backend, wake_s))

    def _wake(self, backend: SimBackend, wake_s: float) -> None:
        if self._wakes.get(backend.id) == wake_s:
            del self._wakes[backend.id]
            self._advance(backend)

    def _head(self, attempt: _Attempt, status: int) -> None:
        if attempt.id in self._attempts:
            attempt.status, attempt.body_here = status, True
            self._tell(ResponseHead(attempt.id, status))

    def _commit(self, request_id: int, attempt_id: int) -> None:
        attempt = self._attempts.get(attempt_id)
        if attempt is None or not attempt.body_here:
            return
        echo = Echo.OWN if attempt.request_id == request_id else Echo.OTHER
        status = attempt.status
        backend = attempt.backend
        self._later(HOP_S, lambda: self._answer(request_id, status, backend, echo))
        self._end(attempt, None)

    def _cancel(self, attempt_id: int) -> None:
        attempt = self._attempts.get(attempt_id)
        if attempt is not None:
            self._end(attempt, "aborted")

    def _end(self, attempt: _Attempt, error: str | None) -> None:
        """End an attempt exactly once; a backend that still works on it sees its client go."""
        if self._attempts.pop(attempt.id, None) is None:
            return
        if attempt.row is not None and error is not None:
            self._leaving += 1
            self._later(HOP_S, lambda: self._hang_up(attempt))
        self._tell(AttemptEnded(attempt.id, error))

    def _hang_up(self, attempt: _Attempt) -> None:
        self._leaving -= 1
        attempt.backend.leave(self._now.now_s, attempt.id)
        self._advance(attempt.backend)

    # --- check-ups ----------------------------------------------------------------------------------------

    def _check_up(self, check: CheckUp) -> None:
        backend = self._backends[check.backend_id]
        if backend.silent or backend.delay_s + 2 * HOP_S > check.timeout_s:
            self._later(check.timeout_s - HOP_S, lambda: self._checked(check, False, None))
            return
        if not backend.reachable or backend.resetting:
            self._later(HOP_S, lambda: self._checked(check, False, None))
            return
        self._advance(backend)
        report = backend.report()
        self._evidence.check_ups.append((backend.number, 200 if report.ready else 503, self._now.now_s))
        self._later(HOP_S + backend.delay_s, lambda: self._checked(check, report.ready, report))

    def _checked(self, check: CheckUp, ok: bool, report: Backend | None) -> None:
        self._tell(CheckUpResult(check.check_id, check.backend_id, ok, report))

    # --- the timeline -------------------------------------------------------------------------------------

    def _membership(self) -> MembershipChanged:
        names = self._scenario.members(self._changes)
        return MembershipChanged(tuple(Backend(id=name, address=name) for name in names))

    def _step(self, step: Fault | Membership) -> None:
        now_s = self._now.now_s
        number = self._backends[step.backend].number
        match step:
            case Leave() | Join():
                self._changes.append(step)
                self._evidence.step(step, number, now_s, float("nan"))
                self._tell(self._membership())
            case Kill() | Down() | Latency() | Blackhole() | Reset():
                healed_s = now_s + step.for_s if step.for_s is not None else float("nan")
                self._evidence.step(step, number, now_s, healed_s)
                self._set(step, on=True)
                if step.for_s is not None:
                    self._later(step.for_s, lambda: self._set(step, on=False))

    def _set(self, fault: Fault, on: bool) -> None:
        """Begin or heal a fault."""
        backend = self._backends[fault.backend]
        match fault:
            case Kill():
                inside = backend.kill() if on else ()
                backend.alive = not on
                self._break_off(inside)
            case Down():
                backend.up = not on
                self._break_off(backend.inside if on else ())
            case Latency():
                backend.delay_s = fault.latency_s if on else 0.0
            case Blackhole():
                backend.silent = on
            case Reset():
                backend.resetting = on
                self._break_off(backend.inside if on else ())

    def _break_off(self, attempt_ids: tuple[int, ...]) -> None:
        for attempt_id in attempt_ids:
            if attempt_id in self._attempts:  # else it was given up just now, and the backend has yet to see that
                self._later(HOP_S, partial(self._end, self._attempts[attempt_id], "reset"))
