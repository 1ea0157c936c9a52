"""`steelyard toxiproxy`: the fault proxy alone, for any Toxiproxy client in any language."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def toxiproxy(
    host: Annotated[str, typer.Option(help="Address of the control API.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Its port; 0 takes a free one and prints it.")] = 8474,
    config: Annotated[Path | None, typer.Option(help="JSON array of proxies, as for /populate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of toxicities, jitter and slices.")] = None,
    proxy_metrics: Annotated[bool, typer.Option("--proxy-metrics", help="Bytes by proxy at /metrics.")] = False,
    runtime_metrics: Annotated[bool, typer.Option("--runtime-metrics", help="The process at /metrics.")] = False,
) -> None:
    """Run a fault proxy that speaks Toxiproxy's control API, until SIGTERM or Ctrl-C."""
    from harness.toxiproxy.server import ServerOptions, StartError, run_server

    try:
        run_server(ServerOptions(host, port, config, seed, proxy_metrics, runtime_metrics))
    except StartError as error:
        print(f"steelyard: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
