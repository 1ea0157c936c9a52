"""Child processes: started behind the guard, in a group of their own, with their output in a file; always reaped."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import IO

from harness.live import guard
from harness.model import HarnessError

GUARD = str(Path(guard.__file__))
STOP_S = 5.0


class Child:
    """A running command. `log` collects its standard error, and its standard output unless `pipes` is set."""

    def __init__(
        self,
        words: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        pipes: bool = False,
    ) -> None:
        self.words = tuple(words)
        self.log = log
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", GUARD, str(os.getpid()), *words],
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else sink,
                stderr=sink,
                env=dict(environment) if environment is not None else None,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id; the guard becomes the command, so it is the command's own."""
        return self._process.pid

    @property
    def stdin(self) -> IO[bytes]:
        """Pipe to the child; only with `pipes`."""
        if self._process.stdin is None:
            raise HarnessError(f"{self.words[0]} was started without pipes")
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """Pipe from the child; only with `pipes`."""
        if self._process.stdout is None:
            raise HarnessError(f"{self.words[0]} was started without pipes")
        return self._process.stdout

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def signal(self, number: Signals) -> None:
        """Send a signal to the child itself; nothing if it has ended."""
        if self.status is None:
            self._process.send_signal(number)

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended within `timeout_s`."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, number: Signals = SIGTERM, timeout_s: float = STOP_S) -> None:
        """End the child: `number` first, SIGKILL to its whole group if it is not gone in time. Always reaps."""
        self.signal(number)
        self.wait(timeout_s)
        self._kill_group()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # closing writes out what a dead child will never read
                    pipe.close()

    def _kill_group(self) -> None:
        """SIGKILL whatever is left of the group, workers of a dead master included."""
        try:
            os.killpg(self.pid, SIGKILL)
        except (ProcessLookupError, PermissionError):
            return
        deadline_s = time.monotonic() + STOP_S
        while self.status is None and time.monotonic() < deadline_s:
            self.wait(0.05)

    def last_line(self) -> str:
        """Last line it wrote, for messages."""
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return "(no output)"
        return lines[-1].strip() if lines else "(no output)"

    def ending(self) -> str:
        """How it ended, in words, with its last line."""
        status = self.status
        if status is None:
            return "still running"
        how = f"signal {Signals(-status).name}" if status < 0 else f"exit status {status}"
        return f"{how}; last line: {self.last_line()}"


def descendants(pid: int) -> list[tuple[int, float]]:
    """Process id and start time (clock ticks) of the children of `pid`; empty where /proc does not tell."""
    found: list[tuple[int, float]] = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append((int(entry.parent.name), float(fields[19])))
    return found
