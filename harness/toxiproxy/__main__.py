"""`python -m harness.toxiproxy`: run the fault proxy as a process of its own, with Toxiproxy's options.

Prints `ready host:port` once the control API answers. Exits with 0 on SIGTERM or SIGINT, with 2 if it can't start.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from harness.parent_death import die_with_parent
from harness.toxiproxy.address import LOOPBACK
from harness.toxiproxy.api import VERSION
from harness.toxiproxy.server import DEFAULT_PORT, ServerOptions, StartError, run_server


def main(arguments: list[str] | None = None) -> int:
    """Run until a signal; returns the exit code."""
    args = _parser().parse_args(arguments)
    try:
        if args.with_parent is not None:
            parent = args.with_parent
            if not die_with_parent(signal.SIGTERM, parent):
                raise StartError(f"parent process {parent} has ended already, start it from a living one")
        options = ServerOptions(args.host, args.port, args.config, args.seed, args.proxy_metrics, args.runtime_metrics)
        run_server(options)
    except StartError as error:
        print(f"steelyard: error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness.toxiproxy", description=__doc__)
    parser.add_argument("-host", "--host", default=LOOPBACK, help="address of the control API")
    parser.add_argument("-port", "--port", type=int, default=DEFAULT_PORT, help="its port; 0 takes a free one")
    parser.add_argument("-config", "--config", type=Path, help="JSON array of proxies, as for /populate")
    parser.add_argument("-seed", "--seed", type=int, help="of toxicities, jitter and slices")
    parser.add_argument("-proxy-metrics", "--proxy-metrics", action="store_true", help="bytes by proxy at /metrics")
    parser.add_argument("-runtime-metrics", "--runtime-metrics", action="store_true", help="the process at /metrics")
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


if __name__ == "__main__":
    sys.exit(main())
