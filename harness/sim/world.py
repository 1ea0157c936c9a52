"""The simulated world: clients, network, backends and faults around a gateway, on one event queue.

Nothing here reads a clock or the global random source. The network takes `NETWORK_DELAY_S` each way; a client that
waits for its only connection sends late and its latency counts from its intended time all the same.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from random import Random

from harness.evidence.history import History
from harness.gateway.crash_report import crash_line
from harness.gateway.protocol import (
    Action,
    AttemptEnded,
    BackendDrained,
    Cancel,
    CancelTimer,
    Commit,
    Event,
    Exit,
    FirstByte,
    Gateway,
    HealthCheckResult,
    Reply,
    ResponseHead,
    Send,
    SendHealthCheck,
    SetTimer,
    TimerFired,
)
from harness.load.wire import model_of
from harness.scenario.arrivals import draw
from harness.scenario.closed_loop import VirtualUsers
from harness.scenario.model import Echo, Failure, HarnessError, Kind, Scenario
from harness.sim.backend import AttemptRow, NetworkAttempt, ReadyAnswer, SimBackend
from harness.sim.clients import Answer, Clients, Reader
from harness.sim.event_queue import NETWORK_DELAY_S, EventQueue
from harness.sim.evidence import Evidence
from harness.sim.link import HEAD_BYTES, REPORT_BYTES, answer_bytes
from harness.sim.timeline_runner import TimelineRunner
from harness.targets.base import Target
from mockgpu.gpu.events import Job

UPDATE, OWN, NONE = Kind.UPDATE, Echo.OWN, Failure.NONE
"""Looked up once: to ask an enum for its member takes longer than to compare with it."""

PATIENCE_S = 2.0
"""Virtual seconds after the last client's time limit at which a run ends whatever is still open, as in live."""


def play(target: Target, scenario: Scenario, seed: int) -> History:
    """Play `scenario` against the target's gateway in virtual time. The same seed gives the same history."""
    return Simulation(target, scenario, seed).run()


@dataclass(slots=True)
class _Asked:
    """A health check at a backend. Its answer comes `delay_s` later than it is sent, `whole` or broken off."""

    check: SendHealthCheck
    backend: SimBackend
    delay_s: float
    whole: bool
    done: bool = False


