"""`steelyard fault`: set, list and clear faults of a running `steelyard up`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

fault = typer.Typer(
    help="Set, list and clear faults of a running steelyard up.", no_args_is_help=True, rich_markup_mode=None
)

Name = Annotated[str, typer.Option(help="Name of the steelyard up, if several are running.")]


@fault.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Kinds and their options: steelyard fault kinds. Durations: --latency-ms 800, --latency-s 0.8, --for 10s.",
)
def add(
    backend: Annotated[str, typer.Argument(help="gpu-0, gpu-1, ...")],
    kind: Annotated[str, typer.Argument(help="latency, kill, pause, blackhole, failing-status, leave, ...")],
    options: Annotated[list[str] | None, typer.Argument(help="Such as --latency-ms 800 --for 10s.")] = None,
    name: Name = "default",
) -> None:
    """Set a fault or change membership, and report when a probe observed its effect.

    Exit code: 0 in force, 1 no effect observed, 2 invalid backend, kind or option.
    """
    from harness.live.faults.command_words import parse

    words = options or []
    parse(backend, kind, words)  # reports mistakes even if no steelyard up is running
    result = _request(name, "POST", "/faults", {"backend": backend, "kind": kind, "words": words})
    print(result["told"])
    if not result["effective"]:
        raise typer.Exit(1)


@fault.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False, name: Name = "default") -> None:
    """List the faults in force, and when they heal."""
    rows = _request(name, "GET", "/faults")
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
    backend: Annotated[str | None, typer.Argument(help="Only faults of this backend.")] = None,
    kind: Annotated[str | None, typer.Argument(help="Only faults of this kind.")] = None,
    name: Name = "default",
) -> None:
    """Heal faults and undo changes of membership."""
    lines = _request(name, "POST", "/faults/clear", {"backend": backend, "kind": kind})["told"]
    print("\n".join(lines) or "nothing to clear")


@fault.command()
def kinds() -> None:
    """List all kinds with their options and a description."""
    from harness.live.faults.command_words import KINDS, kind_summary, usage_of

    for name, kind in KINDS.items():
        print(f"{name} {usage_of(kind)}".rstrip())
        print(f"    {kind_summary(kind)}")


def _request(name: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    from harness.cli.errors import exit_on
    from harness.scenario.model import HarnessError
    from harness.up.run_lock import call_control, find

    with exit_on(HarnessError):
        return call_control(find(name), method, path, body)
