"""The simulated world: clients, network, backends and faults around a gateway, on one agenda.

Nothing here reads a clock or the global random source. The network takes `HOP_S` from anyone to anyone; a client that
waits for its only connection sends late and its latency counts from its intended time all the same.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from random import Random

from harness.arrivals import draw
from harness.balancer.crash import crash_line
from harness.balancer.protocol import (
    Action,
    AttemptEnded,
    Backend,
    BackendDrained,
    Cancel,
    CancelTimer,
    CheckUp,
    CheckUpResult,
    Commit,
    Event,
    Exit,
    FirstByte,
    Gateway,
    MembershipChanged,
    Reply,
    ResponseHead,
    Send,
    SetTimer,
    TimerFired,
)
from harness.history import History
from harness.load.wire import model_of
from harness.model import Echo, HarnessError, Kind, Scenario
from harness.sim.agenda import HOP_S, Agenda
from harness.sim.backend import Answered, AttemptRow, SimBackend
from harness.sim.clients import Clients, Reader
from harness.sim.evidence import Evidence
from harness.target import Target
from harness.timeline import (
    Blackhole,
    CutOff,
    Down,
    FailingStatus,
    Fault,
    Hang,
    Join,
    Kill,
    Latency,
    Leave,
    Membership,
    NotReady,
    OverCapacity,
    Reset,
    Slow,
    as_mock,
)
from mockgpu.events import Job
from mockgpu.faults import Change, from_json

PATIENCE_S = 2.0
"""Virtual seconds after the last client's time limit at which a run ends whatever is still open, as in live."""


def play(target: Target, scenario: Scenario, seed: int) -> History:
    """Play `scenario` against the target's gateway in virtual time. The same seed gives the same history."""
    return Simulation(target, scenario, seed).run()


@dataclass(slots=True)
class _Attempt:
    id: int
    request_id: int
    backend: SimBackend
    row: AttemptRow | None = None
    answer: Answered | None = None


