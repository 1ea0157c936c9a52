"""Serves a gateway over HTTP, with an admin interface: `python -m harness.proxy.serve [--wait] CONFIG.json`.

With `--wait` the file may appear later, so the imports (half a second) overlap with the start of the backends.
`steelyard balancer` uses the same code.
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

from harness.balancer.core.loading import gateway_from, settings_adapter
from harness.gateway.protocol import NowFunction, ShutdownAsked
from harness.proxy.admin import Admin
from harness.proxy.client_connections import ClientConnections, ConnectionLimits
from harness.proxy.driver import Driver
from harness.proxy.metrics import tasks
from harness.proxy.upstreams import BackendAddress, address_from_json
from harness.scenario.model import ClaimsError

LOOPBACK = "127.0.0.1"
POLL_S = 0.005
BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class Serving:
    """What to serve and where. Port 0: any free port. The admin interface is on loopback only; `admin_port` None: none.

    `spec` as in harness.balancer.core.loading. A shutdown waits up to `drain_deadline_s` for requests in flight.
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
    """The URLs served; `admin` is empty without an admin interface."""

    url: str
    admin: str


async def run(serving: Serving, ready: Callable[[Listening], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then until requests in flight are answered; a second signal ends it at once.

    `ready` is called when all ports are open. OSError if a port cannot be bound.
    """
    now = NowFunction(time.monotonic())
    gateway = gateway_from(serving.spec, now, Random(f"{serving.seed}/gateway"))
    driver = Driver(gateway, now, serving.health_path, serving.key_carrier)
    client_connections = ClientConnections(driver.answer, serving.limits)
    driver.meters.gauge("steelyard_requests_in_flight", "Client requests in flight.", lambda: driver.requests_in_flight)
    driver.meters.gauge(
        "steelyard_client_connections", "Open client connections.", lambda: client_connections.open_connections
    )
    driver.meters.gauge("steelyard_tasks", "Tasks of the event loop.", tasks)
    signals = _StopSignals()
    runner = web.ServerRunner(client_connections)
    admin = web.AppRunner(Admin(driver).application(), access_log=None)
    try:
        driver.use(serving.backends)
        listening = await _listen(serving, runner, admin)
        if ready is not None:
            ready(listening)
        gc.freeze()
        await signals.first_or(driver.stopped)
        await _finish(runner, client_connections, driver, signals, serving.drain_deadline_s)
    finally:
        await driver.close()
        await admin.cleanup()
        await runner.cleanup()


async def _listen(serving: Serving, runner: web.ServerRunner, admin: web.AppRunner) -> Listening:
    await runner.setup()
    site = web.TCPSite(runner, serving.host, serving.port, backlog=BACKLOG)
    await site.start()
    url = f"http://{f'[{serving.host}]' if ':' in serving.host else serving.host}:{site.port}"
    await admin.setup()
    if serving.admin_port is None:
        return Listening(url, "")
    admin_site = web.TCPSite(admin, LOOPBACK, serving.admin_port)
    await admin_site.start()
    return Listening(url, f"http://{LOOPBACK}:{admin_site.port}")


async def _finish(
    runner: web.ServerRunner,
    client_connections: ClientConnections,
    driver: Driver,
    signals: _StopSignals,
    deadline_s: float,
) -> None:
    """Refuse new connections and answer the requests read so far; cut those unanswered at the deadline."""
    finished = asyncio.create_task(_answer_all(runner, client_connections, driver))
    again = asyncio.create_task(signals.again.wait())
    done, pending = await asyncio.wait((finished, again), timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    if finished in done:
        finished.result()
        return
    cut = client_connections.abort_all()
    if cut:
        why = "by a second signal" if again in done else f"after {deadline_s:g} s"
        print(f"stopped {why} with {cut} requests unanswered", file=sys.stderr, flush=True)


async def _answer_all(runner: web.ServerRunner, client_connections: ClientConnections, driver: Driver) -> None:
    for site in list(runner.sites):
        await site.stop()
    await client_connections.close_idle()
    await client_connections.all_requests_read()
    driver.dispatch(ShutdownAsked())
    await driver.stopped.wait()
    await client_connections.all_closed()


class _StopSignals:
    """SIGTERM and SIGINT as events: one for the first signal, `again` for further ones."""

    def __init__(self) -> None:
        self._first = asyncio.Event()
        self.again = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        (self.again if self._first.is_set() else self._first).set()

    async def first_or(self, other: asyncio.Event) -> None:
        """Return at the first signal, or when `other` is set."""
        waiting = [asyncio.create_task(event.wait()) for event in (self._first, other)]
        _, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()


def main(path: str, waits: bool = False) -> int:
    """Exit status: 0 after a stop, 2 if it cannot start. `waits`: await the file, which must appear by a rename."""
    file = Path(path)
    if waits:
        settings_adapter()  # cached; the reference needs it later, and there is idle time now
        while not file.exists():
            time.sleep(POLL_S)
    config = json.loads(file.read_text(encoding="utf-8"))
    config["backends"] = tuple(address_from_json(item) for item in config["backends"])
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
