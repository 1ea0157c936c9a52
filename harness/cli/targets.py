"""`steelyard targets`: the built-in targets and their state on this machine."""

from __future__ import annotations


def targets() -> None:
    """List the built-in targets: version or why it is missing, worlds, claims."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from harness.targets import listing

    table = Table("target", "version", "worlds", "claims", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.columns[0].no_wrap = True
    for name, version, worlds, claims in listing():
        table.add_row(*(Text(cell) for cell in (name, version, ", ".join(worlds), ", ".join(claims))))
    console = Console(highlight=False)
    console.print(table)
    console.print("Any other: a claims file (*.toml), or python:package.module:Class.", markup=False)
