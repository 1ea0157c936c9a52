"""The timeline of a simulated run: faults begin and heal, members come and go, connections break off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import assert_never

from harness.gateway.protocol import Backend, Event, MembershipChanged
from harness.scenario.fault_schedule import RESTART_S, Due, conflict, ends, schedule
from harness.scenario.faults import (
    Blackhole,
    Down,
    Evict,
    Fault,
    Kill,
    Membership,
    Pause,
    ProcessFault,
    RequestFault,
    Reset,
    Restart,
    Timeout,
    TransportFault,
    as_mock,
)
from harness.scenario.model import ClaimsError, Scenario
from harness.sim.backend import NetworkAttempt, SimBackend
from harness.sim.event_queue import NETWORK_DELAY_S, EventQueue
from harness.sim.evidence import Evidence
from mockgpu.faults.decisions import Change, from_json

NEVER_S = float("nan")


class TimelineRunner:
    """Carries out the steps of a scenario. What a fault does to single attempts it tells through `reset`.

    `attempts` are those that are open, by id. `advance` takes from a backend what it has ready. ClaimsError for steps
    that do not go together.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        event_queue: EventQueue,
        evidence: Evidence,
        backends: Mapping[str, SimBackend],
        attempts: Mapping[int, NetworkAttempt],
        *,
        tell: Callable[[Event], None],
        reset: Callable[[NetworkAttempt], None],
        advance: Callable[[SimBackend], None],
    ) -> None:
        told = conflict(scenario.timeline)
        if told:
            raise ClaimsError(f"scenario {scenario.name}: {told}")
        self._scenario = scenario
        self._seed = seed
        self._event_queue = event_queue
        self._now = event_queue.now
        self._evidence = evidence
        self._backends = backends
        self._attempts = attempts
        self._tell = tell
        self._reset = reset
        self._advance = advance
        self._changes: list[Membership] = []
        self._in_force: dict[str, dict[int, Fault]] = {name: {} for name in backends}
        """By backend, and by position in the timeline."""

    def begin(self) -> None:
        """Put all steps and heals on the event queue."""
        due = schedule(self._scenario.timeline, RESTART_S)
        heals_s = {item.position: item.at_s for item in due if item.heal}
        for item in due:
            if item.heal:
                self._event_queue.at(item.at_s, self._heal, item)
            else:
                self._event_queue.at(item.at_s, self._step, (item, heals_s.get(item.position, NEVER_S)))

    def finish(self) -> None:
        """Count what the faults that are still in force have struck."""
        for name, in_force in self._in_force.items():
            self._count(self._backends[name], [*in_force])

    def membership(self) -> MembershipChanged:
        """The members as the balancer is told of them: with their weights, without those that are drained."""
        drained = self._scenario.drained(self._changes)
        weights = self._scenario.weights(self._changes)
        names = [name for name in self._scenario.members(self._changes) if name not in drained]
        return MembershipChanged(tuple(Backend(id=name, address=name, weight=float(weights[name])) for name in names))

    def swallow(self, attempt: NetworkAttempt) -> None:
        """An attempt is on its way into silence. Its connection is closed when the fault says so or is healed."""
        after_s = attempt.backend.way.closes_after_s
        if after_s is not None:
            self._event_queue.later(after_s + NETWORK_DELAY_S, self._reset, attempt)

    def break_off(self, attempt_ids: Iterable[int], delay_s: float = 0.0) -> None:
        """Reset the connections of these attempts; the balancer sees it `delay_s` later than it would."""
        for attempt_id in attempt_ids:
            attempt = self._attempts.get(attempt_id)
            if attempt is None:  # it was given up just now, and the backend has yet to see that
                continue
            if delay_s:
                self._event_queue.later(NETWORK_DELAY_S + delay_s, self._reset, attempt)
            else:
                self._event_queue.after_network_delay(self._reset, attempt)

    # --- steps --------------------------------------------------------------------------------------------

    def _step(self, beginning: tuple[Due, float]) -> None:
        (due, healed_s), now_s = beginning, self._now.now_s
        step, backend = due.step, self._backends[due.step.backend]
        self._evidence.step(due.position, step, backend.number, now_s, healed_s)
        if isinstance(step, Membership):
            self._changes.append(step)
            self._tell(self.membership())
            return
        in_force = self._in_force[backend.id]
        ended = [position for position, began in in_force.items() if ends(began, step)]
        self._count(backend, ended)
        for position in ended:
            del in_force[position]
            self._evidence.ended(position, now_s)
        if not isinstance(step, Evict):  # it is over at once
            in_force[due.position] = step
        self._set(step, on=True)

    def _heal(self, due: Due) -> None:
        backend = self._backends[due.step.backend]
        fault = self._in_force[backend.id].get(due.position)
        if fault is None:  # it ended when another began
            return
        self._count(backend, [due.position])
        del self._in_force[backend.id][due.position]
        self._set(fault, on=False)

    def _count(self, backend: SimBackend, positions: Iterable[int]) -> None:
        """Note how many requests these faults have struck, where they are faults of single requests."""
        if backend.paused or not backend.alive:  # in live nobody could ask it
            return
        for position in positions:
            fault = self._in_force[backend.id][position]
            if isinstance(fault, RequestFault):
                self._evidence.counted(position, backend.hits(from_json(as_mock(fault, self._seed)).kind))

    def _set(self, fault: Fault, on: bool) -> None:
        """Begin or heal a fault."""
        backend = self._backends[fault.backend]
        if isinstance(fault, ProcessFault):
            self._set_process(fault, backend, on)
        elif isinstance(fault, TransportFault):
            self._set_way(fault, backend, on)
        else:
            self._set_request(fault, backend, on)

    def _set_process(self, fault: ProcessFault, backend: SimBackend, on: bool) -> None:
        match fault:
            case Kill() | Restart():
                connected = self._connected(backend) if on else ()
                if on:
                    backend.kill()
                backend.alive = not on
                self.break_off(connected, backend.way.close_delay_s)
            case Pause() if on:
                backend.paused = True
            case Pause():
                for act, subject in backend.resume(self._now.now_s):
                    act(subject)
                self._advance(backend)
            case _:
                assert_never(fault)

    def _set_way(self, fault: TransportFault, backend: SimBackend, on: bool) -> None:
        """What is on its way already is left alone, but where connections end with the change."""
        connected = self._connected(backend)
        backend.way.change(fault, on)
        if isinstance(fault, Down | Reset) and on:
            self.break_off(connected)
        elif isinstance(fault, Timeout) and on:
            for attempt_id in backend.inside:
                if attempt_id in self._attempts:
                    self.swallow(self._attempts[attempt_id])
        elif isinstance(fault, Timeout | Blackhole) and not on:  # what it has held is closed
            self.break_off(connected)

    def _connected(self, backend: SimBackend) -> Sequence[int]:
        """Ids of the attempts with a connection to a backend: those inside, and all that are in the way's silence."""
        if backend.way.silent:
            return [attempt.id for attempt in self._attempts.values() if attempt.backend is backend]
        return backend.inside

    def _set_request(self, fault: RequestFault, backend: SimBackend, on: bool) -> None:
        words = from_json(as_mock(fault, self._seed))
        change = Change(set=(words,)) if on else Change(clear=frozenset({words.kind}))
        released = backend.change_faults(self._now.now_s, change)
        self.break_off(() if backend.way.silent else released, backend.way.close_delay_s)
        if change.evicts or change.kills:
            self._advance(backend)
