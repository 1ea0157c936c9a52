"""Child processes: started through the guard, in their own process group, with output in a file; always reaped."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import IO

import psutil

from harness.live.process import guard
from harness.scenario.model import HarnessError

STOP_S = 5.0

SEVERE = re.compile(r"\b(emerg|alert|crit|critical|fatal|panic)\b", re.IGNORECASE)
"""Log levels that servers use for errors they cannot recover from."""

TAIL_BYTES = 64 * 2**10
TAIL_LINES = 20
"""A plain "error" within this many last lines may explain the exit; earlier ones are ignored as noise."""

NO_OUTPUT = "(no output)"


class Child:
    """A running command. `log` receives its standard error, and its standard output unless `pipes` is set.

    `more_logs`: files that the command writes itself; they are searched for diagnostics too.
    """

    def __init__(
        self,
        words: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        pipes: bool = False,
        more_logs: Sequence[Path] = (),
    ) -> None:
        self.words = tuple(words)
        self.log = log
        self._more_logs = tuple(more_logs)
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                [*guard.COMMAND, str(os.getpid()), *words],
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else sink,
                stderr=sink,
                env=dict(environment) if environment is not None else None,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id of the command: the guard replaces itself with it (exec)."""
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
        """Send a signal to the child only; does nothing if it has ended."""
        if self.status is None:
            self._process.send_signal(number)

    def wait(self, timeout_s: float) -> bool:
        """Whether the child ended within `timeout_s`."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, number: Signals = SIGTERM, timeout_s: float = STOP_S) -> None:
        """End the child: send `number`, after `timeout_s` SIGKILL to its whole group. Always reaps."""
        self.signal(number)
        self.wait(timeout_s)
        self._kill_group()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # closing flushes data that a dead child will never read
                    pipe.close()

    def _kill_group(self) -> None:
        """SIGKILL the rest of the group, including workers of a dead master."""
        try:
            os.killpg(self.pid, SIGKILL)
        except (ProcessLookupError, PermissionError):
            return
        deadline_s = time.monotonic() + STOP_S
        while self.status is None and time.monotonic() < deadline_s:
            self.wait(0.05)

    def last_line(self) -> str:
        """Last line of its output, for messages."""
        lines = self.last_lines(1)
        return lines[-1].strip() if lines else NO_OUTPUT

    def last_lines(self, count: int) -> list[str]:
        """Up to `count` last lines of its output."""
        return _tail(self.log).splitlines()[-count:]

    def diagnostic_line(self) -> str:
        """The line that best explains a failure: a severe one of any of its logs, else one of its output."""
        text = _tail(self.log)
        for severe in (_severe_line(text), *(_severe_line(_tail(log)) for log in self._more_logs)):
            if severe:
                return severe
        return diagnostic_line(text)

    def ending(self) -> str:
        """How the child ended, with its diagnostic line."""
        status = self.status
        if status is None:
            return "still running"
        how = f"signal {Signals(-status).name}" if status < 0 else f"exit status {status}"
        reason = self.diagnostic_line()
        return f"{how}; {'last line' if reason == self.last_line() else 'it said'}: {reason}"


def diagnostic_line(output: str) -> str:
    """The line of a process's output that best explains a failure; the last line if there is no candidate.

    The first severe line, because the last one is often a mere summary ("Fatal errors found in configuration"); else
    the first with "error" near the end. Indented lines are skipped: they are code in a traceback.
    """
    severe = _severe_line(output)
    if severe:
        return severe
    lines = output.rstrip().splitlines() or [NO_OUTPUT]
    candidates = (line for line in lines[-TAIL_LINES:] if "error" in line.lower() and not line[0].isspace())
    return next(candidates, lines[-1]).strip()


def _severe_line(output: str) -> str:
    return next((line.strip() for line in output.splitlines() if SEVERE.search(line) and not line[0].isspace()), "")


def _tail(log: Path) -> str:
    """The end of a log file, without a partial first line; empty if it cannot be read."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return (text if size <= TAIL_BYTES else text.partition("\n")[2]).rstrip()


def children_of(pid: int) -> set[int]:
    """Process ids of the running children of `pid`, without zombies; empty if it does not exist."""
    try:
        return {child.pid for child in psutil.Process(pid).children() if _runs(child)}
    except psutil.NoSuchProcess:
        return set()


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
