"""`steelyard fault`: set, list and clear faults of a running `steelyard up`."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

fault = typer.Typer(
    help="Set, list and clear faults of a running steelyard up.", no_args_is_help=True, rich_markup_mode=None
)

Name = Annotated[str, typer.Option(help="Which steelyard up, where several are running.")]


@fault.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Kinds and their options: steelyard fault kinds. Durations: --latency-ms 800, --latency-s 0.8, --for 10s.",
)
def add(
    backend: Annotated[str, typer.Argument(help="gpu-0, gpu-1, ...")],
    kind: Annotated[str, typer.Argument(help="latency, kill, pause, blackhole, failing-status, leave, ...")],
    options: Annotated[list[str] | None, typer.Argument(help="As --latency-ms 800 --for 10s.")] = None,
    name: Name = "default",
) -> None:
    """Set a fault or change membership, and say when it was seen to take effect.

    Exit code: 0 in force, 1 it never took effect, 2 there is no such thing.
    """
    from harness.live.faults.command_words import parse

    words = options or []
    parse(backend, kind, words)  # mistakes show without a stage, too
    told = _ask(name, "POST", "/faults", {"backend": backend, "kind": kind, "words": words})
    print(told["told"])
    if not told["effective"]:
        raise typer.Exit(1)


@fault.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False, name: Name = "default"
) -> None:
    """List what is in force, and when it heals."""
    rows = _ask(name, "GET", "/faults")
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    if not rows:
        print("no fault is in force")
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from harness.live.faults.command_words import duration

    table = Table("backend", "in force", "since", "heals", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for row in rows:
        heals = "when cleared" if row["heals_in_s"] is None else f"in {duration(row['heals_in_s'])}"
        cells = (row["backend"], row["told"], duration(row["since_s"]), heals)
        table.add_row(*(Text(cell) for cell in cells))
    Console(highlight=False).print(table)


@fault.command()
def clear(
    backend: Annotated[str | None, typer.Argument(help="Only those of this backend.")] = None,
    kind: Annotated[str | None, typer.Argument(help="Only this kind.")] = None,
    name: Name = "default",
) -> None:
    """Heal faults and undo changes of membership."""
    told = _ask(name, "POST", "/faults/clear", {"backend": backend, "kind": kind})["told"]
    print("\n".join(told) or "nothing to clear")


@fault.command()
def kinds() -> None:
    """List all kinds with their options and what they do."""
    from harness.live.faults.command_words import KINDS, described, usage_of

    for name, kind in KINDS.items():
        print(f"{name} {usage_of(kind)}".rstrip())
        print(f"    {described(kind)}")


def _ask(name: str, method: str, path: str, asked: dict[str, Any] | None = None) -> Any:
    from harness.scenario.model import HarnessError
    from harness.up.run_lock import ask, find

    try:
        return ask(find(name), method, path, asked)
    except HarnessError as error:
        print(f"steelyard: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(1) from None
