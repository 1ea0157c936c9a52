"""The balancer under test as a process: start it as the target specifies, change its membership, stop it."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from pathlib import Path

from harness.live.process.child import Child, children_of, diagnostic_line
from harness.live.process.http import accepts, call
from harness.live.process.ports import HOST, is_free
from harness.live.run_queue import listening_group
from harness.scenario.model import AdapterError, DiedError, TargetError
from harness.targets.base import (
    AdminCall,
    AwaitNewWorkers,
    ChangeStep,
    Deployment,
    LiveTarget,
    RunCommand,
    Signal,
    WriteFile,
)

START_S = 15.0
CHANGE_S = 10.0
LINES_KEPT = 20
"""Lines of a balancer's output that the record keeps."""

NOT_STARTED = "start it first, or give a [run] table so that Steelyard does"


class Balancer:
    """A deployed target. TargetError if it cannot start; DiedError if it ends or refuses a change later on.

    With `begin=False` a target is started only if it waits for its files (`Launch.early`); `begin` must then be called
    once its backends listen.
    """

    def __init__(self, target: LiveTarget, deployment: Deployment, begin: bool = True) -> None:
        self._target = target
        self._deployment = deployment
        self._child: Child | None = None
        self._launch = target.launch(deployment)
        inherited = {name: value for name, value in os.environ.items() if name not in self._launch.unset}
        self._environment = {**inherited, **self._launch.environment}
        self.url = target.url or f"http://{deployment.host}:{deployment.port}"
        if self._launch.early:
            self._start()
        if begin:
            self.begin()

    @property
    def group(self) -> int | None:
        """Process id of the balancer's process group; None if it runs elsewhere or may not be looked up."""
        return self._child.pid if self._child else listening_group(self.url)

    def last_lines(self) -> list[str]:
        """The end of its output; empty if Steelyard did not start it."""
        return self._child.last_lines(LINES_KEPT) if self._child else []

    def begin(self) -> None:
        """Write its files, and start it unless it already runs."""
        for path, text in self._launch.files.items():
            _write(self._deployment.workdir, path, text)
        if self._launch.check:
            self._check(self._launch.check)
        if self._launch.start and self._child is None:
            self._start()

    def _start(self) -> None:
        port = int(self.url.rpartition(":")[2].rstrip("/"))
        if not is_free(port):
            raise TargetError(
                f"port {port} is taken; {self._target.name} cannot listen there: free it or choose another"
            )
        workdir = self._deployment.workdir
        logs = [workdir / log for log in self._target.logs]
        self._child = Child(self._launch.start, workdir / "balancer.log", self._environment, more_logs=logs)

    def _check(self, words: tuple[str, ...]) -> None:
        try:
            result = subprocess.run(words, capture_output=True, env=self._environment, timeout=START_S, check=False)
        except OSError as error:
            raise TargetError(
                f"{words[0]}: cannot be run ({error.strerror}); is {self._target.name} installed?"
            ) from None
        except subprocess.TimeoutExpired as error:
            raise TargetError(f"{self._target.name} did not finish checking its configuration: {error}") from None
        if result.returncode:
            raise TargetError(f"{self._target.name} refuses its configuration: {_diagnosis(result)}")

    def await_listening(self) -> None:
        """Return when it accepts connections. TargetError if it ends or takes too long.

        A balancer that Steelyard does not start and that does not listen yet is reported on standard error at once.
        """
        deadline_s = time.monotonic() + START_S
        host, _, port = self.url.partition("://")[2].rstrip("/").rpartition(":")
        reported = self._child is not None
        while not accepts(host or HOST, int(port)):
            if not reported:
                print(f"waiting {START_S:.0f} s for {self._target.name} to listen at {self.url}", file=sys.stderr)
                reported = True
            if self._child is not None and self._child.status is not None:
                raise TargetError(f"{self._target.name} does not start: {self._child.ending()}")
            if time.monotonic() > deadline_s:
                reason = self._child.diagnostic_line() if self._child else NOT_STARTED
                raise TargetError(f"{self._target.name} does not listen at {self.url} after {START_S:.0f} s: {reason}")
            time.sleep(0.01)

    def not_ready(self, why: str) -> TargetError:
        """The error for a balancer that listens but does not become ready."""
        status = f"; {self._child.ending()}" if self._child else ""
        return TargetError(f"{self._target.name} does not get ready: {why}{status}")

    def check(self) -> None:
        """DiedError if it has ended."""
        if self._child is not None and self._child.status is not None:
            raise DiedError(self._child.ending())

    def change(self, deployment: Deployment) -> None:
        """Apply the membership of `deployment`. DiedError if the balancer refuses."""
        started = self._workers()
        try:
            steps = self._target.change(deployment)
        except AdapterError:
            raise
        except TargetError as error:  # a template may fail with fewer backends; the start succeeded, so the run goes on
            raise DiedError(f"refused a change: {error}") from None
        for step in steps:
            self._carry_out(step, started)
        self.check()

    def _carry_out(self, step: ChangeStep, workers: set[int]) -> None:
        match step:
            case WriteFile(path, text):
                _write(self._deployment.workdir, path, text)
            case Signal(number):
                if self._child is not None:
                    self._child.signal(number)
            case RunCommand(words):
                try:
                    result = subprocess.run(
                        words, capture_output=True, env=self._environment, timeout=CHANGE_S, check=False
                    )
                except (OSError, subprocess.TimeoutExpired) as error:
                    raise DiedError(f"refused a change: {error}") from None
                if result.returncode:
                    raise DiedError(f"refused a change: exit status {result.returncode}: {_diagnosis(result)}")
            case AdminCall(method, url, body):
                self._call(method, url, body)
            case AwaitNewWorkers():
                self._await_new_workers(workers)

    def _call(self, method: str, url: str, body: str) -> None:
        try:
            answer = call(method, url, body.encode(), {"content-type": "application/json"}, CHANGE_S)
        except (OSError, http.client.HTTPException) as error:
            self.check()
            raise DiedError(f"refused a change: {method} {url}: {error}") from None
        if not 200 <= answer.status < 300:
            raise DiedError(f"refused a change: {method} {url}: {answer.status} {answer.body[:200]!r}")

    def _workers(self) -> set[int]:
        return children_of(self._child.pid) if self._child else set()

    def _await_new_workers(self, old: set[int]) -> None:
        """Wait until all `old` workers have ended and new ones run. DiedError after `CHANGE_S`."""
        deadline_s = time.monotonic() + CHANGE_S
        while True:
            now = self._workers()
            if now and not now & old:
                return
            self.check()
            if time.monotonic() > deadline_s:
                reason = self._child.diagnostic_line() if self._child else ""
                raise DiedError(f"refused a change: its workers were not replaced in {CHANGE_S:.0f} s; {reason}")
            time.sleep(0.005)

    def stop(self) -> None:
        """Send the target's stop signal; kill the processes that remain."""
        if self._child is not None:
            self._child.stop(self._target.stop_signal)


def _diagnosis(result: subprocess.CompletedProcess[bytes]) -> str:
    return diagnostic_line((result.stderr or result.stdout).decode(errors="replace").strip())


def _write(workdir: Path, path: str, text: str) -> None:
    """Write a file by rename, so that a balancer that watches it never reads a partial file."""
    final = workdir / path
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = final.with_name(final.name + ".part")
    partial.write_text(text, encoding="utf-8")
    partial.rename(final)
