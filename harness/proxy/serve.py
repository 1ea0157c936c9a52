"""A gateway as a process, in its aiohttp shell, with an admin interface: `python -m harness.proxy.serve CONFIG.json`.

With `--wait` before it the file may come later: half a second of imports goes by while backends start.
`steelyard balancer` serves by the same code.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from aiohttp import web

from harness.balancer.core.loading import form, gateway_from
from harness.gateway.protocol import NowFunction, ShutdownAsked
from harness.proxy.admin import Admin
from harness.proxy.client_connections import ClientConnections, ConnectionLimits
from harness.proxy.driver import Driver
from harness.proxy.metrics import tasks
from harness.proxy.upstreams import BackendAddress, place_of
from harness.scenario.model import ClaimsError

LOOPBACK = "127.0.0.1"
LOOK_S = 0.005
BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class Serving:
    """What to serve where. Port 0 is any free one; `admin_port` None: no admin interface, which is on loopback only.

    `spec` as in harness.balancer.core.loading. After `drain_deadline_s` a shutdown no longer waits for what is in
    flight.
    """

    spec: str
    host: str
    port: int
    admin_port: int | None
    health_path: str
    key_carrier: str
    seed: int
    backends: tuple[BackendAddress, ...]
    drain_deadline_s: float = 30.0
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)


@dataclass(frozen=True, slots=True)
class Listening:
    """The URLs that are served; `admin` empty without an admin interface."""

    url: str
    admin: str


async def run(serving: Serving, ready: Callable[[Listening], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then until what is in flight is answered; a second one ends it at once.

    `ready` is called when everything listens. OSError for a port that cannot be had.
    """
    now = NowFunction(time.monotonic())
    gateway = gateway_from(serving.spec, now, Random(f"{serving.seed}/gateway"))
    shell = Driver(gateway, now, serving.health_path, serving.key_carrier)
    front = ClientConnections(shell.answer, serving.limits)
    shell.meters.gauge("steelyard_requests_in_flight", "Client requests under way.", lambda: shell.requests_in_flight)
    shell.meters.gauge("steelyard_client_connections", "Open client connections.", lambda: front.open_connections)
    shell.meters.gauge("steelyard_tasks", "Tasks of the event loop.", tasks)
    asked = _Asked()
    clients = web.ServerRunner(front)
    admin = web.AppRunner(Admin(shell).application(), access_log=None)
    try:
        shell.use(serving.backends)
        listening = await _listen(serving, clients, admin)
        if ready is not None:
            ready(listening)
        gc.freeze()
        await asked.once_or(shell.stopped)
        await _finish(clients, front, shell, asked, serving.drain_deadline_s)
    finally:
        await shell.close()
        await admin.cleanup()
        await clients.cleanup()


async def _listen(serving: Serving, clients: web.ServerRunner, admin: web.AppRunner) -> Listening:
    await clients.setup()
    site = web.TCPSite(clients, serving.host, serving.port, backlog=BACKLOG)
    await site.start()
    url = f"http://{f'[{serving.host}]' if ':' in serving.host else serving.host}:{site.port}"
    await admin.setup()
    if serving.admin_port is None:
        return Listening(url, "")
    admin_site = web.TCPSite(admin, LOOPBACK, serving.admin_port)
    await admin_site.start()
    return Listening(url, f"http://{LOOPBACK}:{admin_site.port}")


async def _finish(
    clients: web.ServerRunner, front: ClientConnections, shell: Driver, asked: _Asked, deadline_s: float
) -> None:
    """Answer what was read, with no new connections; what is not answered by the deadline is cut."""
    end = asyncio.create_task(_answer_all(clients, front, shell))
    again = asyncio.create_task(asked.again.wait())
    done, pending = await asyncio.wait((end, again), timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    if end in done:
        end.result()
        return
    cut = front.cut()
    if cut:
        why = "asked again" if again in done else f"after {deadline_s:g} s"
        print(f"stopped {why} with {cut} requests unanswered", file=sys.stderr, flush=True)


async def _answer_all(clients: web.ServerRunner, front: ClientConnections, shell: Driver) -> None:
    for site in list(clients.sites):
        await site.stop()
    await front.leave_idle()
    await front.all_heard()
    shell.tell(ShutdownAsked())
    await shell.stopped.wait()
    await front.all_gone()


class _Asked:
    """SIGTERM and SIGINT as events: the first one, and any further one."""

    def __init__(self) -> None:
        self._once = asyncio.Event()
        self.again = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        (self.again if self._once.is_set() else self._once).set()

    async def once_or(self, other: asyncio.Event) -> None:
        """Return at the first signal, or when `other` is set."""
        waiting = [asyncio.create_task(event.wait()) for event in (self._once, other)]
        _, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()


def main(path: str, waits: bool = False) -> int:
    """Exit status: 0 after a stop, 2 if it cannot start. `waits`: for the file, which must come by a rename."""
    file = Path(path)
    if waits:
        form()  # kept, and needed by the reference: better made while there is nothing else to do
        while not file.exists():
            time.sleep(LOOK_S)
    config = json.loads(file.read_text(encoding="utf-8"))
    config["backends"] = tuple(place_of(item) for item in config["backends"])
    config["limits"] = ConnectionLimits(**config.get("limits", {}))
    serving = Serving(**config)
    try:
        asyncio.run(run(serving))
    except ClaimsError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"cannot listen on {serving.host}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[-1], waits="--wait" in sys.argv[1:-1]))
