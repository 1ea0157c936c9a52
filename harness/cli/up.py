"""`steelyard up`: fleet, fault proxy and balancer brought up, with a live view of what goes on."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def up(
    target: Annotated[
        str, typer.Option(help="reference, nginx, a claims file (.toml), or python:package.module:Class")
    ] = "reference",
    backends: Annotated[
        int | None, typer.Option(min=1, max=28, help="How many mock GPU servers: 4, or as many as a claims file names.")
    ] = None,
    gpu: Annotated[str, typer.Option(help="A GPU of the catalogue (mockgpu models); quick ones by default.")] = "",
    model: Annotated[str, typer.Option(help="A model of the catalogue; a quick one by default.")] = "",
    rate: Annotated[float, typer.Option(min=0, help="Own load, in requests/s; 0: none, you send yours.")] = 20.0,
    models: Annotated[int, typer.Option(min=1, help="How many model names the own load asks for.")] = 24,
    toxiproxy: Annotated[str, typer.Option(help="embedded, real, or the URL of a running one")] = "embedded",
    nginx: Annotated[str, typer.Option(help="Path of another nginx binary.")] = "",
    name: Annotated[str, typer.Option(help="What steelyard fault calls it, where several are up.")] = "default",
    seed: Annotated[int, typer.Option(min=0, help="Seed of ports, keys and choices.")] = 1,
    seconds: Annotated[float | None, typer.Option(min=0, help="End by itself after so long.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="A line of text a second; so without a terminal.")] = False,
) -> None:
    """Bring up mock GPU servers, a fault proxy and a balancer, and watch them until Ctrl-C.

    All figures are seen from outside: in the backends' logs and by the clients of the own load. Faults are set with
    steelyard fault from another terminal.
    """
    from harness.cli.fleet_size import fleet_size
    from harness.live.environment import EnvironmentOptions
    from harness.scenario.model import DiedError, HarnessError
    from harness.targets import resolve
    from harness.up.run import run_up

    try:
        chosen = resolve(target, nginx or None)
        options = EnvironmentOptions(fleet_size(chosen, backends), toxiproxy, gpu, model, models, rate, seed)
        options.setup()  # a wrong name shows before anything is started
        run_up(chosen, options, name, seconds, plain or not sys.stdout.isatty())
    except (HarnessError, DiedError) as error:
        print(f"steelyard: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(1) from None
