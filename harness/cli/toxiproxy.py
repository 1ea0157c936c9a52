"""`steelyard toxiproxy`: the fault proxy alone, for Toxiproxy clients in any language."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def toxiproxy(
    host: Annotated[str, typer.Option(help="Address of the control API.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the control API; 0: any free port, which is printed.")] = 8474,
    config: Annotated[Path | None, typer.Option(help="File with a JSON array of proxies, as for /populate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of toxicities, jitter and slices.")] = None,
    proxy_metrics: Annotated[bool, typer.Option("--proxy-metrics", help="Bytes per proxy at /metrics.")] = False,
    runtime_metrics: Annotated[bool, typer.Option("--runtime-metrics", help="Process metrics at /metrics.")] = False,
) -> None:
    """Run a fault proxy with Toxiproxy's control API, until SIGTERM or Ctrl-C."""
    from harness.cli.errors import exit_on
    from harness.toxiproxy.server import ServerOptions, StartError, run_server

    with exit_on(StartError, code=2):
        run_server(ServerOptions(host, port, config, seed, proxy_metrics, runtime_metrics))
