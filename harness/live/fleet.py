"""The mock fleet as a child process, and its control interface."""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from pathlib import Path
from typing import Protocol

from harness.evidence.records import Rows
from harness.live.evidence import log_rows, own_failures
from harness.live.process.child import Child
from harness.live.process.http import HttpResponse, accepts, call
from harness.live.process.ports import HOST, PortBlock
from harness.scenario.faults import RequestFault
from harness.scenario.model import HarnessError
from harness.targets.base import LEAN_ENVIRONMENT
from mockgpu.faults.decisions import Change

START_S = 10.0


class Server(Protocol):
    """Configuration of a fleet's backends."""

    def as_setup(self) -> str:
        """The JSON that `mockgpu.gpu.catalogue.Setup.from_json` reads."""


class FleetProcess:
    """`count` mock GPU model servers; `processes`: each in its own process, so that it can be killed or paused."""

    def __init__(self, block: PortBlock, count: int, server: Server, workdir: Path, processes: bool) -> None:
        self._block = block
        self._count = count
        setup = workdir / "setup.json"
        setup.write_text(server.as_setup())
        words = [sys.executable, "-m", "mockgpu", "serve", "--backends", str(count)]
        words += ["--ports", ",".join(str(block.backend(number)) for number in range(count))]
        words += ["--control-port", str(block.fleet_control), "--setup", str(setup), "--with-parent"]
        words += ["--processes"] if processes else []
        self._child = Child(words, workdir / "fleet.log", {**os.environ, **LEAN_ENVIRONMENT})

    @property
    def group(self) -> int:
        """Process id of its process group."""
        return self._child.pid

    def await_ready(self) -> None:
        """Return when every backend accepts. HarnessError if the fleet ends or takes too long."""
        deadline_s = time.monotonic() + START_S
        ports = [self._block.fleet_control, *(self._block.backend(number) for number in range(self._count))]
        while not all(accepts(HOST, port) for port in ports):
            self.check()
            if time.monotonic() > deadline_s:
                raise HarnessError(f"the mock fleet is not up after {START_S:.0f} s: {self._child.last_line()}")
            time.sleep(0.01)

    def check(self) -> None:
        """HarnessError if the fleet has died."""
        if self._child.status is not None:
            raise HarnessError(f"the mock fleet ended: {self._child.ending()}")

    def reset(self, nonce: int) -> None:
        """Clear caches and logs, and set `nonce` as the run's nonce."""
        self._control("POST", "/fleet/reset", json.dumps({"nonce": nonce}).encode())

    def kill(self, backend: str) -> None:
        """SIGKILL the process of `backend`; returns when it is reaped."""
        self._control("POST", f"/fleet/{backend}/kill")

    def restart(self, backend: str) -> None:
        """Start `backend` again with a cold cache; returns when its listener accepts."""
        self._control("POST", f"/fleet/{backend}/restart")

    def pause(self, backend: str) -> None:
        """SIGSTOP the process of `backend`: connections are accepted, but no call is answered, ours included."""
        self._control("POST", f"/fleet/{backend}/pause")

    def resume(self, backend: str) -> None:
        """SIGCONT the process of `backend`."""
        self._control("POST", f"/fleet/{backend}/resume")

    def set_fault(self, fault: RequestFault) -> None:
        """Set a request fault on its backend; returns when it is in force."""
        self._change_faults(fault.backend, Change(set=(fault,)))

    def clear_fault(self, fault: RequestFault) -> None:
        """Remove the fault of this kind from its backend, if there is one."""
        self._change_faults(fault.backend, Change(clear=frozenset({fault.kind})))

    def _change_faults(self, backend: str, change: Change) -> None:
        self._control("POST", f"/fleet/{backend}/faults", json.dumps(change.to_json()).encode())

    def faults(self, backend: str) -> list[dict[str, object]]:
        """The faults in force at `backend`, each with `hits`, the number of requests it has affected."""
        faults: list[dict[str, object]] = json.loads(self._control("GET", f"/fleet/{backend}/faults").body)["faults"]
        return faults

    def log(self, backend: str) -> bytes:
        """The attempt log of `backend`, rows before a kill included."""
        return self._control("GET", f"/fleet/{backend}/log").body

    def rows(self, backend: str) -> Rows:
        """The attempt log as rows. HarnessError if the mock itself failed at a request: its answers are no evidence."""
        rows = log_rows(self.log(backend))
        failed = own_failures(rows)
        if failed:
            reason = self._child.diagnostic_line()
            raise HarnessError(f"the mock {backend} itself failed at {failed} of {len(rows)} log entries: {reason}")
        return rows

    def stop(self) -> None:
        """End the fleet and all its processes."""
        self._child.stop()

    def _control(self, method: str, path: str, body: bytes = b"") -> HttpResponse:
        url = f"http://{HOST}:{self._block.fleet_control}{path}"
        try:
            answer = call(method, url, body, {"content-type": "application/json"})
        except (OSError, http.client.HTTPException) as error:
            self.check()
            raise HarnessError(f"the mock fleet does not answer {method} {path}: {error}") from None
        if not 200 <= answer.status < 300:
            raise HarnessError(f"the mock fleet answered {answer.status} to {method} {path}: {answer.body[:200]!r}")
        return answer
