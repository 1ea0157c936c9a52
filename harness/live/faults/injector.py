"""Fault injection between balancer and backends: set a fault, verify it with a probe, heal it.

All bytes between balancer and backend pass through the fault proxy. Process and request faults are set here too,
through the mock fleet. A fault is in force from the moment a probe observes it (`harness.live.faults.probes`), not from
the call that set it.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from harness.live.faults.probes import Listener, is_effective, time_when
from harness.live.fleet import FleetProcess
from harness.live.process.child import Child
from harness.live.process.http import accepts
from harness.live.process.ports import HOST, PortBlock
from harness.scenario.faults import Fault, Kill, Pause, ProcessFault, RequestFault, Restart, TransportFault
from harness.scenario.link import LinkEffect, ToxicSpec
from harness.scenario.model import HarnessError, TargetError
from harness.targets.base import LEAN_ENVIRONMENT
from harness.toxiproxy.client import FaultProxy, FaultProxyError, LoggedConnection
from mockgpu.faults.json_form import to_json
from mockgpu.faults.kinds import seeded

Result = TypeVar("Result")

START_S = 5.0
REAL = "toxiproxy-server"
OLDEST = (2, 7)
"""The oldest release that `harness.toxiproxy.client` supports."""
BUILT = "git"
"""Version string of a real Toxiproxy built from source."""


class FaultInjector:
    """A fault proxy server with one proxy per backend, of the backend's name. `kind`: embedded, real (PATH) or a URL.

    `seed` seeds the jitter of the embedded proxy; a real Toxiproxy takes no seed.
    """

    def __init__(self, kind: str, block: PortBlock, workdir: Path, seed: int = 0) -> None:
        self.kind = kind
        self.version = ""
        self._child: Child | None = None
        self._addresses: dict[str, Listener] = {}
        self._processes: dict[str, Listener] = {}
        host, port = HOST, block.fault_control
        if kind == "embedded":
            words = [sys.executable, "-m", "harness.toxiproxy", "--host", host, "--port", str(port), "--with-parent"]
            words += ["--seed", str(seed)]
            self._child = Child(words, workdir / "toxiproxy.log", {**os.environ, **LEAN_ENVIRONMENT})
        elif kind == "real":
            binary = shutil.which(REAL)
            if binary is None:
                raise TargetError(f"--toxiproxy real: no {REAL} on PATH; install it, or leave the option out")
            self._child = Child([binary, "-host", host, "-port", str(port)], workdir / "toxiproxy.log")
        else:
            parts = urlsplit(kind if "//" in kind else f"http://{kind}")
            try:
                given_port = parts.port
            except ValueError:  # not a number, or too large
                given_port = None
            if parts.hostname not in ("127.0.0.1", "localhost") or given_port is None:
                raise TargetError(f"--toxiproxy {kind}: expected embedded, real, or http://127.0.0.1:PORT")
            host, port = "127.0.0.1", given_port
        self._proxy = FaultProxy(host, port)
        self._address = f"{host}:{port}"

    @property
    def group(self) -> int | None:
        """Process id of the fault proxy's process group; None if Steelyard did not start it."""
        return self._child.pid if self._child else None

    def await_ready(self) -> None:
        """Return when its control API answers; sets `version`.

        HarnessError if our own does not start; TargetError if an external one does not answer or is too old.
        """
        deadline_s = time.monotonic() + START_S
        host, _, port = self._address.rpartition(":")
        while not accepts(host, int(port)):
            if self._child is None:
                raise TargetError(
                    f"no fault proxy answers at {self._address}; start {REAL} there, or leave --toxiproxy out"
                )
            self.check()
            if time.monotonic() > deadline_s:
                raise HarnessError(f"no fault proxy answers at {self._address} after {START_S:.0f} s")
            time.sleep(0.01)
        try:
            self.version = self._do("report its version", self._proxy.version)
        except HarnessError as error:
            if self._child is None:
                raise TargetError(f"--toxiproxy {self.kind}: {error}") from None
            raise
        if self.version != BUILT and _release(self.version) < OLDEST:
            raise TargetError(
                f"--toxiproxy {self.kind}: {self._address} is Toxiproxy {self.version}, "
                f"expected {'.'.join(map(str, OLDEST))} or later; install a newer {REAL}, or leave the option out"
            )

    def check(self) -> None:
        """HarnessError if the fault proxy has ended."""
        if self._child is not None and self._child.status is not None:
            raise HarnessError(f"the fault proxy ended: {self._child.ending()}")

    def open(self, name: str, listen: Listener, upstream: Listener) -> None:
        """Create a proxy for backend `name` that listens at `listen`."""
        self._do(
            f"open a proxy for {name} at {listen[0]}:{listen[1]}",
            lambda: self._proxy.create(name, f"{listen[0]}:{listen[1]}", f"{upstream[0]}:{upstream[1]}"),
        )
        self._addresses[name] = listen  # ours to remove only from here on
        self._processes[name] = upstream

    def connections(self) -> list[LoggedConnection]:
        """The connections it logged; empty for a real Toxiproxy, which keeps no log."""
        return self._do("list connections", self._proxy.connections)

    def stop(self) -> None:
        """Stop the fault proxy, or remove our proxies from an external one."""
        if self._child is not None:
            self._child.stop()
            return
        for name in self._addresses:
            try:
                self._proxy.delete(name)
            except FaultProxyError:
                continue  # proxy or server is gone already, so nothing of ours is left

    # --- faults -------------------------------------------------------------------------------------------

    def begin(
        self,
        fault: Fault,
        fleet: FleetProcess,
        others: Sequence[Fault] = (),
        seed: int = 0,
        over: threading.Event | None = None,
    ) -> float | None:
        """Set a fault. Returns when (CLOCK_MONOTONIC) a probe first observed it, None if no probe did.

        `others` are the faults in force on its backend. `seed` decides which requests a share affects. No probes are
        sent once `over` is set.
        """
        name = fault.backend
        over = over or threading.Event()
        if isinstance(fault, RequestFault):
            drawn = seeded(fault, seed)
            expected = to_json(drawn)
            fleet.set_fault(drawn)
            return time_when(lambda: any(expected.items() <= active.items() for active in fleet.faults(name)), over)
        match fault:
            case Kill() | Restart():
                fleet.kill(name)
                self._disable(name)
            case Pause():
                fleet.pause(name)
            case _:
                self._begin_on_link(fault, others)
        links = [other.effect for other in others if isinstance(other, TransportFault)]
        return time_when(lambda: self._is_effective(fault, links), over)

    def _begin_on_link(self, fault: TransportFault, others: Sequence[Fault]) -> None:
        effect = fault.effect
        if effect.ends_connections:  # the open ones, which a toxic that resets would not reach
            self._disable(fault.backend)
        self._add(fault)
        if effect.ends_connections and effect.up:
            self._enable(fault.backend, others)

    def _is_effective(self, fault: ProcessFault | TransportFault, links: Sequence[LinkEffect]) -> bool:
        """Whether a probe observes a fault: process faults at the process itself, others through the proxy."""
        proxy, process = self._addresses[fault.backend], self._processes[fault.backend]
        match fault:
            case Kill() | Restart():
                return is_effective(fault, process) and is_effective(fault, proxy)
            case Pause():
                return is_effective(fault, process)
            case _:
                return is_effective(fault, proxy, links)

    def heal(self, fault: Fault, fleet: FleetProcess, others: Sequence[Fault] = ()) -> None:
        """Heal a fault. A killed or restarted backend gets connections again once its listener accepts.

        `others` are the other faults in force on its backend.
        """
        name = fault.backend
        if isinstance(fault, RequestFault):
            fleet.clear_fault(fault)
            return
        match fault:
            case Kill() | Restart():
                fleet.restart(name)
                self._enable(name, others)
            case Pause():
                fleet.resume(name)
            case _:
                self._remove(fault)
                if not fault.effect.up:
                    self._enable(name, others)

    def _disable(self, name: str) -> None:
        self._do(f"disable {name}", lambda: self._proxy.disable(name))

    def _enable(self, name: str, others: Sequence[Fault]) -> None:
        """Accept connections again, unless another fault keeps the proxy closed."""
        if any(_closes(fault) for fault in others):
            return
        self._do(f"enable {name}", lambda: self._proxy.enable(name))

    def _add(self, fault: TransportFault) -> None:
        for toxic in fault.toxics():
            self._do(
                f"add {toxic.kind} to {fault.backend}",
                partial(
                    self._proxy.add_toxic,
                    fault.backend,
                    toxic.kind,
                    dict(toxic.attributes),
                    toxic.stream,
                    toxic_name=_name(fault, toxic),
                ),
            )

    def _remove(self, fault: TransportFault) -> None:
        for toxic in fault.toxics():
            name = _name(fault, toxic)
            self._do(f"remove {name} from {fault.backend}", partial(self._proxy.remove_toxic, fault.backend, name))

    def _do(self, what: str, action: Callable[[], Result]) -> Result:
        try:
            return action()
        except FaultProxyError as error:
            self.check()
            raise HarnessError(f"the fault proxy could not {what}: {error}") from None


def _closes(fault: Fault) -> bool:
    """Whether a backend's proxy does not listen while this fault is in force on it."""
    return isinstance(fault, Kill | Restart) or (isinstance(fault, TransportFault) and not fault.effect.up)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _name(fault: TransportFault, toxic: ToxicSpec) -> str:
    """A toxic's name, unique per backend: two kinds of fault may use the same toxic type."""
    return f"{type(fault).__name__.lower()}_{toxic.stream}"
