"""The fault proxy between balancer and backends: set a fault, probe that it bites, heal it.

Every byte between balancer and backend passes through it. Faults of processes and of single requests are the mock
fleet's, which is asked for them here too. A fault counts from the moment at which a probe of ours sees
it, not from the call that asked for it.
"""

from __future__ import annotations

import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from harness.live.calls import accepts
from harness.live.children import Child
from harness.live.fleet import Fleet
from harness.live.ports import HOST, PortBlock
from harness.model import HarnessError, TargetError
from harness.timeline import (
    Blackhole,
    CutOff,
    Down,
    FailingStatus,
    Fault,
    Hang,
    Kill,
    Latency,
    NotReady,
    OverCapacity,
    Reset,
    Slow,
    as_mock,
)
from harness.toxiproxy.client import Connection, FaultProxy, FaultProxyError

Result = TypeVar("Result")

START_S = 5.0
PROBE_S = 3.0
SILENT_S = 0.1
"""A connection that brought no byte of an answer for this long is taken for silent."""

REAL = "toxiproxy-server"


class FaultWay:
    """One fault proxy with a proxy per backend, named like it. `kind`: embedded, real (from PATH) or a URL."""

    def __init__(self, kind: str, block: PortBlock, workdir: Path) -> None:
        self._child: Child | None = None
        self._addresses: dict[str, tuple[str, int]] = {}
        host, port = HOST, block.fault_control
        if kind == "embedded":
            words = [sys.executable, "-m", "harness.toxiproxy", "--host", host, "--port", str(port), "--with-parent"]
            self._child = Child(words, workdir / "toxiproxy.log")
        elif kind == "real":
            binary = shutil.which(REAL)
            if binary is None:
                raise TargetError(f"--toxiproxy real: no {REAL} on PATH; install it, or leave the option out")
            self._child = Child([binary, "-host", host, "-port", str(port)], workdir / "toxiproxy.log")
        else:
            parts = urlsplit(kind if "//" in kind else f"http://{kind}")
            if parts.hostname not in ("127.0.0.1", "localhost") or parts.port is None:
                raise TargetError(f"--toxiproxy {kind}: expected embedded, real, or http://127.0.0.1:PORT")
            host, port = "127.0.0.1", parts.port
        self._proxy = FaultProxy(host, port)
        self._where = f"{host}:{port}"

    def await_ready(self) -> None:
        """Return when its control API answers. HarnessError if it does not."""
        deadline_s = time.monotonic() + START_S
        host, _, port = self._where.rpartition(":")
        while not accepts(host, int(port)):
            self.check()
            if time.monotonic() > deadline_s:
                raise HarnessError(f"no fault proxy answers at {self._where} after {START_S:.0f} s")
            time.sleep(0.01)
        self._do("ask its version", self._proxy.version)

    def check(self) -> None:
        """HarnessError if it has died."""
        if self._child is not None and self._child.status is not None:
            raise HarnessError(f"the fault proxy ended: {self._child.ending()}")

    def open(self, name: str, listen: tuple[str, int], upstream: tuple[str, int]) -> None:
        """Put a proxy for backend `name` at `listen`."""
        self._do(
            f"open a proxy for {name} at {listen[0]}:{listen[1]}",
            lambda: self._proxy.create(name, f"{listen[0]}:{listen[1]}", f"{upstream[0]}:{upstream[1]}"),
        )
        self._addresses[name] = listen  # only now is it ours to remove

    def connections(self) -> list[Connection]:
        """The connections it saw; empty for a real Toxiproxy, which does not tell."""
        return self._do("list connections", self._proxy.connections)

    def stop(self) -> None:
        """End it, or remove our proxies from one that is not ours."""
        if self._child is not None:
            self._child.stop()
            return
        for name in self._addresses:
            try:
                self._proxy.delete(name)
            except FaultProxyError:
                continue  # it is gone already, or its server is: nothing of ours is left either way

    # --- faults -------------------------------------------------------------------------------------------

    def begin(self, fault: Fault, fleet: Fleet, seed: int = 0) -> float | None:
        """Set a fault. The time (CLOCK_MONOTONIC) at which a probe saw it bite, None if none did.

        `seed` decides which requests a share hits.
        """
        name = fault.backend
        match fault:
            case Kill():
                fleet.kill(name)
                self._do(f"disable {name}", lambda: self._proxy.disable(name))
                return self._await(lambda: not accepts(*self._addresses[name]))
            case Down():
                self._do(f"disable {name}", lambda: self._proxy.disable(name))
                return self._await(lambda: not accepts(*self._addresses[name]))
            case Latency(latency_s=latency_s):
                self._toxic(name, "latency", {"latency": round(latency_s * 1000), "jitter": 0}, "downstream")
                return self._await(lambda: self._first_byte_s(name, latency_s + 2.0) >= latency_s * 0.99)
            case Blackhole():
                self._toxic(name, "timeout", {"timeout": 0}, "downstream")
                self._toxic(name, "timeout", {"timeout": 0}, "upstream")
                return self._await(lambda: self._first_byte_s(name, SILENT_S) >= SILENT_S)
            case Reset():
                # Only connections opened under the toxic are reset, so the pooled ones are cut first.
                self._do(f"disable {name}", lambda: self._proxy.disable(name))
                self._toxic(name, "reset_peer", {"timeout": 0}, "upstream")
                self._do(f"enable {name}", lambda: self._proxy.enable(name))
                return self._await(lambda: self._is_reset(name))
            case FailingStatus() | OverCapacity() | Slow() | Hang() | CutOff() | NotReady():
                words = as_mock(fault, seed)
                fleet.set_fault(name, words)
                return self._await(lambda: any(words.items() <= active.items() for active in fleet.faults(name)))

    def heal(self, fault: Fault, fleet: Fleet) -> None:
        """Take a fault back."""
        name = fault.backend
        match fault:
            case Kill():
                fleet.restart(name)
                self._do(f"enable {name}", lambda: self._proxy.enable(name))
            case Down():
                self._do(f"enable {name}", lambda: self._proxy.enable(name))
            case Latency():
                self._remove(name, "latency_downstream")
            case Blackhole():
                self._remove(name, "timeout_downstream")
                self._remove(name, "timeout_upstream")
            case Reset():
                self._remove(name, "reset_peer_upstream")
            case FailingStatus() | OverCapacity() | Slow() | Hang() | CutOff() | NotReady():
                fleet.clear_fault(name, as_mock(fault, 0)["kind"])

    def _toxic(self, name: str, kind: str, attributes: dict[str, int], stream: str) -> None:
        self._do(f"add {kind} to {name}", lambda: self._proxy.add_toxic(name, kind, attributes, stream))

    def _remove(self, name: str, toxic: str) -> None:
        self._do(f"remove {toxic} from {name}", lambda: self._proxy.remove_toxic(name, toxic))

    def _do(self, what: str, action: Callable[[], Result]) -> Result:
        try:
            return action()
        except FaultProxyError as error:
            self.check()
            raise HarnessError(f"the fault proxy could not {what}: {error}") from None

    # --- probes -------------------------------------------------------------------------------------------

    @staticmethod
    def _await(bites: Callable[[], bool]) -> float | None:
        deadline_s = time.monotonic() + PROBE_S
        while time.monotonic() < deadline_s:
            if bites():
                return time.monotonic()
            time.sleep(0.005)
        return None

    def _first_byte_s(self, name: str, patience_s: float) -> float:
        """Seconds until the first byte of an answer to a ping through the proxy; `patience_s` if none came."""
        began_s = time.monotonic()
        try:
            with socket.create_connection(self._addresses[name], timeout=patience_s) as probe:
                probe.sendall(b"GET /mock/ping HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n")
                probe.recv(1)
        except OSError:
            return patience_s
        return time.monotonic() - began_s

    def _is_reset(self, name: str) -> bool:
        try:
            with socket.create_connection(self._addresses[name], timeout=1.0) as probe:
                probe.sendall(b"GET /mock/ping HTTP/1.1\r\nHost: probe\r\n\r\n")
                probe.recv(1)
        except ConnectionResetError:
            return True
        except OSError:
            return False
        return False
