"""The load process: Locust or the aiohttp engine in its own interpreter; one per session, with one job per run."""

from __future__ import annotations

import json
import selectors
import sys
import time
from pathlib import Path
from typing import Any

from harness.live.process.child import Child
from harness.load.job import LoadJob
from harness.scenario.model import HarnessError

START_S = 20.0


ENGINES = {"locust": ("harness.load.locust_engine", "--with-parent"), "aiohttp": ("harness.load.asyncio_engine",)}
"""Modules that play jobs, with their command-line options."""


class LoadProcess:
    """Exchanges JSON lines with `python -m harness.load.locust_engine`, or another of `ENGINES`."""

    def __init__(self, workdir: Path, engine: str = "locust") -> None:
        self._child = Child((sys.executable, "-m", *ENGINES[engine]), workdir / "load.log", pipes=True)
        self._buffer = b""
        self._ready = False
        self._jobs = 0

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child.status is None

    @property
    def group(self) -> int:
        """Process id of its process group."""
        return self._child.pid

    def await_ready(self) -> None:
        """Return when it accepts jobs. HarnessError after `START_S`."""
        if not self._ready:
            answer = self.answer(START_S)
            if answer is None or not answer.get("ready"):
                raise HarnessError(f"the load process is not up after {START_S:.0f} s: {self._child.last_line()}")
            self._ready = True

    def begin(self, job: LoadJob, path: Path, progress_s: float = 0.0) -> None:
        """Submit a job; it answers when the job is done. `progress_s`: interval of progress messages; 0: none."""
        job.write(path)
        self._jobs += 1
        self._send({"job": str(self._jobs), "file": str(path), **({"news_s": progress_s} if progress_s else {})})

    def abandon(self) -> None:
        """End the current job early; requests not sent yet are not sent."""
        self._send({"stop": True})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._child.stdin.write(json.dumps(message).encode() + b"\n")
            self._child.stdin.flush()
        except OSError:
            self._child.wait(1.0)
            raise HarnessError(f"the load process ended: {self._child.ending()}") from None

    def answer(self, timeout_s: float) -> dict[str, Any] | None:
        """Its next message; None if none arrived within `timeout_s`. HarnessError if it ended or reports an error."""
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left_s = deadline_s - time.monotonic()
            if not self._readable(max(left_s, 0.0)):  # available data is read even with a timeout of 0
                return None
            chunk = self._child.stdout.read1(65536)  # type: ignore[attr-defined]
            if not chunk:
                self._child.wait(1.0)
                raise HarnessError(f"the load process ended: {self._child.ending()}")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise HarnessError(f"the load process: {answer['error']}")
        return answer

    def _readable(self, timeout_s: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            return bool(selector.select(timeout_s))

    def stop(self) -> None:
        """Stop the process."""
        self._child.stop()
