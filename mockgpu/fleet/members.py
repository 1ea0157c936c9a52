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

from mockgpu.faults.decisions import Change
from mockgpu.fleet.child import BackendSettings
from mockgpu.gpu.catalogue import Setup
from mockgpu.server.attempt_log import AttemptLog
from mockgpu.server.clock import Clock
from mockgpu.server.run_state import Options
from mockgpu.server.server import MockBackend

# A child that says nothing for so long is stuck, paused or on a hopeless machine.
_ANSWER_WITHIN_S = 20.0


class MemberError(RuntimeError):
    """A backend could not be started or does not answer; the text is one line."""


class ConflictError(RuntimeError):
    """A step that the backend's present state or kind does not allow; the text is one line."""


def _dead_already(name: str) -> ConflictError:
    return ConflictError(f"{name} is dead already")


def _alive_already(name: str) -> ConflictError:
    return ConflictError(f"{name} is alive already")


def _no_faults(name: str) -> ConflictError:
    return ConflictError(f"{name} is dead, so it can't be given faults; restart it first")


class Member(Protocol):
    """One backend as the fleet handles it. What it can't do raises MemberError or ConflictError."""

    name: str
    port: int

    @property
    def pid(self) -> int | None:
        """The process that it runs in, or ran in last."""

    @property
    def alive(self) -> bool:
        """Whether it serves, or would if it were not paused."""

    @property
    def state(self) -> str:
        """``alive``, ``paused`` or ``dead``."""

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

    async def pause(self) -> None:
        """SIGSTOP: its port still accepts, and nothing is ever answered."""

    async def resume(self) -> None:
        """SIGCONT."""

    async def stop(self) -> None:
        """End its service in order; its port refuses then."""

    async def restart(self, *, only_dead: bool = False) -> None:
        """Serve afresh, with nothing in memory; ``only_dead``: ConflictError if it still serves."""

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
        options: Options,
        clock: Clock,
    ) -> None:
        self.name = name
        self.port = port
        self._host = host
        self._log_path = log_path
        self._log = AttemptLog(log_path, log_rows)
        self._nonce = nonce
        self._setup = setup
        self._clock = clock
        self._token = token
        self._options = options
        self._backend = self._new_backend()
        self._listens = False
        self._step = asyncio.Lock()  # stop and restart exclude each other

    def _new_backend(self) -> MockBackend:
        return MockBackend(
            self.name,
            self._setup,
            self._clock,
            self._log,
            nonce=self._nonce,
            token=self._token,
            options=self._options,
        )

    @property
    def pid(self) -> int | None:
        return os.getpid()

    @property
    def alive(self) -> bool:
        return self._listens

    @property
    def state(self) -> str:
        return "alive" if self._listens else "dead"

    @property
    def log_paths(self) -> list[Path]:
        return [self._log_path]

    async def start(self) -> None:
        self.port = await self._backend.start(self._host, self.port)
        self._listens = True

    async def reset(self, nonce: int) -> None:
        self._nonce = nonce
        self._backend.reset(nonce)

    async def change_faults(self, change: Change) -> list[dict[str, object]]:
        if not self._listens and change.set:
            raise _no_faults(self.name)
        return self._backend.change_faults(change)

    async def kill(self) -> None:
        raise self._no_process()

    async def pause(self) -> None:
        raise self._no_process()

    async def resume(self) -> None:
        raise self._no_process()

    async def stop(self) -> None:
        async with self._step:
            if not self._listens:
                raise _dead_already(self.name)
            await self._end()

    async def restart(self, *, only_dead: bool = False) -> None:
        async with self._step:
            if only_dead and self._listens:
                raise _alive_already(self.name)
            await self._end()
            self._backend = self._new_backend()
            await self.start()

    async def close(self) -> None:
        await self._end()
        self._log.close()

    async def _end(self) -> None:
        if self._listens:
            await self._backend.close()
        self._listens = False

    def _no_process(self) -> ConflictError:
        return ConflictError(f"{self.name} shares the fleet's process; start the fleet with --processes")


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
        options: Options,
    ) -> None:
        self.name = name
        self.port = port
        self._options = options
        self._paused = False
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
    def state(self) -> str:
        return ("paused" if self._paused else "alive") if self.alive else "dead"

    @property
    def log_paths(self) -> list[Path]:
        return list(self._log_paths)

    async def start(self) -> None:
        """Begin a life; returns when the listener accepts."""
        path = self._folder / f"{self.name}.{self._lives}.log"
        self._lives += 1
        settings = BackendSettings(
            name=self.name,
            setup=self._setup,
            host=self._host,
            port=self.port,
            log_path=path,
            log_rows=self._log_rows,
            nonce=self._nonce,
            token=self._token,
            options=self._options,
            parent_pid=os.getpid(),
        )
        # The child must find this very package, wherever the parent found it.
        code = f"import sys; sys.path[:] = {sys.path!r}; from mockgpu.fleet.child import main; main()"
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
        """Begin a run, which no backend begins paused; the logs of former lives go."""
        async with self._step:
            self._nonce = nonce
            self._continue()
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
                    raise _no_faults(self.name)
                return []
            if self._paused:
                raise ConflictError(f"{self.name} is paused and does not answer; resume it first")
            answer = await self._ask(f"faults {json.dumps(change.to_json())}\n".encode())
            word, _, report = answer.partition(" ")
            if word != "faults":
                raise MemberError(f"{self.name}: answered a change of faults with {answer!r}")
            in_force: list[dict[str, object]] = json.loads(report)
            return in_force

    async def kill(self) -> None:
        """SIGKILL; returns when the process is reaped. ConflictError if it is dead already."""
        async with self._step:
            self._must_live()
            await self._end()

    async def pause(self) -> None:
        """SIGSTOP; ConflictError if it is dead."""
        async with self._step:
            self._must_live()
            self._signal(signal.SIGSTOP)
            self._paused = True

    async def resume(self) -> None:
        """SIGCONT; ConflictError if it is dead. Does nothing to one that is not paused."""
        async with self._step:
            self._must_live()
            self._continue()

    async def stop(self) -> None:
        """Have the process end by itself; returns when it is reaped. ConflictError if it is dead already."""
        async with self._step:
            self._must_live()
            self._continue()
            process = self._process
            assert process is not None and process.stdin is not None
            process.stdin.close()
            try:
                async with asyncio.timeout(_ANSWER_WITHIN_S):
                    await process.wait()
            except TimeoutError:
                raise MemberError(f"{self.name}: did not end within {_ANSWER_WITHIN_S:.0f} s") from None

    async def restart(self, *, only_dead: bool = False) -> None:
        """A fresh process on the same port, with nothing resident; one that still lives is killed first."""
        async with self._step:
            if only_dead and self.alive:
                raise _alive_already(self.name)
            await self._end()
            await self.start()

    async def close(self) -> None:
        await self._end()

    def _must_live(self) -> None:
        if not self.alive:
            raise _dead_already(self.name)

    def _continue(self) -> None:
        if self._paused and self.alive:
            self._signal(signal.SIGCONT)
        self._paused = False

    def _signal(self, sign: signal.Signals) -> None:
        assert self._process is not None
        # Not the process's own method: it reaps a child that has just ended, behind asyncio's back.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, sign)

    async def _end(self) -> None:
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            self._signal(signal.SIGKILL)
        self._paused = False
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
