"""The process of one backend in a fleet with ``--processes``.

It exchanges lines with the fleet on its standard streams. The first input line is a ``BackendSettings`` as written by
``encode``, answered by ``ready`` or ``error: ...``. ``reset NONCE`` is answered ``reset NONCE``; ``faults`` with a
``Change`` in JSON is answered ``faults`` with the active faults. The process exits at the end of the input.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import pickle
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from mockgpu.faults.decisions import Change
from mockgpu.fleet.parent_death import die_with_parent
from mockgpu.gpu.catalogue import Setup
from mockgpu.server.attempt_log import AttemptLog
from mockgpu.server.clock import Clock
from mockgpu.server.listening import PortError
from mockgpu.server.run_state import Options
from mockgpu.server.server import MockBackend


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """The settings of one backend. They are sent through a pipe, so no process list shows the token."""

    name: str
    setup: Setup
    host: str
    port: int
    log_path: Path
    log_rows: int
    nonce: int
    token: str
    options: Options
    parent_pid: int

    def encode(self) -> bytes:
        """One line for a child's standard input."""
        return base64.b64encode(pickle.dumps(self)) + b"\n"


def decode(line: bytes) -> BackendSettings:
    """Read a line of ``encode``. Only for lines from the parent process: unpickling trusts its input."""
    settings = pickle.loads(base64.b64decode(line))
    assert isinstance(settings, BackendSettings)
    return settings


def _write_line(line: str) -> None:
    print(line, flush=True)


async def _serve(settings: BackendSettings, lines: asyncio.StreamReader) -> None:
    clock = Clock(asyncio.get_running_loop())
    log = AttemptLog(settings.log_path, settings.log_rows)
    backend = MockBackend(
        settings.name,
        settings.setup,
        clock,
        log,
        nonce=settings.nonce,
        token=settings.token,
        options=settings.options,
    )
    try:
        await backend.start(settings.host, settings.port)
    except PortError as error:
        _write_line(f"error: {error}")
        return
    gc.collect()
    gc.freeze()
    _write_line("ready")
    while line := (await lines.readline()).decode():
        word, _, rest = line.strip().partition(" ")
        if word == "faults":
            _write_line(f"faults {json.dumps(backend.change_faults(Change.from_json(json.loads(rest))))}")
            continue
        assert word == "reset"
        backend.reset(int(rest))
        _write_line(f"reset {rest}")


async def _run() -> None:
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    first = await lines.readline()
    if not first:
        return
    settings = decode(first)
    die_with_parent(signal.SIGKILL, settings.parent_pid)
    await _serve(settings, lines)


def main() -> None:
    """Serve until the end of the input."""
    # Ctrl-C signals the whole process group; the fleet decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(_run())
    # No cleanup is needed: the kernel keeps the log's pages, and clients see the same as after a kill.
    os._exit(0)
