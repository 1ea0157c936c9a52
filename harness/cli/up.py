"""`steelyard up`: start a fleet, a fault proxy and a balancer, with a live view."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from harness.cli.target_option import TargetOption


def up(
    target: TargetOption = "reference",
    backends: Annotated[
        int | None, typer.Option(min=1, max=28, help="Number of mock GPU servers: 4, or as in a claims file.")
    ] = None,
    gpu: Annotated[str, typer.Option(help="A GPU of the catalogue (mockgpu models); a quick one by default.")] = "",
    model: Annotated[str, typer.Option(help="A model of the catalogue; a quick one by default.")] = "",
    rate: Annotated[float, typer.Option(min=0, help="Background load, in requests/s; 0: none.")] = 20.0,
    models: Annotated[int, typer.Option(min=1, help="Number of model names that the background load requests.")] = 24,
    toxiproxy: Annotated[str, typer.Option(help="embedded, real, or the URL of a running one")] = "embedded",
    name: Annotated[str, typer.Option(help="Name for steelyard fault, if several are running.")] = "default",
    seed: Annotated[int, typer.Option(min=0, help="Seed of ports, keys and choices.")] = 1,
    seconds: Annotated[float | None, typer.Option(min=0, help="End after this time.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="A line per second; the default without a terminal.")] = False,
) -> None:
    """Start mock GPU servers, a fault proxy and a balancer, and show them until Ctrl-C.

    All figures are observed from outside: in the backends' logs and by the clients of the background load. Faults are
    set with steelyard fault from another terminal.
    """
    from harness.cli.errors import exit_on
    from harness.cli.fleet_size import fleet_size
    from harness.live.environment import EnvironmentOptions
    from harness.scenario.model import DiedError, HarnessError
    from harness.targets import resolve
    from harness.up.run import run_up

    with exit_on(HarnessError, DiedError):
        chosen = resolve(target)
        options = EnvironmentOptions(fleet_size(chosen, backends), toxiproxy, gpu, model, models, rate, seed)
        options.setup()  # reports an invalid name before anything is started
        run_up(chosen, options, name, seconds, plain or not sys.stdout.isatty())
