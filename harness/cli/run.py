"""`steelyard run`: the built-in suites, run by pytest."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from harness.cli.target_option import TargetOption


def run(
    target: TargetOption = "reference",
    world: Annotated[str, typer.Option(help="sim, live or all")] = "all",
    seed: Annotated[int, typer.Option(help="Seed of all arrivals and choices.", min=0)] = 1,
    tolerate: Annotated[str, typer.Option(help="inconclusive: report such outcomes as skipped")] = "",
    time_scale: Annotated[
        str, typer.Option(help="Factor for all durations of live runs; auto: 2 on a busy machine, else 1.")
    ] = "auto",
    toxiproxy: Annotated[str, typer.Option(help="embedded, real, or the URL of a running one")] = "embedded",
    select: Annotated[str, typer.Option("-k", help="Only matching properties, as in pytest -k.")] = "",
) -> None:
    """Judge a target by all properties. Exit code: 0 all pass, 1 some do not, 2 none could be judged."""
    words = [sys.executable, "-P", "-m", "pytest", "--pyargs", "suites"]
    values = {"target": target, "world": world, "seed": str(seed), "toxiproxy": toxiproxy}
    values |= {"time-scale": time_scale} if time_scale != "auto" else {}
    values |= {"tolerate": tolerate} if tolerate else {}
    # One word each: pytest takes a separate value for a path until it knows the option. An empty target is passed on,
    # and refused: an unset variable must not select the reference.
    words += [f"--{name}={value}" for name, value in values.items()]
    if select:
        words += ["-k", select]
    sys.stdout.flush()
    # No process in between: pytest itself handles Ctrl-C and signals, and sets the exit code.
    os.execv(sys.executable, words)
