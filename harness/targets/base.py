"""A target: a balancer under test, its claims, and how to run, reconfigure and stop it.

Everything here is data: a target says which files to write and which commands and steps to carry out, and the live
world carries them out. So an adapter can be tested without starting anything.
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
    """A backend as the balancer is told of it: its fault proxy, never the backend itself.

    `draining`: it stays listed, and nothing new is to be sent to it.
    """

    id: str
    host: str
    port: int
    weight: int = 1
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where a balancer is to run: its folder and ports, its backends, and the features to leave out."""

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

    `start` empty: the balancer runs already. `check` is run first where given; if it exits with anything but 0 the
    configuration was refused. `early`: the command waits for its files, so it may be started while its backends are.
    """

    files: Mapping[str, str]
    start: tuple[str, ...]
    check: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    early: bool = False


LEAN = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull, "OPENBLAS_NUM_THREADS": "1"}
"""Environment of processes of ours, which neither speak TLS nor multiply matrices: they start in 100 ms less.

aiohttp reads the machine's certificates when it is imported, and numpy starts threads that spin for a while.
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
    """Run a command to its end; another exit status than 0 means that the change was refused."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AdminCall:
    """An HTTP call to the balancer's admin interface; any status but 2xx means that the change was refused."""

    method: str
    url: str
    body: str = ""


@dataclass(frozen=True, slots=True)
class AwaitNewWorkers:
    """Wait until every child process of the balancer is younger than this change (nginx after HUP)."""


ChangeStep = WriteFile | Signal | RunCommand | AdminCall | AwaitNewWorkers


class Target(ABC):
    """A balancer under test. `switches`: tables of the features that can be left out of a scenario."""

    name: str
    version: str
    claims: Claims
    worlds: frozenset[World] = frozenset({World.LIVE})
    switches: frozenset[str] = frozenset()
    correlate: tuple[str, ...] = ("header:x-mock-tag", "header:x-request-id", "json:seed", "prompt-suffix")
    stop_signal: signal.Signals = signal.SIGTERM
    logs: tuple[str, ...] = ()
    """Log files that it writes beside its output, relative to the workdir; asked too why it refused or ended."""
    url: str | None = None
    """Where it listens if that is fixed; None: the port of its Place."""
    listen: tuple[tuple[str, int], ...] = ()
    """Addresses that its configuration names as backends if they are fixed; the fault proxy listens there."""
    health_path: str = "/health"

    @abstractmethod
    def launch(self, place: Deployment) -> Launch:
        """Files and command for a start at `place`. TargetError if its binary is missing."""

    @abstractmethod
    def change(self, place: Deployment) -> tuple[ChangeStep, ...]:
        """Steps that make the running balancer's membership that of `place.backends`, in that order."""

    @abstractmethod
    def scaled(self, factor: float) -> Target | None:
        """The same target with every setting and claim `factor` times as long; None if its settings are fixed."""

    def repeat_prefix(self, world: World) -> tuple[str, ...]:
        """Assignments (NAME=VALUE) that a shell needs before the command that repeats a run in `world`."""
        return ()

    def gateway(self, off: frozenset[str], now: NowFunction, generator: Random) -> Gateway:
        """The balancer itself without I/O, for the simulator and the live shell; only of targets that have one."""
        raise NotImplementedError(f"{self.name} runs only as a process of its own")
