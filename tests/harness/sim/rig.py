"""Small scenarios and gateways for tests of the simulator: all requests go to gpu-0 by default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import numpy.typing as npt

from harness.balancer.core.bare import BareGateway
from harness.claims.features import Claims
from harness.evidence.history import History
from harness.gateway.protocol import Action, Backend, Event, Gateway, NowFunction, Request
from harness.scenario.faults import Step
from harness.scenario.model import Keys, Load, ModelServer, Scenario, Stream
from harness.sim.world import play
from harness.targets.base import SimTarget

SERVICE_S = 8 / 16_000 + 4 * 0.0005
"""Service time of a request of the default size at an idle backend."""


class OneBackend:
    """A policy that always picks the first backend of the list and records errors."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.errors: list[str | None] = []

    def pick(self, request: Request) -> str | None:
        """The first backend of the list, if any."""
        return self.names[0] if self.names else None

    def update_backends(self, backends: Sequence[Backend]) -> None:
        """Store the backends' names."""
        self.names = tuple(backend.id for backend in backends)

    def report_result(self, backend_id: str, latency_s: float, error: str | None) -> None:
        """Record the error of an attempt."""
        self.errors.append(error)


class Listening:
    """A gateway whose actions come from a function; records all events with their times."""

    def __init__(self, react: Callable[[Event, float], list[Action]]) -> None:
        self.react = react
        self.heard: list[tuple[float, Event]] = []

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Record the event, then return the function's actions."""
        self.heard.append((now_s, event))
        return self.react(event, now_s)

    def times_of(self, kind: type[Event]) -> list[float]:
        """Times of the recorded events of this kind."""
        return [at_s for at_s, event in self.heard if isinstance(event, kind)]


class GatewayOf(SimTarget):
    """A target around a given gateway, for a single run."""

    name = "given"
    version = "1"
    claims = Claims()

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def gateway(self, off: frozenset[str], now: NowFunction, generator: Random) -> Gateway:
        """The given gateway."""
        return self._gateway


def bare(policy: OneBackend | None = None, timeout_s: float = 10.0) -> Listening:
    """The bare gateway around a policy, with its events recorded."""
    return Listening(BareGateway(policy or OneBackend(), attempt_timeout_s=timeout_s).handle)


def stream(**changes: object) -> Stream:
    """A request every 10 ms for two seconds."""
    settings: dict[str, object] = {"name": "traffic", "start_s": 0.0, "rate_per_s": 100.0, "requests": 200}
    return Stream(**(settings | changes))  # type: ignore[arg-type]


def scenario(
    *timeline: Step,
    load: Stream | None = None,
    backends: int = 1,
    carrier: str = "header:x-model-id",
    **rest: object,
) -> Scenario:
    """A scenario with these steps under the load of one stream."""
    streams = (load or stream(keys=Keys(1)),)
    load_of_all = Load(streams, carrier)
    return Scenario("small", backends=backends, load=load_of_all, timeline=timeline, **rest)  # type: ignore[arg-type]


def run(gateway: Gateway, what: Scenario, seed: int = 1) -> History:
    """Play a scenario against a gateway."""
    return play(GatewayOf(gateway), what, seed)


def sent_between(history: History, start_s: float, end_s: float) -> npt.NDArray[np.bool_]:
    """Mask of the requests due in [start_s, end_s)."""
    due_s = history.requests["intended_s"]
    mask: npt.NDArray[np.bool_] = (due_s >= start_s) & (due_s < end_s)
    return mask


COLD_SERVER = ModelServer(memory_mb=1000, weights_mb=100, load_s=0.05)
"""A model must be loaded before its first request."""
