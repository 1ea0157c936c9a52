"""The simulated world: clients, network, backends and faults around a gateway, on one event queue.

No clock and no global random source is read. The network takes `NETWORK_DELAY_S` in each direction. A client that waits
for its only connection sends late; its latency still counts from the intended time.
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
from harness.targets.base import SimTarget, Target
from harness.targets.checked import for_sim
from mockgpu.gpu.events import Job

UPDATE, OWN, NONE = Kind.UPDATE, Echo.OWN, Failure.NONE
"""Cached, as the lookup of an enum member takes longer than the comparison."""

PATIENCE_S = 2.0
"""Virtual seconds after the last client's timeout at which a run ends with requests still open, as in live."""


def play(target: Target, scenario: Scenario, seed: int) -> History:
    """Play `scenario` against the target's gateway in virtual time. The same seed gives the same history."""
    return Simulation(for_sim(target), scenario, seed).run()


@dataclass(slots=True)
class _PendingHealthCheck:
    """A health check at a backend. Its answer arrives `delay_s` after it is sent, `whole` or broken off."""

    check: SendHealthCheck
    backend: SimBackend
    delay_s: float
    whole: bool
    done: bool = False


class Simulation:
    """One run. `run` plays it to its end and returns its history."""

    def __init__(self, target: SimTarget, scenario: Scenario, seed: int) -> None:
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
        read = Reader(scenario.load.key_carrier, target.claims, seed)
        self._clients = Clients(
            self._event_queue,
            self._arrivals,
            VirtualUsers(scenario.load, seed, first=len(self._arrivals)),
            self._evidence.requests,
            len(scenario.load.streams),
            read,
            self._dispatch,
        )
        self._attempts: dict[int, NetworkAttempt] = {}
        self._timers: dict[int, float] = {}
        self._health_path = target.health_path
        self._timeline = TimelineRunner(
            scenario,
            seed,
            self._event_queue,
            self._backends,
            self._attempts,
            dispatch=self._dispatch,
            reset=self._reset,
            advance=self._advance,
        )
        self._events: deque[Event] = deque()
        self._busy = False
        self._disconnects = 0  # disconnects that backends have yet to see

    def run(self) -> History:
        """Play to the end. HarnessError if the event queue is empty while a request or attempt is open."""
        self._clients.begin()
        self._timeline.begin()
        self._dispatch(self._timeline.membership())
        longest_s = max((stream.timeout_s for stream in self._scenario.load.streams), default=0.0)
        last_s = self._scenario.end_s + longest_s + PATIENCE_S
        clients, event_queue, evidence = self._clients, self._event_queue, self._evidence
        while clients.open or self._now.now_s < self._scenario.end_s or self._attempts or self._disconnects:
            if evidence.died is not None or not event_queue.advance(last_s):
                break
        if event_queue.empty and evidence.died is None and (clients.open or self._attempts):
            raise HarnessError(
                f"the simulation is stuck at {self._now.now_s:.3f} s: {clients.open} requests and"
                f" {len(self._attempts)} attempts are open and nothing is scheduled"
            )
        return self._evidence.history(list(self._backends.values()), self._timeline.finish())

    # --- the gateway --------------------------------------------------------------------------------------

    def _dispatch(self, event: Event) -> None:
        """Hand an event to the gateway. Events caused by its actions are queued behind it."""
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._events and self._evidence.died is None:
                queued = self._events.popleft()
                try:
                    actions = list(self._gateway.handle(queued, self._now.now_s))
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # sys.exit in a balancer counts as a crash; pytest continues
                    self._evidence.died = crash_line(error, queued)
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
            self._dispatch(TimerFired(timer.timer_id))

    # --- attempts -----------------------------------------------------------------------------------------

    def _send(self, send: Send) -> None:
        backend = self._backends.get(send.backend_id)
        if backend is None:  # no such address: reset, as in live
            self._event_queue.after_network_delay(self._dispatch, AttemptEnded(send.attempt_id, "reset"))
            return
        attempt = NetworkAttempt(send.attempt_id, send.request_id, backend)
        self._attempts[attempt.id] = attempt
        self._event_queue.limit(send.timeout_s, self._time_out, attempt)
        self._event_queue.after_network_delay(self._deliver, attempt)

    def _deliver(self, attempt: NetworkAttempt) -> None:
        """Deliver an attempt to its backend, unless a fault of the link stops it."""
        backend = attempt.backend
        link = backend.link
        if attempt.done:
            return
        if not backend.reachable:
            self._event_queue.after_network_delay(self._refuse, attempt)
        elif link.silent:
            self._timeline.drop(attempt)
        elif link.resetting:
            self._event_queue.after_network_delay(self._reset, attempt)
        elif backend.paused:
            backend.deferred.append((self._arrive, attempt))
        else:
            self._arrive(attempt)

    def _arrive(self, attempt: NetworkAttempt) -> None:
        """The backend reads an attempt, unless it was cancelled while the backend was paused."""
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
        """Collect the backend's ready answers and schedule its next wake-up."""
        if backend.paused:
            return
        link = backend.link
        for answer in backend.advance(self._now.now_s):
            attempt = self._attempts.get(answer.attempt_id)
            if attempt is None or link.silent:
                continue
            if link.plain:
                self._event_queue.after_network_delay(self._head, (attempt, answer))
            else:
                self._pass_impaired(attempt, answer)
        wake_s = backend.wake_s()
        if wake_s is not None and wake_s != backend.next_wake_s:
            backend.next_wake_s = wake_s
            self._event_queue.at(wake_s, self._wake, (backend, wake_s))

    def _pass_impaired(self, attempt: NetworkAttempt, answer: ReadyAnswer) -> None:
        """Delay an answer or break it off: within its head, which makes it unreadable, or within its body."""
        link, arrival = attempt.backend.link, self._arrivals[attempt.request_id]
        size_bytes = answer_bytes(arrival.kind, answer.status, arrival.output_tokens)
        passing_bytes = link.passing(size_bytes)
        delay_s = NETWORK_DELAY_S + link.delay_s(passing_bytes)
        if passing_bytes < HEAD_BYTES:
            self._event_queue.later(delay_s, self._reset, attempt)
            return
        if passing_bytes < size_bytes and answer.cut_after_tokens is None:
            answer = replace(answer, cut_after_tokens=1)
        self._event_queue.later(delay_s, self._head, (attempt, answer))

    def _wake(self, due: tuple[SimBackend, float]) -> None:
        backend, wake_s = due
        if wake_s == backend.next_wake_s:
            backend.next_wake_s = None
            self._advance(backend)

    def _head(self, arriving: tuple[NetworkAttempt, ReadyAnswer]) -> None:
        attempt, answer = arriving
        if not attempt.done:
            attempt.answer = answer
            self._dispatch(ResponseHead(attempt.id, answer.status, answer.retry_after_s))
        if not attempt.done:  # neither committed nor cancelled: the gateway awaits the first byte
            if answer.cut_after_tokens == 0:
                self._break(attempt)
            else:
                self._dispatch(FirstByte(attempt.id))

    def _commit(self, request_id: int, attempt_id: int) -> None:
        """Pass the body on. A broken-off body shows only now, as in live, and truncates the client's answer."""
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
            echo = Echo.NONE  # error bodies carry no echo
        self._answer((request_id, status, number, echo, NONE))
        self._end(attempt, None)

    def _break(self, attempt: NetworkAttempt) -> None:
        """Close the connection of an attempt from the backend's side, after the link's close delay."""
        delay_s = attempt.backend.link.close_delay_s
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
        """End an attempt exactly once. A backend still working on it sees its client disconnect."""
        if attempt.done:
            return
        attempt.done = True
        del self._attempts[attempt.id]
        if attempt.cut_for is not None and attempt.answer is not None:
            status, number = attempt.answer.status, attempt.backend.number
            self._answer((attempt.cut_for, status, number, Echo.NONE, Failure.TRUNCATED))
        if attempt.row is not None and error is not None:
            self._disconnects += 1
            self._event_queue.after_network_delay(self._disconnect, attempt)
        self._dispatch(AttemptEnded(attempt.id, error))

    def _disconnect(self, attempt: NetworkAttempt) -> None:
        self._disconnects -= 1
        attempt.backend.leave(self._now.now_s, attempt.id)
        self._advance(attempt.backend)

    # --- health checks ----------------------------------------------------------------------------------------

    def _health_check(self, check: SendHealthCheck) -> None:
        backend = self._backends[check.backend_id]
        link = backend.link
        failed = HealthCheckResult(check.check_id, check.backend_id, ok=False)
        passing_bytes = link.passing(REPORT_BYTES)
        delay_s = link.delay_s(passing_bytes)
        if not backend.reachable or (link.resetting and not link.silent):
            self._event_queue.after_network_delay(self._dispatch, failed)
        elif link.silent or delay_s + 2 * NETWORK_DELAY_S > check.timeout_s:
            closes_s = math.inf if link.closes_after_s is None else link.closes_after_s
            self._event_queue.later(min(check.timeout_s - NETWORK_DELAY_S, closes_s), self._dispatch, failed)
        else:
            pending = _PendingHealthCheck(check, backend, delay_s, passing_bytes == REPORT_BYTES)
            if backend.paused:
                backend.deferred.append((self._answer_health_check, pending))
                self._event_queue.limit(check.timeout_s - NETWORK_DELAY_S, self._give_up_health_check, pending)
            else:
                self._answer_health_check(pending)

    def _give_up_health_check(self, pending: _PendingHealthCheck) -> None:
        pending.done = True
        self._dispatch(HealthCheckResult(pending.check.check_id, pending.backend.id, ok=False))

    def _answer_health_check(self, pending: _PendingHealthCheck) -> None:
        if pending.done:
            return
        pending.done = True
        backend = pending.backend
        self._advance(backend)
        status, as_expected, report = backend.health_check(self._health_path, pending.check.expected)
        self._evidence.health_checks.append((backend.number, status, self._now.now_s))
        ok, readable_report = (as_expected, report) if pending.whole else (False, None)
        self._event_queue.later(
            NETWORK_DELAY_S + pending.delay_s,
            self._dispatch,
            HealthCheckResult(pending.check.check_id, backend.id, ok, readable_report),
        )
