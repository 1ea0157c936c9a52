"""`--target`, the same in every command that takes a balancer under test."""

from __future__ import annotations

from typing import Annotated

import typer

TargetOption = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="NAME[:ARGUMENT]",
        help="Balancer under test: a name that steelyard targets lists, a claims file (.toml), or python:MODULE:CLASS.",
    ),
]
