"""`python -m harness.toxiproxy`: run the fault proxy as a process of its own.

Prints `ready host:port` once the control API answers. Exits with 0 on SIGTERM or SIGINT, with 2 if it can't start.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import os
import signal
import socket
import sys
from pathlib import Path

from aiohttp import web

from harness.toxiproxy.address import ListenError, bound_address, join_address, listen_on, resolve_listen
from harness.toxiproxy.api import VERSION, ControlApi, read_wishes
from harness.toxiproxy.registry import ProxyWish, Registry
from harness.toxiproxy.wire import ApiError

PR_SET_PDEATHSIG = 1
SHUTDOWN_S = 1.0


class StartError(Exception):
    """It can't start; the text is one line for the user."""


def main(arguments: list[str] | None = None) -> int:
    """Run until a signal; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.with_parent is not None:
            _leave_with_parent(options.with_parent)
        wishes = [] if options.config is None else _read_config(options.config)
        asyncio.run(_serve(options, wishes))
    except StartError as error:
        print(f"toxiproxy: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the signal handlers were there
        return 0
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness.toxiproxy", description=__doc__)
    parser.add_argument("-host", "--host", default="127.0.0.1", help="address of the control API")
    parser.add_argument("-port", "--port", type=int, default=8474, help="its port; 0 takes a free one")
    parser.add_argument("-config", "--config", type=Path, help="JSON array of proxies, as for /populate")
    parser.add_argument("-seed", "--seed", type=int, help="of toxicities, jitter and slices")
    parser.add_argument(
        "--with-parent",
        nargs="?",
        type=int,
        const=0,
        metavar="PID",
        help="end when the thread that started this process ends (Linux); with PID, also if it has ended already",
    )
    parser.add_argument("-version", "--version", action="version", version=f"speaks Toxiproxy {VERSION}")
    return parser


def _leave_with_parent(parent_pid: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if parent_pid and os.getppid() != parent_pid:
        raise StartError(f"parent process {parent_pid} has ended already, start it from a living one")


def _read_config(path: Path) -> list[ProxyWish]:
    try:
        return read_wishes(path.read_bytes())
    except OSError as error:
        raise StartError(f"can't read --config {path}: {error.strerror}") from None
    except ApiError as error:
        raise StartError(f"--config {path} is no array of proxies: {error}") from None


async def _serve(options: argparse.Namespace, wishes: list[ProxyWish]) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    registry = Registry(options.seed)
    listener = await _listen(options.host, options.port)
    try:
        await _configure(registry, wishes)
        http = web.Server(ControlApi(registry).handle, access_log=None)
        server = await loop.create_server(http, sock=listener)
        # What was loaded so far lives as long as the process: keep it out of every later collection.
        gc.collect()
        gc.freeze()
        print(f"ready {bound_address(listener)}", flush=True)
        await stop.wait()
        server.close()
        await http.shutdown(SHUTDOWN_S)
    finally:
        await registry.close()
        listener.close()


async def _listen(host: str, port: int) -> socket.socket:
    try:
        return listen_on(await resolve_listen(join_address(host, port)))
    except ListenError as error:
        raise StartError(
            f"can't serve the control API on {host}:{port} ({error}); choose another --port, or 0 for a free one"
        ) from None


async def _configure(registry: Registry, wishes: list[ProxyWish]) -> None:
    try:
        await registry.populate(wishes, [])
    except (ApiError, ListenError) as error:
        raise StartError(f"can't start the proxies of --config: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
