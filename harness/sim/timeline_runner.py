"""Runs the timeline of a simulated run: begins and heals faults, changes membership, resets connections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import assert_never

from harness.evidence.history import StepSeen
from harness.evidence.steps import steps_seen
from harness.gateway.protocol import Backend, Event, MembershipChanged
from harness.scenario.fault_schedule import RESTART_S, Due, conflict, schedule
from harness.scenario.faults import (
    Fault,
    Kill,
    Membership,
    Pause,
    ProcessFault,
    RequestFault,
    Restart,
    TransportFault,
)
from harness.scenario.ledger import FaultLedger, LedgerEntry
from harness.scenario.model import ClaimsError, Scenario
from harness.sim.backend import NetworkAttempt, SimBackend
from harness.sim.event_queue import NETWORK_DELAY_S, EventQueue
from mockgpu.faults.decisions import Change
from mockgpu.faults.kinds import seeded


class TimelineRunner:
    """Carries out the steps of a scenario. Resets attempts that a fault ends through `reset`.

    `attempts` are the open attempts, by id. `advance` collects a backend's ready answers. ClaimsError for conflicting
    steps.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        event_queue: EventQueue,
        backends: Mapping[str, SimBackend],
        attempts: Mapping[int, NetworkAttempt],
        *,
        dispatch: Callable[[Event], None],
        reset: Callable[[NetworkAttempt], None],
        advance: Callable[[SimBackend], None],
    ) -> None:
        message = conflict(scenario.timeline)
        if message:
            raise ClaimsError(f"scenario {scenario.name}: {message}")
        self._scenario = scenario
        self._seed = seed
        self._event_queue = event_queue
        self._now = event_queue.now
        self._backends = backends
        self._attempts = attempts
        self._dispatch = dispatch
        self._reset = reset
        self._advance = advance
        self._changes: list[Membership] = []
        self._ledger = FaultLedger()

    def begin(self) -> None:
        """Schedule all steps and heals."""
        for item in schedule(self._scenario.timeline, RESTART_S):
            self._event_queue.at(item.at_s, self._heal if item.heal else self._step, item)

    def finish(self) -> tuple[StepSeen, ...]:
        """Count the hits of the faults that are still in force; returns all steps carried out."""
        self._count(self._ledger.in_force())
        return steps_seen(self._ledger, {backend.id: backend.number for backend in self._backends.values()})

    def membership(self) -> MembershipChanged:
        """The membership event for the balancer: members with their weights, without drained ones."""
        drained = self._scenario.drained(self._changes)
        weights = self._scenario.weights(self._changes)
        names = [name for name in self._scenario.members(self._changes) if name not in drained]
        return MembershipChanged(tuple(Backend(id=name, address=name, weight=float(weights[name])) for name in names))

    def drop(self, attempt: NetworkAttempt) -> None:
        """Drop an attempt on a silent link. Its connection closes after the fault's timeout or when the fault heals."""
        after_s = attempt.backend.link.closes_after_s
        if after_s is not None:
            self._event_queue.later(after_s + NETWORK_DELAY_S, self._reset, attempt)

    def reset_connections(self, attempt_ids: Iterable[int], delay_s: float = 0.0) -> None:
        """Reset the connections of these attempts. The balancer sees it after the network delay plus `delay_s`."""
        for attempt_id in attempt_ids:
            attempt = self._attempts.get(attempt_id)
            if attempt is None:  # already cancelled; the backend has yet to see that
                continue
            if delay_s:
                self._event_queue.later(NETWORK_DELAY_S + delay_s, self._reset, attempt)
            else:
                self._event_queue.after_network_delay(self._reset, attempt)

    # --- steps --------------------------------------------------------------------------------------------

    def _step(self, due: Due) -> None:
        """Carry out a step. In virtual time it takes effect at once."""
        step, now_s = due.step, self._now.now_s
        if isinstance(step, Membership):
            self._ledger.record(due.position, step, now_s, now_s)
            self._changes.append(step)
            self._dispatch(self.membership())
            return
        self._count(self._ledger.ended_by(step))
        self._ledger.begin(due.position, step, now_s, now_s)
        self._set(step, on=True)

    def _heal(self, due: Due) -> None:
        if not self._ledger.holds(due.position):  # another fault ended it
            return
        entry = self._ledger.entry(due.position)
        self._count([entry])
        self._ledger.heal(due.position, self._now.now_s)
        self._set(entry.fault, on=False)

    def _count(self, entries: Iterable[LedgerEntry]) -> None:
        """Record the hits of those of these faults that count them and can be asked, as in live."""
        for entry in self._ledger.countable(entries):
            if isinstance(entry.step, RequestFault):
                entry.hits = self._backends[entry.step.backend].hits(entry.step)

    def _set(self, fault: Fault, on: bool) -> None:
        """Begin (`on`) or heal a fault."""
        backend = self._backends[fault.backend]
        if isinstance(fault, ProcessFault):
            self._set_process(fault, backend, on)
        elif isinstance(fault, TransportFault):
            self._set_link(fault, backend, on)
        else:
            self._set_request(fault, backend, on)

    def _set_process(self, fault: ProcessFault, backend: SimBackend, on: bool) -> None:
        match fault:
            case Kill() | Restart():
                connected = self._connected(backend) if on else ()
                if on:
                    backend.kill()
                backend.alive = not on
                self.reset_connections(connected, backend.link.close_delay_s)
            case Pause() if on:
                backend.paused = True
            case Pause():
                for act, subject in backend.resume(self._now.now_s):
                    act(subject)
                self._advance(backend)
            case _:
                assert_never(fault)

    def _set_link(self, fault: TransportFault, backend: SimBackend, on: bool) -> None:
        """Change a link. Data in transit is unaffected, except on connections that end with the change."""
        connected = self._connected(backend)
        backend.link.change(fault, on)
        effect = fault.effect
        if on and effect.ends_connections:
            self.reset_connections(connected)
        elif on and effect.silent:
            for attempt_id in backend.inside:
                if attempt_id in self._attempts:
                    self.drop(self._attempts[attempt_id])
        elif effect.silent:  # connections that it held are closed
            self.reset_connections(connected)

    def _connected(self, backend: SimBackend) -> Sequence[int]:
        """Ids of the attempts with a connection to a backend, including all that a silent link has dropped."""
        if backend.link.silent:
            return [attempt.id for attempt in self._attempts.values() if attempt.backend is backend]
        return backend.inside

    def _set_request(self, fault: RequestFault, backend: SimBackend, on: bool) -> None:
        change = Change(set=(seeded(fault, self._seed),)) if on else Change(clear=frozenset({fault.kind}))
        released = backend.change_faults(self._now.now_s, change)
        self.reset_connections(() if backend.link.silent else released, backend.link.close_delay_s)
        if change.evicts or change.kills:
            self._advance(backend)
