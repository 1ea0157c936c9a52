"""The two kinds of fleet member: a backend in the fleet's own process, and one in a child process."""

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

# A child without an answer for this long is stuck or paused, or the machine is overloaded.
_ANSWER_TIMEOUT_S = 20.0


class MemberError(RuntimeError):
    """A backend could not be started or does not answer; the text is one line."""


class ConflictError(RuntimeError):
    """A step that the backend's state or kind does not allow; the text is one line."""


def _already_dead(name: str) -> ConflictError:
    return ConflictError(f"{name} is already dead")


def _already_alive(name: str) -> ConflictError:
    return ConflictError(f"{name} is already alive")


def _no_faults(name: str) -> ConflictError:
    return ConflictError(f"{name} is dead, so faults cannot be set; restart it first")


class Member(Protocol):
    """One backend of a fleet. Steps raise MemberError on failure and ConflictError if not allowed."""

    name: str
    port: int

    @property
    def pid(self) -> int | None:
        """Its current process, or its last one; None if never started."""

    @property
    def alive(self) -> bool:
        """Whether it serves or is paused."""

    @property
    def state(self) -> str:
        """``alive``, ``paused`` or ``dead``."""

    @property
    def log_paths(self) -> list[Path]:
        """The log of each of its processes since the last reset, oldest first."""

    async def start(self) -> None:
        """Start to serve; returns when the listener accepts."""

    async def reset(self, nonce: int) -> None:
        """Begin run ``nonce``."""

    async def change_faults(self, change: Change) -> list[dict[str, object]]:
        """Clear and set faults; returns the active ones, see ``RequestFaults.report``."""

    async def kill(self) -> None:
        """SIGKILL; returns when the process has been reaped."""

    async def pause(self) -> None:
        """SIGSTOP: the port still accepts, and no request is answered."""

    async def resume(self) -> None:
        """SIGCONT."""

    async def stop(self) -> None:
        """Orderly stop; afterwards the port refuses connections."""

    async def restart(self, *, only_dead: bool = False) -> None:
        """Restart with empty memory; ``only_dead``: raise ConflictError if it is alive."""

    async def close(self) -> None:
        """Stop the backend for good."""


class LocalMember(Member):
    """A backend in this process; it cannot be killed or paused."""

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
        self._listening = False
        self._step_lock = asyncio.Lock()  # stop and restart exclude each other

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
        return self._listening

    @property
    def state(self) -> str:
        return "alive" if self._listening else "dead"

    @property
    def log_paths(self) -> list[Path]:
        return [self._log_path]

    async def start(self) -> None:
        self.port = await self._backend.start(self._host, self.port)
        self._listening = True

    async def reset(self, nonce: int) -> None:
        self._nonce = nonce
        self._backend.reset(nonce)

    async def change_faults(self, change: Change) -> list[dict[str, object]]:
        if not self._listening and change.set:
            raise _no_faults(self.name)
        return self._backend.change_faults(change)

    async def kill(self) -> None:
        raise self._needs_process()

    async def pause(self) -> None:
        raise self._needs_process()

    async def resume(self) -> None:
        raise self._needs_process()

    async def stop(self) -> None:
        async with self._step_lock:
            if not self._listening:
                raise _already_dead(self.name)
            await self._end()

    async def restart(self, *, only_dead: bool = False) -> None:
        async with self._step_lock:
            if only_dead and self._listening:
                raise _already_alive(self.name)
            await self._end()
            self._backend = self._new_backend()
            await self.start()

    async def close(self) -> None:
        await self._end()
        self._log.close()

    async def _end(self) -> None:
        if self._listening:
            await self._backend.close()
        self._listening = False

    def _needs_process(self) -> ConflictError:
        return ConflictError(f"{self.name} shares the fleet's process; start the fleet with --processes")


