"""The fault proxy as a process: from options to a server that runs until a signal."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from harness.toxiproxy.address import LOOPBACK, ListenError, bound_address, join_address, listen_on, resolve_listen
from harness.toxiproxy.api import ControlApi, read_proxy_requests
from harness.toxiproxy.metrics import ProxyMetrics
from harness.toxiproxy.registry import ProxyRequest, Registry
from harness.toxiproxy.wire import ApiError

DEFAULT_PORT = 8474
SHUTDOWN_S = 1.0
LINGER_S = 1.0  # time to read input after an early answer, so that a reset does not discard the answer
IDLE_S = 60.0
"""Time limit in seconds between two requests of an API client, and for a request head (as Toxiproxy)."""


class StartError(Exception):
    """The server cannot start; the text is one line for the user."""


@dataclass(frozen=True)
class ServerOptions:
    """Options of the server, named as in Toxiproxy.

    Args:
        host: address of the control API.
        port: its port; 0 takes a free one.
        config: a file with a JSON array of proxies, as for /populate.
        seed: for toxicities, jitter and slices; None draws a fresh one.
        proxy_metrics: whether /metrics counts the bytes of each proxy.
        runtime_metrics: whether /metrics includes the process.
    """

    host: str = LOOPBACK
    port: int = DEFAULT_PORT
    config: Path | None = None
    seed: int | None = None
    proxy_metrics: bool = False
    runtime_metrics: bool = False


def run_server(options: ServerOptions) -> None:
    """Serve until SIGTERM or SIGINT; prints `ready host:port` once the control API answers.

    Raises:
        StartError: the port is in use, or the configuration is invalid.
    """
    proxy_requests = [] if options.config is None else _read_config(options.config)
    _raise_descriptor_limit()
    try:
        asyncio.run(_serve(options, proxy_requests))
    except KeyboardInterrupt:  # before the signal handlers were installed
        return


def control_server(api: ControlApi, idle_s: float = IDLE_S) -> web.Server:
    """Serve the API over HTTP. A request head that takes longer than `idle_s` seconds or exceeds 1 MiB is cut off.

    Bodies are not decoded, whatever their Content-Encoding (as Toxiproxy).
    """
    logger = logging.getLogger(__name__)
    logger.addFilter(_is_server_error)
    return web.Server(
        api.handle,
        access_log=None,
        logger=logger,
        keepalive_timeout=idle_s,
        lingering_time=LINGER_S,
        auto_decompress=False,
    )


def _is_server_error(record: logging.LogRecord) -> bool:
    """Whether to log an error: not for invalid HTTP of a client, which gets a 400."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def _read_config(path: Path) -> list[ProxyRequest]:
    try:
        return read_proxy_requests(path.read_bytes())
    except OSError as error:
        raise StartError(f"can't read --config {path}: {error.strerror}; check the path") from None
    except ApiError as error:
        raise StartError(f"--config {path} is no array of proxies: {error}; correct the file") from None


def _raise_descriptor_limit() -> None:
    """Raise the limit of open files: each connection takes two descriptors (Toxiproxy's runtime does so too)."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(options: ServerOptions, proxy_requests: list[ProxyRequest]) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    registry = Registry(options.seed)
    listener = await _listen(options.host, options.port)
    try:
        await _create_configured_proxies(registry, proxy_requests)
        http = control_server(ControlApi(registry, _metrics(options, registry)))
        server = await loop.create_server(http, sock=listener)
        # Objects loaded so far live as long as the process: exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        print(f"ready {bound_address(listener)}", flush=True)
        await stop.wait()
        server.close()
        await http.shutdown(SHUTDOWN_S)
    finally:
        await registry.close()
        listener.close()


def _metrics(options: ServerOptions, registry: Registry) -> ProxyMetrics | None:
    if not (options.proxy_metrics or options.runtime_metrics):
        return None
    return ProxyMetrics(registry.traffic if options.proxy_metrics else None, options.runtime_metrics)


async def _listen(host: str, port: int) -> socket.socket:
    try:
        return listen_on(await resolve_listen(join_address(host, port)))
    except ListenError as error:
        raise StartError(
            f"can't serve the control API on {host}:{port} ({error}); choose another --port, or 0 for a free one"
        ) from None


async def _create_configured_proxies(registry: Registry, proxy_requests: list[ProxyRequest]) -> None:
    try:
        await registry.populate(proxy_requests, [])
    except (ApiError, ListenError) as error:
        raise StartError(f"can't start the proxies of --config: {error}; correct the file or free the port") from None
