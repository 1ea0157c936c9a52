"""The simulated world: clients, network, backends and faults around a gateway, on one agenda.

Nothing here reads a clock or the global random source. The network takes `HOP_S` from anyone to anyone; a client that
waits for its only connection sends late and its latency counts from its intended time all the same.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
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
from harness.model import Echo, Failure, HarnessError, Kind, Scenario
from harness.sim.agenda import HOP_S, Agenda
from harness.sim.backend import Answered, AttemptRow, SimBackend
from harness.sim.clients import Answer, Clients, Reader
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

UPDATE, OWN, NONE = Kind.UPDATE, Echo.OWN, Failure.NONE
"""Looked up once: to ask an enum for its member takes longer than to compare with it."""

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
    done: bool = False


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

    def run(self) -> History:
        """Play to the end. HarnessError if nothing is scheduled though something is open."""
        self._clients.begin()
        for step in self._scenario.timeline:
            self._agenda.at(step.at_s, self._step, step)
        self._tell(self._membership())
        longest_s = max((stream.timeout_s for stream in self._scenario.load.streams), default=0.0)
        last_s = self._scenario.end_s + longest_s + PATIENCE_S
        clients, agenda, evidence = self._clients, self._agenda, self._evidence
        while clients.open or self._now.now_s < self._scenario.end_s or self._attempts or self._leaving:
            if evidence.died is not None or not agenda.advance(last_s):
                break
        if agenda.empty and evidence.died is None and (clients.open or self._attempts):
            raise HarnessError(
                f"the simulation is stuck at {self._now.now_s:.3f} s: {clients.open} requests and"
                f" {len(self._attempts)} attempts are open and nothing is scheduled"
            )
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
            case Commit():
                self._commit(action.request_id, action.attempt_id)
            case Cancel():
                self._cancel(action.attempt_id)
            case Reply():
                self._answer((action.request_id, action.status, -1, Echo.NONE, Failure.NONE))
            case SetTimer():
                self._timers[action.timer_id] = action.at_s
                self._agenda.at(action.at_s, self._timer, action)
            case CancelTimer():
                self._timers.pop(action.timer_id, None)
            case CheckUp():
                self._agenda.hop(self._check_up, action)
            case Exit() | BackendDrained():
                pass

    def _timer(self, timer: SetTimer) -> None:
        if self._timers.get(timer.timer_id) == timer.at_s:
            del self._timers[timer.timer_id]
            self._tell(TimerFired(timer.timer_id))

    # --- attempts -----------------------------------------------------------------------------------------

    def _send(self, send: Send) -> None:
        backend = self._backends.get(send.backend_id)
        if backend is None:  # no such address, which ends as in live
            self._agenda.hop(self._tell, AttemptEnded(send.attempt_id, "reset"))
            return
        attempt = _Attempt(send.attempt_id, send.request_id, backend)
        self._attempts[attempt.id] = attempt
        self._agenda.limit(send.timeout_s, self._time_out, attempt)
        self._agenda.hop(self._reach, attempt)

    def _reach(self, attempt: _Attempt) -> None:
        """An attempt gets to its backend, or to the fault in front of it."""
        backend = attempt.backend
        if attempt.done or backend.silent:
            return
        if not backend.reachable or backend.resetting:
            self._agenda.hop(self._reset if backend.reachable else self._refuse, attempt)
            return
        arrival, now_s = self._arrivals[attempt.request_id], self._now.now_s
        if arrival.kind is UPDATE:
            job = Job(attempt.id, "", "update", 0, 0)
        else:
            model = model_of(arrival, self._scenario.load.key_carrier, self._seed)
            job = Job(attempt.id, model, "inference", arrival.prompt_tokens, arrival.output_tokens)
        attempt.row = AttemptRow(attempt.request_id, backend.number, arrival.kind, now_s)
        backend.arrive(now_s, attempt.id, attempt.row, job)
        self._advance(backend)

    def _advance(self, backend: SimBackend) -> None:
        """Take what the backend has ready, and come back when something happens next."""
        for answer in backend.advance(self._now.now_s):
            attempt = self._attempts.get(answer.attempt_id)
            if attempt is None or backend.silent:
                continue
            if backend.delay_s:
                self._agenda.later(HOP_S + backend.delay_s, self._head, (attempt, answer))
            else:
                self._agenda.hop(self._head, (attempt, answer))
        wake_s = backend.wake_s()
        if wake_s is not None and wake_s != backend.woken_s:
            backend.woken_s = wake_s
            self._agenda.at(wake_s, self._wake, (backend, wake_s))

    def _wake(self, due: tuple[SimBackend, float]) -> None:
        backend, wake_s = due
        if wake_s == backend.woken_s:
            backend.woken_s = None
            self._advance(backend)

    def _head(self, coming: tuple[_Attempt, Answered]) -> None:
        attempt, answer = coming
        if not attempt.done:
            attempt.answer = answer
            self._tell(ResponseHead(attempt.id, answer.status, answer.retry_after_s))
        if not attempt.done:  # neither committed nor cancelled: the gateway waits for the first byte
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
            self._answer((request_id, status, number, Echo.NONE, Failure.TRUNCATED))
            self._end(attempt, "reset")
            return
        echo = OWN if attempt.request_id == request_id else Echo.OTHER
        if status != 200 or attempt.answer.unreadable:
            echo = Echo.NONE  # an error's body repeats nothing
        self._answer((request_id, status, number, echo, NONE))
        self._end(attempt, None)

    def _answer(self, answer: Answer) -> None:
        self._agenda.hop(self._clients.answered, answer)

    def _cancel(self, attempt_id: int) -> None:
        attempt = self._attempts.get(attempt_id)
        if attempt is not None:
            self._end(attempt, "aborted")

    def _time_out(self, attempt: _Attempt) -> None:
        self._end(attempt, "timeout")

    def _reset(self, attempt: _Attempt) -> None:
        self._end(attempt, "reset")

    def _refuse(self, attempt: _Attempt) -> None:
        self._end(attempt, "refused")

    def _end(self, attempt: _Attempt, error: str | None) -> None:
        """End an attempt exactly once; a backend that still works on it sees its client go."""
        if attempt.done:
            return
        attempt.done = True
        del self._attempts[attempt.id]
        if attempt.row is not None and error is not None:
            self._leaving += 1
            self._agenda.hop(self._hang_up, attempt)
        self._tell(AttemptEnded(attempt.id, error))

    def _hang_up(self, attempt: _Attempt) -> None:
        self._leaving -= 1
        attempt.backend.leave(self._now.now_s, attempt.id)
        self._advance(attempt.backend)

    # --- check-ups ----------------------------------------------------------------------------------------

    def _check_up(self, check: CheckUp) -> None:
        backend = self._backends[check.backend_id]
        failed = CheckUpResult(check.check_id, check.backend_id, ok=False)
        if backend.silent or backend.delay_s + 2 * HOP_S > check.timeout_s:
            self._agenda.later(check.timeout_s - HOP_S, self._tell, failed)
            return
        if not backend.reachable or backend.resetting:
            self._agenda.hop(self._tell, failed)
            return
        self._advance(backend)
        report = backend.report()
        self._evidence.check_ups.append((backend.number, 200 if report.ready else 503, self._now.now_s))
        said = None if backend.unreadable else report
        answer = CheckUpResult(check.check_id, check.backend_id, report.ready, said)
        self._agenda.later(HOP_S + backend.delay_s, self._tell, answer)

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
            self._agenda.later(step.for_s, self._heal, step)

    def _heal(self, fault: Fault) -> None:
        self._set(fault, on=False)

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
                self._agenda.hop(self._reset, self._attempts[attempt_id])