class Simulation:
    """One run. `run` plays it to its end and gives its history."""

    def __init__(self, target: Target, scenario: Scenario, seed: int) -> None:
        self._scenario = scenario
        self._seed = seed
        self._agenda = Agenda()
        self._now = self._agenda.now
        self._gateway: Gateway = target.gateway(scenario.off, self._now, Random(f"{seed}/gateway"))
        self._backends = {
            f"gpu-{number}": SimBackend(number, scenario.server) for number in range(len(scenario.backend_ids))
        }
        self._arrivals = draw(scenario.load, seed)
        self._evidence = Evidence(scenario, seed, self._arrivals)
        see = Reader(scenario.load.key_carrier, target.claims, seed)
        self._clients = Clients(
            self._agenda, self._arrivals, self._evidence.requests, len(scenario.load.streams), see, self._tell
        )
        self._attempts: dict[int, _Attempt] = {}
        self._timers: dict[int, float] = {}
        self._changes: list[Membership] = []
        self._events: deque[Event] = deque()
        self._busy = False
        self._leaving = 0  # clients of attempts that are gone, which the backend has yet to see
        self._wakes: dict[str, float] = {}

    def run(self) -> History:
        """Play to the end. HarnessError if nothing is scheduled though something is open."""
        self._clients.begin()
        for step in self._scenario.timeline:
            self._agenda.at(step.at_s, partial(self._step, step))
        self._tell(self._membership())
        longest_s = max((stream.timeout_s for stream in self._scenario.load.streams), default=0.0)
        last_s = self._scenario.end_s + longest_s + PATIENCE_S
        while self._clients.open or self._now.now_s < self._scenario.end_s or self._attempts or self._leaving:
            if self._evidence.died is not None:
                break
            next_s = self._agenda.next_s
            if next_s is None and (self._clients.open or self._attempts):
                raise HarnessError(
                    f"the simulation is stuck at {self._now.now_s:.3f} s: {self._clients.open} requests and"
                    f" {len(self._attempts)} attempts are open and nothing is scheduled"
                )
            if next_s is None or next_s > last_s:
                break
            self._agenda.advance()
        return self._evidence.history(list(self._backends.values()))

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
                    actions = list(self._gateway.handle(following, self._now.now_s))
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # a balancer that calls sys.exit has died, and pytest goes on
                    self._evidence.died = crash_line(error, following)
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
                self._agenda.later(HOP_S, lambda: self._clients.answered(request_id, status, -1, Echo.NONE))
            case SetTimer(timer_id, at_s):
                self._timers[timer_id] = at_s
                self._agenda.at(at_s, lambda: self._timer(timer_id, at_s))
            case CancelTimer(timer_id):
                self._timers.pop(timer_id, None)
            case CheckUp():
                self._agenda.later(HOP_S, lambda: self._check_up(action))
            case Exit() | BackendDrained():
                pass

    def _timer(self, timer_id: int, at_s: float) -> None:
        if self._timers.get(timer_id) == at_s:
            del self._timers[timer_id]
            self._tell(TimerFired(timer_id))

    # --- attempts -----------------------------------------------------------------------------------------

    def _send(self, send: Send) -> None:
        backend = self._backends.get(send.backend_id)
        if backend is None:  # no such address, which ends as in live
            self._agenda.later(HOP_S, lambda: self._tell(AttemptEnded(send.attempt_id, "reset")))
            return
        attempt = _Attempt(send.attempt_id, send.request_id, backend)
        self._attempts[attempt.id] = attempt
        self._agenda.later(send.timeout_s, lambda: self._end(attempt, "timeout"))
        self._agenda.later(HOP_S, lambda: self._reach(attempt))

    def _reach(self, attempt: _Attempt) -> None:
        """An attempt gets to its backend, or to the fault in front of it."""
        backend = attempt.backend
        if attempt.id not in self._attempts or backend.silent:
            return
        if not backend.reachable or backend.resetting:
            error = "reset" if backend.reachable else "refused"
            self._agenda.later(HOP_S, lambda: self._end(attempt, error))
            return
        arrival = self._arrivals[attempt.request_id]
        update = arrival.kind is Kind.UPDATE
        job = Job(
            id=attempt.id,
            model=model_of(arrival, self._scenario.load.key_carrier, self._seed),
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
            self._agenda.later(HOP_S + backend.delay_s, partial(self._head, attempt, answer))
        wake_s = backend.wake_s()
        if wake_s is not None and self._wakes.get(backend.id) != wake_s:
            self._wakes[backend.id] = wake_s
            self._agenda.at(wake_s, lambda: self._wake(backend, wake_s))

    def _wake(self, backend: SimBackend, wake_s: float) -> None:
        if self._wakes.get(backend.id) == wake_s:
            del self._wakes[backend.id]
            self._advance(backend)

    def _head(self, attempt: _Attempt, answer: Answered) -> None:
        if attempt.id in self._attempts:
            attempt.answer = answer
            self._tell(ResponseHead(attempt.id, answer.status, answer.retry_after_s))
        if attempt.id in self._attempts:  # neither committed nor cancelled: the gateway waits for the first byte
            if answer.cut_after_tokens == 0:
                self._end(attempt, "reset")
            else:
                self._tell(FirstByte(attempt.id))

    def _commit(self, request_id: int, attempt_id: int) -> None:
        """Pass the body on. That it breaks off shows only now, as in live, and breaks the client's transfer too."""
        attempt = self._attempts.get(attempt_id)
        if attempt is None or attempt.answer is None:
            return
        status, number = attempt.answer.status, attempt.backend.number
        if attempt.answer.cut_after_tokens is not None:
            self._agenda.later(HOP_S, lambda: self._clients.truncated(request_id, status, number))
            self._end(attempt, "reset")
            return
        echo = Echo.OWN if attempt.request_id == request_id else Echo.OTHER
        if status != 200:
            echo = Echo.NONE  # an error's body repeats nothing
        self._agenda.later(HOP_S, lambda: self._clients.answered(request_id, status, number, echo))
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
            self._agenda.later(HOP_S, lambda: self._hang_up(attempt))
        self._tell(AttemptEnded(attempt.id, error))

    def _hang_up(self, attempt: _Attempt) -> None:
        self._leaving -= 1
        attempt.backend.leave(self._now.now_s, attempt.id)
        self._advance(attempt.backend)

    # --- check-ups ----------------------------------------------------------------------------------------

    def _check_up(self, check: CheckUp) -> None:
        backend = self._backends[check.backend_id]
        if backend.silent or backend.delay_s + 2 * HOP_S > check.timeout_s:
            self._agenda.later(check.timeout_s - HOP_S, lambda: self._checked(check, False, None))
            return
        if not backend.reachable or backend.resetting:
            self._agenda.later(HOP_S, lambda: self._checked(check, False, None))
            return
        self._advance(backend)
        report = backend.report()
        self._evidence.check_ups.append((backend.number, 200 if report.ready else 503, self._now.now_s))
        self._agenda.later(HOP_S + backend.delay_s, lambda: self._checked(check, report.ready, report))

    def _checked(self, check: CheckUp, ok: bool, report: Backend | None) -> None:
        self._tell(CheckUpResult(check.check_id, check.backend_id, ok, report))

    # --- the timeline -------------------------------------------------------------------------------------

    def _membership(self) -> MembershipChanged:
        names = self._scenario.members(self._changes)
        return MembershipChanged(tuple(Backend(id=name, address=name) for name in names))

    def _step(self, step: Fault | Membership) -> None:
        now_s = self._now.now_s
        number = self._backends[step.backend].number
        if isinstance(step, Leave | Join):
            self._changes.append(step)
            self._evidence.step(step, number, now_s, float("nan"))
            self._tell(self._membership())
            return
        healed_s = now_s + step.for_s if step.for_s is not None else float("nan")
        self._evidence.step(step, number, now_s, healed_s)
        self._set(step, on=True)
        if step.for_s is not None:
            self._agenda.later(step.for_s, lambda: self._set(step, on=False))

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
            case FailingStatus() | OverCapacity() | Slow() | Hang() | CutOff() | NotReady():
                if on and not backend.alive:
                    raise HarnessError(f"{fault} cannot be set: {backend.id} is dead then; let it begin later")
                words = from_json(as_mock(fault, self._seed))
                change = Change(set=(words,)) if on else Change(clear=frozenset({words.kind}))
                released = backend.change_faults(self._now.now_s, change)
                self._break_off(() if backend.silent else released)

    def _break_off(self, attempt_ids: tuple[int, ...]) -> None:
        for attempt_id in attempt_ids:
            if attempt_id in self._attempts:  # else it was given up just now, and the backend has yet to see that
                self._agenda.later(HOP_S, partial(self._end, self._attempts[attempt_id], "reset"))
