"""`python -m harness.live.serve CONFIG.json`: a gateway as a process, in its aiohttp shell, with an admin interface."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from aiohttp import web

from harness.balancer.loading import gateway_from
from harness.balancer.protocol import NowFunction, ShutdownAsked
from harness.live.shell import Shell
from harness.model import ClaimsError

LARGEST_BODY = 64 * 2**20
IDLE_S = 3600.0
"""Idle client connections are kept this long: closing one just as it is used again would lose its request."""


async def run(config: dict[str, Any]) -> None:
    """Serve until SIGTERM or SIGINT, then until the gateway says that nothing is in flight."""
    now = NowFunction(time.monotonic())
    gateway = gateway_from(config["spec"], now, Random(f"{config['seed']}/gateway"))
    shell = Shell(gateway, now, config["health_path"], config["key_carrier"])
    shell.change_backends(config["backends"])
    application = web.Application(client_max_size=LARGEST_BODY)
    application.router.add_route("*", "/{tail:.*}", shell.serve)
    admin = web.Application()
    admin.router.add_put("/backends", shell.set_backends)
    runners = [
        web.AppRunner(application, handler_cancellation=True, keepalive_timeout=IDLE_S, access_log=None),
        web.AppRunner(admin, access_log=None),
    ]
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, shell.tell, ShutdownAsked())
    try:
        for runner, port in zip(runners, (config["port"], config["admin_port"]), strict=True):
            await runner.setup()
            await web.TCPSite(runner, config["host"], port, shutdown_timeout=1.0).start()
        gc.freeze()
        await shell.stopped.wait()
    finally:
        await shell.close()
        for runner in runners:
            await runner.cleanup()


def main(path: str) -> int:
    """Exit status: 0 after a stop, 2 if it cannot start."""
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    try:
        asyncio.run(run(config))
    except ClaimsError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"cannot listen on {config['host']}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
