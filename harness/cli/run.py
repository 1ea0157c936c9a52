"""`steelyard run`: the suites that ship with Steelyard, judged by pytest."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer


def run(
    target: Annotated[
        str,
        typer.Option(
            help="reference, reference:SETTINGS.toml, nginx, a claims file (.toml), or python:package.module:Class"
        ),
    ] = "reference",
    world: Annotated[str, typer.Option(help="sim, live or all")] = "all",
    seed: Annotated[int, typer.Option(help="Seed of all arrivals and choices.", min=0)] = 1,
    tolerate: Annotated[str, typer.Option(help="inconclusive: turn such outcomes into skips")] = "",
    toxiproxy: Annotated[str, typer.Option(help="embedded, real, or the URL of a running one")] = "embedded",
    nginx: Annotated[str, typer.Option(help="Path of another nginx binary.")] = "",
    select: Annotated[str, typer.Option("-k", help="Only properties that match, as in pytest -k.")] = "",
) -> None:
    """Judge a target by all properties. Exit code: 0 all kept, 1 some not, 2 none could be judged."""
    words = [sys.executable, "-P", "-m", "pytest", "--pyargs", "suites"]
    values = {"target": target, "world": world, "seed": str(seed), "toxiproxy": toxiproxy}
    values |= {name: value for name, value in (("tolerate", tolerate), ("nginx", nginx)) if value}
    # In one word each: pytest takes a word of its own for a path until it knows the option. An empty target goes on as
    # it is, and is refused: an unset variable must not have the reference judged instead.
    words += [f"--{name}={value}" for name, value in values.items()]
    if select:
        words += ["-k", select]
    sys.stdout.flush()
    # No process in between: Ctrl-C, signals and the exit code are pytest's own.
    os.execv(sys.executable, words)
