"""The `steelyard` command. Each group of subcommands has its own file, which imports its dependencies when it runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from harness.cli.balancer import balancer
from harness.cli.catalogue import catalogue
from harness.cli.chaos import chaos
from harness.cli.errors import USAGE_ERROR, print_error, print_usage_error
from harness.cli.fault import fault
from harness.cli.load_command.command import load
from harness.cli.run import run
from harness.cli.targets import targets
from harness.cli.toxiproxy import toxiproxy
from harness.cli.up import up
from harness.scenario.model import ClaimsError, TargetError

app = typer.Typer(
    name="steelyard",
    help="Weighs load balancers: which of its promises does your inference gateway keep, with numbers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables truncate long option names at 80 columns
)
app.command()(run)
app.command()(catalogue)
app.command()(chaos)
app.command()(targets)
app.command()(load)
app.command()(balancer)
app.command()(toxiproxy)
app.command()(up)
app.add_typer(fault, name="fault")


@app.callback(invoke_without_command=True)
def steelyard(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    """Weighs load balancers: which of its promises does your inference gateway keep, with numbers."""
    if version:
        import importlib.metadata

        print(f"steelyard {importlib.metadata.version('steelyard')}")
        raise typer.Exit


def main() -> None:
    """Entry point of the command. Usage errors and balancers that do not start: one line, exit code 2."""
    try:
        code = app(prog_name="steelyard", standalone_mode=False)
    except (ClaimsError, TargetError) as error:
        print_error(error)
        code = 2
    except USAGE_ERROR as error:
        print_usage_error(error)
        code = 2
    sys.exit(code or 0)
