"""The load process: Locust, or the aiohttp engine, in its own interpreter, one for a session, fed one job per run."""

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
"""Modules that play jobs, with their options."""


class LoadProcess:
    """Speaks JSON lines with `python -m harness.load.locust_engine`, or with another of `ENGINES`."""

    def __init__(self, workdir: Path, engine: str = "locust") -> None:
        self._child = Child((sys.executable, "-m", *ENGINES[engine]), workdir / "load.log", pipes=True)
        self._buffer = b""
        self._ready = False
        self._jobs = 0

    @property
    def alive(self) -> bool:
        """Whether it can take another job."""
        return self._child.status is None

    def await_ready(self) -> None:
        """Return when it takes jobs."""
        if not self._ready:
            answer = self.answer(START_S)
            if answer is None or not answer.get("ready"):
                raise HarnessError(f"the load process is not up after {START_S:.0f} s: {self._child.last_line()}")
            self._ready = True

    def begin(self, job: LoadJob, path: Path, news_s: float = 0.0) -> None:
        """Hand it a job; its answer comes when the job is done. `news_s`: how often it tells of it; 0: never."""
        job.write(path)
        self._jobs += 1
        self._say({"job": str(self._jobs), "file": str(path), **({"news_s": news_s} if news_s else {})})

    def abandon(self) -> None:
        """Ask for the end of the current job; requests not sent yet stay so."""
        self._say({"stop": True})

    def _say(self, message: dict[str, Any]) -> None:
        try:
            self._child.stdin.write(json.dumps(message).encode() + b"\n")
            self._child.stdin.flush()
        except OSError:
            self._child.wait(1.0)
            raise HarnessError(f"the load process ended: {self._child.ending()}") from None

    def answer(self, patience_s: float) -> dict[str, Any] | None:
        """Its next line; None if none came within `patience_s`. HarnessError if it died or reports an error."""
        deadline_s = time.monotonic() + patience_s
        while b"\n" not in self._buffer:
            left_s = deadline_s - time.monotonic()
            if not self._readable(max(left_s, 0.0)):  # what is there is read even without patience
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

    def _readable(self, patience_s: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            return bool(selector.select(patience_s))

    def stop(self) -> None:
        """End it."""
        self._child.stop()
