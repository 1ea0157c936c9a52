"""A target: a balancer under test, its claims, and how to run, reconfigure and stop it.

All of it is data: a target returns files, commands and steps, and the live world carries them out. So adapters can be
tested without starting a process.
"""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from harness.claims.features import Claims
from harness.gateway.protocol import Gateway, NowFunction
from harness.scenario.model import World


@dataclass(frozen=True, slots=True)
class Address:
    """A backend's address in the balancer's configuration: that of its fault proxy, never of the backend itself.

    `draining`: listed, but must get no new requests.
    """

    id: str
    host: str
    port: int
    weight: int = 1
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where and how a balancer runs: folder, ports, backends, and the features to switch off."""

    workdir: Path
    host: str
    port: int
    admin_port: int
    backends: tuple[Address, ...]
    off: frozenset[str] = frozenset()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """Files to write (by path relative to the workdir) and the command that starts the balancer in the foreground.

    `start` empty: the balancer already runs. `check`, if given, runs first; a non-zero exit status means that the
    configuration was refused. `environment` is added to ours, without the variables in `unset`. `early`: the command
    waits for its files, so it may start together with the backends.
    """

    files: Mapping[str, str]
    start: tuple[str, ...]
    check: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    early: bool = False


CARRIERS = ("header:x-mock-tag", "header:x-request-id", "json:seed", "prompt-suffix")
"""All places in which a request carries its tag."""

LEAN_ENVIRONMENT = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull, "OPENBLAS_NUM_THREADS": "1"}
"""Environment of our own processes, which need neither TLS nor linear algebra: saves 100 ms at start.

aiohttp reads the machine's certificates on import, and numpy starts threads that spin for a while.
"""


# --- steps of a membership change -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Write a file in the workdir: temporary file in the same folder, then rename."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to the balancer's main process."""

    number: signal.Signals


@dataclass(frozen=True, slots=True)
class RunCommand:
    """Run a command to its end; a non-zero exit status means that the balancer refused the change."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AdminCall:
    """An HTTP call to the balancer's admin interface; any status but 2xx means that it refused the change."""

    method: str
    url: str
    body: str = ""


@dataclass(frozen=True, slots=True)
class AwaitNewWorkers:
    """Wait until every child process of the balancer is younger than this change (a reload that replaces workers)."""


ChangeStep = WriteFile | Signal | RunCommand | AdminCall | AwaitNewWorkers


class Target:
    """A balancer under test: who it is and what it claims. It runs in each world whose interface it implements.

    `SimTarget` is the interface of the simulator, `LiveTarget` that of live runs; a class may implement both.
    `switches`: tables of the features that a scenario can switch off.
    """

    name: str
    version: str
    claims: Claims
    switches: frozenset[str] = frozenset()
    health_path: str = "/health"

    @property
    def worlds(self) -> frozenset[World]:
        """The worlds it can run in."""
        kinds = ((World.SIM, SimTarget), (World.LIVE, LiveTarget))
        return frozenset(world for world, kind in kinds if isinstance(self, kind))

    def scaled(self, factor: float) -> Target | None:
        """The target with all durations of settings and claims multiplied by `factor`; None if they are fixed."""
        return None

    def repeat_prefix(self, world: World) -> tuple[str, ...]:
        """Assignments (NAME=VALUE) that a shell needs before the command that repeats a run in `world`."""
        return ()


class SimTarget(Target, ABC):
    """A target that has its balancer as a gateway without I/O."""

    @abstractmethod
    def gateway(self, off: frozenset[str], now: NowFunction, generator: Random) -> Gateway:
        """A new gateway without the features in `off`; `now` is the world's clock, `generator` is seeded."""


class LiveTarget(Target, ABC):
    """A target that runs as a process, started by Steelyard or already running at `url`."""

    correlate: tuple[str, ...] = CARRIERS
    """Places from which a request's tag is read at the backends, if it gets through the balancer there."""
    stop_signal: signal.Signals = signal.SIGTERM
    logs: tuple[str, ...] = ()
    """Log files beside its output, relative to the workdir; also read to explain a refusal or exit."""
    url: str | None = None
    """URL on which it listens, if fixed; None: host and port of the Deployment."""
    listen: tuple[tuple[str, int], ...] = ()
    """Backend addresses in its configuration, if fixed; the fault proxy listens there."""

    @abstractmethod
    def launch(self, deployment: Deployment) -> Launch:
        """Files and command to start in `deployment`. TargetError if the binary is missing."""

    @abstractmethod
    def change(self, deployment: Deployment) -> tuple[ChangeStep, ...]:
        """Steps that change the running balancer's membership to `deployment.backends`, in that order.

        UnsupportedError if it cannot be changed, TargetError if this change is refused.
        """


@dataclass(frozen=True, slots=True)
class Adapter:
    """Makes targets from `--target NAME[:ARGUMENT]`; its entry point has the name.

    `make` gets the argument, empty if none is given. `summary` is a line for `steelyard targets`, without a full stop.
    `argument` says what follows the colon, such as PATH; empty: the name stands alone. `required`: it cannot.

    >>> Adapter(lambda argument: Target(), "Acme's gateway, with a configuration of yours", "FILE").usage("acme")
    'acme[:FILE]'
    """

    make: Callable[[str], Target]
    summary: str
    argument: str = ""
    required: bool = False

    def usage(self, name: str) -> str:
        """How it is written under this name."""
        if not self.argument:
            return name
        return f"{name}:{self.argument}" if self.required else f"{name}[:{self.argument}]"
