"""A target: a balancer under test, its claims, and how to run, reconfigure and stop it.

All of it is data: a target returns files, commands and steps, and the live world carries them out. So adapters can be
tested without starting a process.
"""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping
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
    configuration was refused. `early`: the command waits for its files, so it may start together with the backends.
    """

    files: Mapping[str, str]
    start: tuple[str, ...]
    check: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    early: bool = False


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
    """Wait until every child process of the balancer is younger than this change (nginx after HUP)."""


ChangeStep = WriteFile | Signal | RunCommand | AdminCall | AwaitNewWorkers


class Target(ABC):
    """A balancer under test. `switches`: tables of the features that a scenario can switch off."""

    name: str
    version: str
    claims: Claims
    worlds: frozenset[World] = frozenset({World.LIVE})
    switches: frozenset[str] = frozenset()
    correlate: tuple[str, ...] = ("header:x-mock-tag", "header:x-request-id", "json:seed", "prompt-suffix")
    stop_signal: signal.Signals = signal.SIGTERM
    logs: tuple[str, ...] = ()
    """Log files beside its output, relative to the workdir; also read to explain a refusal or exit."""
    url: str | None = None
    """URL on which it listens, if fixed; None: host and port of the Deployment."""
    listen: tuple[tuple[str, int], ...] = ()
    """Backend addresses in its configuration, if fixed; the fault proxy listens there."""
    health_path: str = "/health"

    @abstractmethod
    def launch(self, deployment: Deployment) -> Launch:
        """Files and command to start in `deployment`. TargetError if the binary is missing."""

    @abstractmethod
    def change(self, deployment: Deployment) -> tuple[ChangeStep, ...]:
        """Steps that change the running balancer's membership to `deployment.backends`, in that order."""

    @abstractmethod
    def scaled(self, factor: float) -> Target | None:
        """The target with all durations of settings and claims multiplied by `factor`; None if they are fixed."""

    def repeat_prefix(self, world: World) -> tuple[str, ...]:
        """Assignments (NAME=VALUE) that a shell needs before the command that repeats a run in `world`."""
        return ()

    def gateway(self, off: frozenset[str], now: NowFunction, generator: Random) -> Gateway:
        """The balancer without I/O, for the simulator and the live driver. NotImplementedError if there is none."""
        raise NotImplementedError(f"{self.name} runs only as a process of its own")