class ChildMember(Member):
    """A backend in a child process. Each process has its own log file; a reset deletes those of earlier processes."""

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
        self._starts = 0
        self._log_paths: list[Path] = []
        self._step_lock = asyncio.Lock()  # kill, restart and reset exclude each other

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
        """Start a process; returns when the listener accepts."""
        path = self._folder / f"{self.name}.{self._starts}.log"
        self._starts += 1
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
        # The child must import the same package as the parent.
        code = f"import sys; sys.path[:] = {sys.path!r}; from mockgpu.fleet.child import main; main()"
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-c", code, self.name, stdin=PIPE, stdout=PIPE
        )
        try:
            answer = await self._request(settings.encode())
        except MemberError:
            await self._end()
            raise
        if answer != "ready":
            await self._end()
            raise MemberError(f"{self.name}: {answer.removeprefix('error: ') or 'its process ended at once'}")
        self._log_paths.append(path)

    async def reset(self, nonce: int) -> None:
        """Begin a run: resume the process if paused, and delete the logs of earlier processes."""
        async with self._step_lock:
            self._nonce = nonce
            self._resume_process()
            if self.alive:
                answer = await self._request(f"reset {nonce}\n".encode())
                # Empty: the process was killed from outside just now, which is not an error.
                if answer not in ("", f"reset {nonce}"):
                    raise MemberError(f"{self.name}: answered a reset with {answer!r}")
            keep = self._log_paths[-1:] if self.alive else []
            for path in self._log_paths:
                if path not in keep:
                    path.unlink(missing_ok=True)
            self._log_paths = keep

    async def change_faults(self, change: Change) -> list[dict[str, object]]:
        """Clear and set faults; returns the active ones. ConflictError if paused, or dead and ``change`` sets any."""
        async with self._step_lock:
            if not self.alive:
                if change.set:
                    raise _no_faults(self.name)
                return []
            if self._paused:
                raise ConflictError(f"{self.name} is paused and does not answer; resume it first")
            answer = await self._request(f"faults {json.dumps(change.to_json())}\n".encode())
            word, _, report = answer.partition(" ")
            if word != "faults":
                raise MemberError(f"{self.name}: answered a change of faults with {answer!r}")
            active: list[dict[str, object]] = json.loads(report)
            return active

    async def kill(self) -> None:
        """SIGKILL; returns when the process has been reaped. ConflictError if it is already dead."""
        async with self._step_lock:
            self._require_alive()
            await self._end()

    async def pause(self) -> None:
        """SIGSTOP; ConflictError if it is dead."""
        async with self._step_lock:
            self._require_alive()
            self._signal(signal.SIGSTOP)
            self._paused = True

    async def resume(self) -> None:
        """SIGCONT; does nothing if not paused. ConflictError if it is dead."""
        async with self._step_lock:
            self._require_alive()
            self._resume_process()

    async def stop(self) -> None:
        """Let the process exit; returns when it has been reaped. ConflictError if it is already dead."""
        async with self._step_lock:
            self._require_alive()
            self._resume_process()
            process = self._process
            assert process is not None and process.stdin is not None
            process.stdin.close()
            try:
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                raise MemberError(f"{self.name}: did not end within {_ANSWER_TIMEOUT_S:.0f} s") from None

    async def restart(self, *, only_dead: bool = False) -> None:
        """Start a new process on the same port with empty memory; a living one is killed first."""
        async with self._step_lock:
            if only_dead and self.alive:
                raise _already_alive(self.name)
            await self._end()
            await self.start()

    async def close(self) -> None:
        await self._end()

    def _require_alive(self) -> None:
        if not self.alive:
            raise _already_dead(self.name)

    def _resume_process(self) -> None:
        if self._paused and self.alive:
            self._signal(signal.SIGCONT)
        self._paused = False

    def _signal(self, sign: signal.Signals) -> None:
        assert self._process is not None
        # Not Process.send_signal: it may reap a child that has just ended, without asyncio noticing.
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

    async def _request(self, line: bytes) -> str:
        """Send a line and return the answer line; empty if the process ends instead."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                process.stdin.write(line)
                return (await process.stdout.readline()).decode().strip()
        except TimeoutError:
            raise MemberError(f"{self.name}: no answer within {_ANSWER_TIMEOUT_S:.0f} s") from None
        except ConnectionError:
            return ""
