"""The two kinds of backend in a fleet: one in the fleet's own process, one in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Protocol

from mockgpu.catalogue import Setup
from mockgpu.child import Settings
from mockgpu.clock import Clock
from mockgpu.faults import Change
from mockgpu.log import AttemptLog
from mockgpu.server import Backend

# A child that says nothing for so long is stuck, paused or on a hopeless machine.
_ANSWER_WITHIN_S = 20.0


class MemberError(RuntimeError):
    """A backend could not be started or does not answer; the text is one line."""


class ConflictError(RuntimeError):
    """A step that the backend's present state or kind does not allow; the text is one line."""


class Member(Protocol):
    """One backend as the fleet handles it. What it can't do raises MemberError or ConflictError."""

    name: str
    port: int

    @property
    def pid(self) -> int | None:
        """The process that it runs in, or ran in last."""

    @property
    def alive(self) -> bool:
        """Whether it serves."""

    @property
    def log_paths(self) -> list[Path]:
        """The log of each of its lives since the last reset, oldest first."""

    async def start(self) -> None:
        """Begin to serve; returns when the listener accepts."""

    async def reset(self, nonce: int) -> None:
        """Begin run ``nonce``."""

    async def change_faults(self, change: Change) -> list[dict[str, object]]:
        """Clear and set faults; returns those in force, see ``RequestFaults.report``."""

    async def kill(self) -> None:
        """SIGKILL; returns when the process is reaped."""

    async def restart(self) -> None:
        """Serve from a fresh process."""

    async def close(self) -> None:
        """End it."""


class LocalMember(Member):
    """A backend in this process; it can't be killed."""

    def __init__(
        self,
        name: str,
        setup: Setup,
        host: str,
        port: int,
        log_path: Path,
        log_rows: int,
        *,
        nonce: int,
        token: str,
        clock: Clock,
    ) -> None:
        self.name = name
        self.port = port
        self._host = host
        self._log_path = log_path
        self._log = AttemptLog(log_path, log_rows)
        self._backend = Backend(name, setup, clock, self._log, nonce=nonce, token=token)
        self._listens = False

    @property
    def pid(self) -> int | None:
        return os.getpid()

    @property
    def alive(self) -> bool:
        return self._listens

    @property
    def log_paths(self) -> list[Path]:
        return [self._log_path]

    async def start(self) -> None:
        self.port = await self._backend.start(self._host, self.port)
        self._listens = True

    async def reset(self, nonce: int) -> None:
        self._backend.reset(nonce)

    async def change_faults(self, change: Change) -> list[dict[str, object]]:
        return self._backend.change_faults(change)

    async def kill(self) -> None:
        raise ConflictError(f"{self.name} shares the fleet's process; start the fleet with --processes")

    async def restart(self) -> None:
        await self.kill()

    async def close(self) -> None:
        if self._listens:
            await self._backend.close()
        self._listens = False
        self._log.close()


class ChildMember(Member):
    """A backend in a process of its own. Each life has its own log file, gone with the next reset."""

    def __init__(
        self,
        name: str,
        setup: Setup,
        host: str,
        port: int,
        folder: Path,
        log_rows: int,
        *,
        nonce: int,
        token: str,
    ) -> None:
        self.name = name
        self.port = port
        self._setup = setup
        self._host = host
        self._folder = folder
        self._log_rows = log_rows
        self._nonce = nonce
        self._token = token
        self._process: Process | None = None
        self._lives = 0
        self._log_paths: list[Path] = []
        self._step = asyncio.Lock()  # kill, restart and reset exclude each other

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def log_paths(self) -> list[Path]:
        return list(self._log_paths)

    async def start(self) -> None:
        """Begin a life; returns when the listener accepts."""
        path = self._folder / f"{self.name}.{self._lives}.log"
        self._lives += 1
        settings = Settings(
            name=self.name,
            setup=self._setup,
            host=self._host,
            port=self.port,
            log_path=path,
            log_rows=self._log_rows,
            nonce=self._nonce,
            token=self._token,
            parent_pid=os.getpid(),
        )
        # The child must find this very package, wherever the parent found it.
        code = f"import sys; sys.path[:] = {sys.path!r}; from mockgpu.child import main; main()"
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-c", code, self.name, stdin=PIPE, stdout=PIPE
        )
        try:
            answer = await self._ask(settings.encode())
        except MemberError:
            await self._end()
            raise
        if answer != "ready":
            await self._end()
            raise MemberError(f"{self.name}: {answer.removeprefix('error: ') or 'its process ended at once'}")
        self._log_paths.append(path)

    async def reset(self, nonce: int) -> None:
        """Begin a run; the logs of former lives go."""
        async with self._step:
            self._nonce = nonce
            if self.alive:
                answer = await self._ask(f"reset {nonce}\n".encode())
                # Nothing: it was killed from outside just now, which is no failure of ours.
                if answer not in ("", f"reset {nonce}"):
                    raise MemberError(f"{self.name}: answered a reset with {answer!r}")
            keep = self._log_paths[-1:] if self.alive else []
            for path in self._log_paths:
                if path not in keep:
                    path.unlink(missing_ok=True)
            self._log_paths = keep

    async def change_faults(self, change: Change) -> list[dict[str, object]]:
        """Set and clear faults of this life; returns those in force. ConflictError if it is dead and some are set."""
        async with self._step:
            if not self.alive:
                if change.set:
                    raise ConflictError(f"{self.name} is dead, so it can't be given faults; restart it first")
                return []
            answer = await self._ask(f"faults {json.dumps(change.to_json())}\n".encode())
            word, _, report = answer.partition(" ")
            if word != "faults":
                raise MemberError(f"{self.name}: answered a change of faults with {answer!r}")
            in_force: list[dict[str, object]] = json.loads(report)
            return in_force

    async def kill(self) -> None:
        """SIGKILL; returns when the process is reaped. ConflictError if it is dead already."""
        async with self._step:
            if not self.alive:
                raise ConflictError(f"{self.name} is dead already")
            await self._end()

    async def restart(self) -> None:
        """A fresh process on the same port, with nothing resident; one that still lives is killed first."""
        async with self._step:
            await self._end()
            await self.start()

    async def close(self) -> None:
        await self._end()

    async def _end(self) -> None:
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            # Not process.kill(): it reaps a child that has just ended, behind asyncio's back.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        if process.stdin is not None:
            process.stdin.close()

    async def _ask(self, line: bytes) -> str:
        """Send a line and return the one that answers it; empty if the process ends instead."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                process.stdin.write(line)
                return (await process.stdout.readline()).decode().strip()
        except TimeoutError:
            raise MemberError(f"{self.name}: no answer within {_ANSWER_WITHIN_S:.0f} s") from None
        except ConnectionError:
            return ""
