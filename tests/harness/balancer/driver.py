"""Drives a gateway, or its readiness checks, in tests: sends events at a settable time and picks actions by type."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Protocol, TypeVar

from harness.balancer.health.readiness import CHECKS_ONLY, Readiness, RotationSettings
from harness.gateway.protocol import (
    Action,
    AttemptEnded,
    Backend,
    ClientGone,
    Event,
    Gateway,
    HealthCheckResult,
    MembershipChanged,
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

AnyAction = TypeVar("AnyAction", bound=Action)


def of_type(kind: type[AnyAction], actions: Iterable[Action]) -> list[AnyAction]:
    """The actions of type `kind`, in order."""
    return [action for action in actions if isinstance(action, kind)]


def only(kind: type[AnyAction], actions: Iterable[Action]) -> AnyAction:
    """The single action, which must be of type `kind`."""
    (action,) = actions
    assert isinstance(action, kind), action
    return action


class GatewayWithIdle(Gateway, Protocol):
    """A gateway that says whether anything is in flight."""

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight."""
        ...


class GatewayDriver:
    """A gateway with its clock. Every method sends one event at `now_s` and returns the resulting actions.

    Requests are numbered from 1 and are inference for model "m" unless given otherwise. `started`: the actions of the
    first membership.
    """

    def __init__(self, gateway: GatewayWithIdle, *members: str | Backend) -> None:
        self.gateway = gateway
        self.now_s = 0.0
        self.requests = 0
        self.started = self.members(*members)

    def handle(self, event: Event) -> list[Action]:
        return self.gateway.handle(event, self.now_s)

    def members(self, *members: str | Backend) -> list[Action]:
        """Replace the list of backends. A name stands for a backend with that id and address."""
        backends = (item if isinstance(item, Backend) else Backend(item, item) for item in members)
        return self.handle(MembershipChanged(tuple(backends)))

    def arrive(self, model: str = "m", kind: Kind = Kind.INFERENCE, urgency: str = "normal") -> list[Action]:
        """A new request arrives; its number is `requests` afterwards."""
        self.requests += 1
        return self.handle(RequestArrived(Request(self.requests, 1, kind, "POST", model, urgency=urgency)))

    def send(self, model: str = "m", kind: Kind = Kind.INFERENCE) -> Send:
        """A new request arrives, and is sent without any other action."""
        return only(Send, self.arrive(model, kind))

    def head(self, send: Send, status: int = 200) -> list[Action]:
        return self.handle(ResponseHead(send.attempt_id, status))

    def end(self, send: Send, error: str | None = None) -> list[Action]:
        return self.handle(AttemptEnded(send.attempt_id, error))

    def client_gone(self, request_id: int) -> list[Action]:
        return self.handle(ClientGone(request_id))

    def health_result(self, backend: str, ok: bool, report: Backend | None = None, check_id: int = 99) -> list[Action]:
        return self.handle(HealthCheckResult(check_id, backend, ok, report))

    def fire(self, timer: SetTimer) -> list[Action]:
        """Advance to the time of `timer` and let it fire."""
        self.now_s = timer.at_s
        return self.handle(TimerFired(timer.timer_id))

    def fire_all(self, timers: Iterable[SetTimer]) -> list[Action]:
        """Fire `timers`, and those set thereby, in the order of their times; all other actions."""
        pending = list(timers)
        others: list[Action] = []
        while pending:
            due = min(pending, key=lambda timer: (timer.at_s, timer.timer_id))
            pending.remove(due)
            actions = self.fire(due)
            pending += of_type(SetTimer, actions)
            others += [action for action in actions if not isinstance(action, SetTimer)]
        return others

    def shut_down(self) -> list[Action]:
        return self.handle(ShutdownAsked())


class ReadinessDriver:
    """`Readiness` with an interval of 0.5 s and a timeout of 1 s, and its timers by backend."""

    def __init__(
        self, *backends: str, unhealthy: int = 2, healthy: int = 1, rotation: RotationSettings = CHECKS_ONLY
    ) -> None:
        self.readiness = Readiness(0.5, 1.0, unhealthy, healthy, rotation, Random(7))
        self.timers: dict[str, int] = {}
        self.set_backends(*backends)

    @property
    def rotation(self) -> str:
        """Names of the backends in rotation, sorted and joined."""
        return "".join(name for name in sorted(self.timers) if self.readiness.ready(name))

    def set_backends(self, *backends: str, now_s: float = 0.0) -> list[str]:
        """Names of the new backends, each of which must get a timer that is due at once."""
        new = [name for name in backends if name not in self.timers]
        for name, action in zip(new, self.readiness.set_backends(backends, now_s), strict=True):
            assert isinstance(action, SetTimer) and action.at_s == now_s
            self.timers[name] = action.timer_id
        self.timers = {name: timer for name, timer in self.timers.items() if name in backends}
        return new

    def check(self, name: str, now_s: float = 0.0) -> SendHealthCheck:
        """Let the timer of `name` fire, which must start a check and be set again an interval later."""
        check, timer = self.readiness.timer_fired(self.timers[name], now_s)
        assert isinstance(check, SendHealthCheck)
        assert (check.backend_id, check.timeout_s) == (name, 1.0)
        assert timer == SetTimer(self.timers[name], now_s + 0.5)
        return check

    def result(self, name: str, ok: bool, report: Backend | None = None, *, answered: bool | None = None) -> bool:
        """Start a check of `name` and deliver its result; whether that brought it (back) into rotation."""
        return self.readiness.result(self.check(name).check_id, ok, report, answered=answered)
