"""The timeline of a simulated run: faults begin and heal, members come and go, connections break off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import assert_never

from harness.balancer.protocol import Backend, Event, MembershipChanged
from harness.model import HarnessError, Scenario
from harness.sim.agenda import HOP_S, Agenda
from harness.sim.backend import Attempt, SimBackend
from harness.sim.evidence import Evidence
from harness.timeline import (
    Down,
    Fault,
    Kill,
    Membership,
    Pause,
    ProcessFault,
    RequestFault,
    Reset,
    Restart,
    Step,
    Timeout,
    TransportFault,
    as_mock,
    heals_at_s,
)
from mockgpu.faults import Change, from_json

RESTART_S = 0.5
"""From the end of a process until the listener of its successor accepts; about what a mock server takes live."""

NEVER_S = float("nan")


class Timeline:
    """Carries out the steps of a scenario. What a fault does to single attempts it tells through `reset`.

    `attempts` are those that are open, by id. `advance` takes from a backend what it has ready.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        agenda: Agenda,
        evidence: Evidence,
        backends: Mapping[str, SimBackend],
        attempts: Mapping[int, Attempt],
        *,
        tell: Callable[[Event], None],
        reset: Callable[[Attempt], None],
        advance: Callable[[SimBackend], None],
    ) -> None:
        self._scenario = scenario
        self._seed = seed
        self._agenda = agenda
        self._now = agenda.now
        self._evidence = evidence
        self._backends = backends
        self._attempts = attempts
        self._tell = tell
        self._reset = reset
        self._advance = advance
        self._changes: list[Membership] = []
        self._swallowed: dict[str, list[Attempt]] = {name: [] for name in backends}

    def begin(self) -> None:
        """Put all steps on the agenda."""
        for step in self._scenario.timeline:
            self._agenda.at(step.at_s, self._step, step)

    def membership(self) -> MembershipChanged:
        """The members as the balancer is told of them: with their weights, without those that are drained."""
        drained = self._scenario.drained(self._changes)
        weights = self._scenario.weights(self._changes)
        names = [name for name in self._scenario.members(self._changes) if name not in drained]
        return MembershipChanged(tuple(Backend(id=name, address=name, weight=float(weights[name])) for name in names))

    def swallow(self, attempt: Attempt) -> None:
        """An attempt is on its way into silence. Its connection is closed when the fault says so or is healed."""
        after_s = attempt.backend.way.closes_after_s
        if after_s is not None:
            self._swallowed[attempt.backend.id].append(attempt)
            self._agenda.later(after_s + HOP_S, self._reset, attempt)

    def break_off(self, attempt_ids: Iterable[int], delay_s: float = 0.0) -> None:
        """Reset the connections of these attempts; the balancer sees it `delay_s` later than it would."""
        for attempt_id in attempt_ids:
            attempt = self._attempts.get(attempt_id)
            if attempt is None:  # it was given up just now, and the backend has yet to see that
                continue
            if delay_s:
                self._agenda.later(HOP_S + delay_s, self._reset, attempt)
            else:
                self._agenda.hop(self._reset, attempt)

    # --- steps --------------------------------------------------------------------------------------------

    def _step(self, step: Step) -> None:
        now_s = self._now.now_s
        number = self._backends[step.backend].number
        if isinstance(step, Membership):
            self._changes.append(step)
            self._evidence.step(step, number, now_s, NEVER_S)
            self._tell(self.membership())
            return
        healed_s = now_s + max(step.for_s, RESTART_S) if isinstance(step, Restart) else heals_at_s(step)
        self._evidence.step(step, number, now_s, NEVER_S if healed_s is None else healed_s)
        self._set(step, on=True)
        if healed_s is not None:
            self._agenda.at(healed_s, self._heal, step)

    def _heal(self, fault: Fault) -> None:
        self._set(fault, on=False)

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
                inside = backend.kill() if on else ()
                backend.alive = not on
                self.break_off(inside, backend.way.close_delay_s)
            case Pause() if on:
                if not backend.alive:
                    raise HarnessError(f"{fault} cannot begin: {backend.id} is dead then; let it begin later")
                backend.paused = True
            case Pause():
                if backend.paused:  # else it was killed since
                    for act, subject in backend.resume(self._now.now_s):
                        act(subject)
                    self._advance(backend)
            case _:
                assert_never(fault)

    def _set_way(self, fault: TransportFault, backend: SimBackend, on: bool) -> None:
        """What is on its way already is left alone, but where connections end with the change."""
        backend.way.change(fault, on)
        if isinstance(fault, Down | Reset) and on:
            self.break_off(backend.inside)
        elif isinstance(fault, Timeout) and on:
            for attempt_id in backend.inside:
                if attempt_id in self._attempts:
                    self.swallow(self._attempts[attempt_id])
        elif isinstance(fault, Timeout):
            swallowed, self._swallowed[backend.id] = self._swallowed[backend.id], []
            self.break_off(attempt.id for attempt in swallowed)

    def _set_request(self, fault: RequestFault, backend: SimBackend, on: bool) -> None:
        if backend.paused or (on and not backend.alive):
            how = "stopped" if backend.paused else "dead"
            raise HarnessError(f"{fault} cannot be set: {backend.id} is {how} then; let it begin later")
        words = from_json(as_mock(fault, self._seed))
        change = Change(set=(words,)) if on else Change(clear=frozenset({words.kind}))
        released = backend.change_faults(self._now.now_s, change)
        self.break_off(() if backend.way.silent else released, backend.way.close_delay_s)
        if change.evicts or change.kills:
            self._advance(backend)
