"""A fleet of backends and its control port.

All backends share one process, or each has its own, as killing backends requires. The control port speaks JSON:

- ``GET /fleet``: id, port, pid and state (alive, paused, dead) of each backend
- ``POST /fleet/reset`` with a nonce: begin a run on every backend that is alive
- ``POST /fleet/{id}/kill``: SIGKILL; answers when the process has been reaped
- ``POST /fleet/{id}/pause``, ``.../resume``: SIGSTOP and SIGCONT; a reset resumes all
- ``POST /fleet/{id}/stop``: orderly stop; ``.../start``: serve again after a stop or kill
- ``POST /fleet/{id}/restart``: restart on the same port with empty memory, whether alive or not; answers when the
  backend accepts. Kill, pause and resume need one process per backend
- ``POST /fleet/{id}/faults``, ``GET /fleet/{id}/faults``: as ``/mock/faults`` of that backend, see
  ``mockgpu.server.server``; a dead backend has no faults, and none can be set
- ``GET /fleet/{id}/log``: the attempt log of all the backend's processes since the last reset; ``?first=N`` skips the
  first N rows
- ``GET /fleet/ping``
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from aiohttp import web
from aiohttp.web_request import BaseRequest

from mockgpu.api import wire
from mockgpu.faults.decisions import Change
from mockgpu.faults.selection import FaultError
from mockgpu.fleet.members import ChildMember, ConflictError, LocalMember, Member, MemberError
from mockgpu.gpu.catalogue import Setup
from mockgpu.server.attempt_log import LOG_ROWS, read_files
from mockgpu.server.clock import Clock
from mockgpu.server.listening import (
    control_refusal,
    http_server,
    is_loopback,
    json_response,
    listen,
    read_nonce,
    require_identity_encoding,
)
from mockgpu.server.run_state import DEFAULT_OPTIONS, Options

_STEPS: Mapping[str, Callable[[Member], Awaitable[None]]] = MappingProxyType(
    {
        "kill": lambda member: member.kill(),
        "pause": lambda member: member.pause(),
        "resume": lambda member: member.resume(),
        "stop": lambda member: member.stop(),
        "start": lambda member: member.restart(only_dead=True),
        "restart": lambda member: member.restart(),
    }
)


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """The settings of a fleet: one backend ``gpu-N`` per port, all with the same setup.

    ``control_port`` 0 takes a free port; without a ``token`` it is on loopback for any ``host``, and control requests
    from other machines are refused. ``log_rows`` limits the rows of each backend per run.
    """

    setup: Setup
    ports: tuple[int, ...]
    host: str = "127.0.0.1"
    control_port: int = 0
    token: str = ""
    processes: bool = False
    nonce: int = 0
    log_rows: int = LOG_ROWS
    options: Options = DEFAULT_OPTIONS


class Fleet:
    """Use as ``async with Fleet(settings) as fleet``; entering raises PortError or MemberError."""

    def __init__(self, settings: FleetSettings) -> None:
        self._settings = settings
        self._folder: Path | None = None
        self._clock: Clock | None = None
        self._members: dict[str, Member] = {}
        self._runner = http_server(self._control)
        self.control_port = 0

    async def __aenter__(self) -> Fleet:
        self._folder = folder = Path(tempfile.mkdtemp(prefix="mockgpu-"))
        try:
            await self._start(folder)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _start(self, folder: Path) -> None:
        settings = self._settings
        await self._runner.setup()
        # Listen before starting any child, so that a taken port fails early. Without a token, control requests from
        # other machines are refused anyway.
        host = settings.host if settings.token or is_loopback(settings.host) else "127.0.0.1"
        self.control_port = await listen(self._runner, host, settings.control_port)
        new_member = self._new_child if settings.processes else self._new_local
        for number, port in enumerate(settings.ports):
            member = new_member(f"gpu-{number}", port, folder)
            self._members[member.name] = member
        # Await all starts even if one fails, so that none happens after the cleanup.
        results = await asyncio.gather(*(member.start() for member in self._members.values()), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _new_local(self, name: str, port: int, folder: Path) -> Member:
        if self._clock is None:
            self._clock = Clock(asyncio.get_running_loop())
        settings = self._settings
        return LocalMember(
            name,
            settings.setup,
            settings.host,
            port,
            folder / f"{name}.log",
            settings.log_rows,
            nonce=settings.nonce,
            token=settings.token,
            options=settings.options,
            clock=self._clock,
        )

    def _new_child(self, name: str, port: int, folder: Path) -> Member:
        settings = self._settings
        return ChildMember(
            name,
            settings.setup,
            settings.host,
            port,
            folder,
            settings.log_rows,
            nonce=settings.nonce,
            token=settings.token,
            options=settings.options,
        )

    async def close(self) -> None:
        """End all backends and remove their logs."""
        await asyncio.gather(*(member.close() for member in self._members.values()))
        await self._runner.cleanup()
        if self._clock is not None:
            self._clock.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def describe(self) -> list[dict[str, object]]:
        """Id, port, pid and state of each backend."""
        return [
            {
                "id": member.name,
                "port": member.port,
                "pid": member.pid,
                "state": member.state,
            }
            for member in self._members.values()
        ]

    async def reset(self, nonce: int) -> None:
        """Begin run ``nonce`` on every backend: immediately if alive, else at its restart."""
        await asyncio.gather(*(member.reset(nonce) for member in self._members.values()))

    def log(self, name: str, first: int = 0) -> bytes:
        """The attempt log of all processes of a backend since the last reset, from row ``first`` on.

        Raises KeyError for an unknown name.
        """
        return read_files(self._members[name].log_paths, first)

    # -- the control port ------------------------------------------------------------------------------------

    async def _control(self, request: BaseRequest) -> web.Response:
        if reason := control_refusal(request, self._settings.token):
            return _problem(403, reason)
        try:
            require_identity_encoding(request.headers)
            return await self._answer(request)
        except (wire.BadRequestError, FaultError) as bad:
            return _problem(bad.status if isinstance(bad, wire.BadRequestError) else 400, str(bad))
        except ConflictError as conflict:
            return _problem(409, str(conflict))
        except MemberError as error:
            return _problem(500, str(error))

    async def _answer(self, request: BaseRequest) -> web.Response:
        match request.method, request.path.strip("/").split("/"):
            case "GET", ["fleet"]:
                return json_response(200, json.dumps(self.describe()).encode())
            case "GET", ["fleet", "ping"]:
                return json_response(200, b"{}")
            case "POST", ["fleet", "reset"]:
                await self.reset(read_nonce(await request.content.read()))
                return json_response(200, b"{}")
            case "GET", ["fleet", name, "log"] if name in self._members:
                return web.Response(body=self.log(name, _first_row(request)), content_type="application/octet-stream")
            case "GET", ["fleet", name, "faults"] if name in self._members:
                return json_response(200, wire.faults(await self._members[name].change_faults(Change())))
            case "POST", ["fleet", name, "faults"] if name in self._members:
                change = Change.from_json(wire.read_json(await request.content.read()))
                report = await asyncio.shield(self._members[name].change_faults(change))
                return json_response(200, wire.faults(report))
            case "POST", ["fleet", name, step] if name in self._members and step in _STEPS:
                # Shielded: a step that has begun completes even if its caller leaves.
                await asyncio.shield(_STEPS[step](self._members[name]))
                return json_response(200, b"{}")
        return _problem(404, f"no such path: {request.method} {request.path}; backends: {', '.join(self._members)}")


def _first_row(request: BaseRequest) -> int:
    """The number of log rows to skip; raises BadRequestError."""
    text = request.query.get("first", "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise wire.BadRequestError(f"first is {wire.shown(text)}, expected a whole number of rows", "first")
    return int(text)


def _problem(status: int, message: str) -> web.Response:
    return json_response(status, json.dumps({"error": message}).encode())


def serve_until_signal(settings: FleetSettings, hint: str = "") -> None:
    """Run a fleet until SIGTERM or SIGINT; prints ``ready`` and JSON when all ports listen. Errors as in Fleet.

    ``hint``: a line for the user, printed on standard error at that time; "" for none.
    """
    asyncio.run(_serve(settings, hint))


async def _serve(settings: FleetSettings, hint: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, stop.set)
    async with Fleet(settings) as fleet:
        # These objects live until exit: exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        data = {"backends": fleet.describe(), "control_port": fleet.control_port, "pid": os.getpid()}
        if hint:
            print(hint, file=sys.stderr, flush=True)
        print("ready", json.dumps(data), flush=True)
        await stop.wait()