class Simulation:
    """One run. `run` plays it to its end and gives its history."""

    def __init__(self, target: Target, scenario: Scenario, seed: int) -> None:
        self._scenario = scenario
        self._seed = seed
        self._event_queue = EventQueue()
        self._now = self._event_queue.now
        self._gateway: Gateway = target.gateway(scenario.off, self._now, Random(f"{seed}/gateway"))
        self._backends = {
            f"gpu-{number}": SimBackend(number, scenario.server, seed) for number in range(len(scenario.backend_ids))
        }
        self._arrivals = list(draw(scenario.load, seed))
        self._evidence = Evidence(scenario, seed, self._arrivals)
        see = Reader(scenario.load.key_carrier, target.claims, seed)
        self._clients = Clients(
            self._event_queue,
            self._arrivals,
            VirtualUsers(scenario.load, seed, first=len(self._arrivals)),
            self._evidence.requests,
            len(scenario.load.streams),
            see,
            self._tell,
        )
        self._attempts: dict[int, NetworkAttempt] = {}
        self._timers: dict[int, float] = {}
        self._health_path = target.health_path
        self._timeline = TimelineRunner(
            scenario,
            seed,
            self._event_queue,
            self._evidence,
            self._backends,
            self._attempts,
            tell=self._tell,
            reset=self._reset,
            advance=self._advance,
        )
        self._events: deque[Event] = deque()
        self._busy = False
        self._leaving = 0  # clients of attempts that are gone, which the backend has yet to see

    def run(self) -> History:
        """Play to the end. HarnessError if nothing is scheduled though something is open."""
        self._clients.begin()
        self._timeline.begin()
        self._tell(self._timeline.membership())
        longest_s = max((stream.timeout_s for stream in self._scenario.load.streams), default=0.0)
        last_s = self._scenario.end_s + longest_s + PATIENCE_S
        clients, event_queue, evidence = self._clients, self._event_queue, self._evidence
        while clients.open or self._now.now_s < self._scenario.end_s or self._attempts or self._leaving:
            if evidence.died is not None or not event_queue.advance(last_s):
                break
        if event_queue.empty and evidence.died is None and (clients.open or self._attempts):
            raise HarnessError(
                f"the simulation is stuck at {self._now.now_s:.3f} s: {clients.open} requests and"
                f" {len(self._attempts)} attempts are open and nothing is scheduled"
            )
        self._timeline.finish()
        return self._evidence.history(list(self._backends.values()))

    # --- the gateway --------------------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        """Hand an event to the gateway; event_queue that its actions cause wait their turn."""
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
                self._event_queue.at(action.at_s, self._timer, action)
            case CancelTimer():
                self._timers.pop(action.timer_id, None)
            case SendHealthCheck():
                self._event_queue.after_network_delay(self._health_check, action)
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
            self._event_queue.after_network_delay(self._tell, AttemptEnded(send.attempt_id, "reset"))
            return
        attempt = NetworkAttempt(send.attempt_id, send.request_id, backend)
        self._attempts[attempt.id] = attempt
        self._event_queue.limit(send.timeout_s, self._time_out, attempt)
        self._event_queue.after_network_delay(self._reach, attempt)

    def _reach(self, attempt: NetworkAttempt) -> None:
        """An attempt gets to its backend, or to the fault in front of it."""
        backend = attempt.backend
        way = backend.way
        if attempt.done:
            return
        if not backend.reachable:
            self._event_queue.after_network_delay(self._refuse, attempt)
        elif way.silent:
            self._timeline.swallow(attempt)
        elif way.resetting:
            self._event_queue.after_network_delay(self._reset, attempt)
        elif backend.paused:
            backend.waiting.append((self._arrive, attempt))
        else:
            self._arrive(attempt)

    def _arrive(self, attempt: NetworkAttempt) -> None:
        """An attempt is read by its backend, unless it was given up while that was paused."""
        if attempt.done:
            return
        backend = attempt.backend
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
        if backend.paused:
            return
        way = backend.way
        for answer in backend.advance(self._now.now_s):
            attempt = self._attempts.get(answer.attempt_id)
            if attempt is None or way.silent:
                continue
            if way.plain:
                self._event_queue.after_network_delay(self._head, (attempt, answer))
            else:
                self._pass_badly(attempt, answer)
        wake_s = backend.wake_s()
        if wake_s is not None and wake_s != backend.woken_s:
            backend.woken_s = wake_s
            self._event_queue.at(wake_s, self._wake, (backend, wake_s))

    def _pass_badly(self, attempt: NetworkAttempt, answer: ReadyAnswer) -> None:
        """An answer comes late, or breaks off: within its head, so that nobody can read it, or after that."""
        way, arrival = attempt.backend.way, self._arrivals[attempt.request_id]
        size_bytes = answer_bytes(arrival.kind, answer.status, arrival.output_tokens)
        passing_bytes = way.passing(size_bytes)
        delay_s = NETWORK_DELAY_S + way.delay_s(passing_bytes)
        if passing_bytes < HEAD_BYTES:
            self._event_queue.later(delay_s, self._reset, attempt)
            return
        if passing_bytes < size_bytes and answer.cut_after_tokens is None:
            answer = replace(answer, cut_after_tokens=1)
        self._event_queue.later(delay_s, self._head, (attempt, answer))

    def _wake(self, due: tuple[SimBackend, float]) -> None:
        backend, wake_s = due
        if wake_s == backend.woken_s:
            backend.woken_s = None
            self._advance(backend)

    def _head(self, coming: tuple[NetworkAttempt, ReadyAnswer]) -> None:
        attempt, answer = coming
        if not attempt.done:
            attempt.answer = answer
            self._tell(ResponseHead(attempt.id, answer.status, answer.retry_after_s))
        if not attempt.done:  # neither committed nor cancelled: the gateway waits for the first byte
            if answer.cut_after_tokens == 0:
                self._break(attempt)
            else:
                self._tell(FirstByte(attempt.id))

    def _commit(self, request_id: int, attempt_id: int) -> None:
        """Pass the body on. That it breaks off shows only now, as in live, and breaks the client's transfer too."""
        attempt = self._attempts.get(attempt_id)
        if attempt is None or attempt.answer is None:
            return
        status, number = attempt.answer.status, attempt.backend.number
        if attempt.answer.cut_after_tokens is not None:
            attempt.cut_for = request_id
            self._break(attempt)
            return
        echo = OWN if attempt.request_id == request_id else Echo.OTHER
        if status != 200 or attempt.answer.unreadable:
            echo = Echo.NONE  # an error's body repeats nothing
        self._answer((request_id, status, number, echo, NONE))
        self._end(attempt, None)

    def _break(self, attempt: NetworkAttempt) -> None:
        """A backend closes the connection of an attempt; how soon that shows is up to the way."""
        delay_s = attempt.backend.way.close_delay_s
        if delay_s:
            self._event_queue.later(delay_s, self._reset, attempt)
        else:
            self._reset(attempt)

    def _answer(self, answer: Answer) -> None:
        self._event_queue.after_network_delay(self._clients.answered, answer)

    def _cancel(self, attempt_id: int) -> None:
        attempt = self._attempts.get(attempt_id)
        if attempt is not None:
            self._end(attempt, "aborted")

    def _time_out(self, attempt: NetworkAttempt) -> None:
        self._end(attempt, "timeout")

    def _reset(self, attempt: NetworkAttempt) -> None:
        self._end(attempt, "reset")

    def _refuse(self, attempt: NetworkAttempt) -> None:
        self._end(attempt, "refused")

    def _end(self, attempt: NetworkAttempt, error: str | None) -> None:
        """End an attempt exactly once; a backend that still works on it sees its client go."""
        if attempt.done:
            return
        attempt.done = True
        del self._attempts[attempt.id]
        if attempt.cut_for is not None and attempt.answer is not None:
            status, number = attempt.answer.status, attempt.backend.number
            self._answer((attempt.cut_for, status, number, Echo.NONE, Failure.TRUNCATED))
        if attempt.row is not None and error is not None:
            self._leaving += 1
            self._event_queue.after_network_delay(self._hang_up, attempt)
        self._tell(AttemptEnded(attempt.id, error))

    def _hang_up(self, attempt: NetworkAttempt) -> None:
        self._leaving -= 1
        attempt.backend.leave(self._now.now_s, attempt.id)
        self._advance(attempt.backend)

    # --- health checks ----------------------------------------------------------------------------------------

    def _health_check(self, check: SendHealthCheck) -> None:
        backend = self._backends[check.backend_id]
        way = backend.way
        failed = HealthCheckResult(check.check_id, check.backend_id, ok=False)
        passing_bytes = way.passing(REPORT_BYTES)
        delay_s = way.delay_s(passing_bytes)
        if not backend.reachable or (way.resetting and not way.silent):
            self._event_queue.after_network_delay(self._tell, failed)
        elif way.silent or delay_s + 2 * NETWORK_DELAY_S > check.timeout_s:
            closes_s = math.inf if way.closes_after_s is None else way.closes_after_s
            self._event_queue.later(min(check.timeout_s - NETWORK_DELAY_S, closes_s), self._tell, failed)
        else:
            asked = _Asked(check, backend, delay_s, passing_bytes == REPORT_BYTES)
            if backend.paused:
                backend.waiting.append((self._answer_health_check, asked))
                self._event_queue.limit(check.timeout_s - NETWORK_DELAY_S, self._give_up_health_check, asked)
            else:
                self._answer_health_check(asked)

    def _give_up_health_check(self, asked: _Asked) -> None:
        asked.done = True
        self._tell(HealthCheckResult(asked.check.check_id, asked.backend.id, ok=False))

    def _answer_health_check(self, asked: _Asked) -> None:
        if asked.done:
            return
        asked.done = True
        backend = asked.backend
        self._advance(backend)
        status, good, report = backend.health_check(self._health_path, asked.check.expected)
        self._evidence.health_checks.append((backend.number, status, self._now.now_s))
        ok, said = (good, report) if asked.whole else (False, None)
        self._event_queue.later(
            NETWORK_DELAY_S + asked.delay_s, self._tell, HealthCheckResult(asked.check.check_id, backend.id, ok, said)
        )
