"""`steelyard targets`: the targets that can be named, ours and those of other packages."""

from __future__ import annotations


def targets() -> None:
    """List the targets: version, or why it is missing or broken; worlds, claims, and the arguments they take."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from harness.targets import listing

    rows = listing()
    table = Table("target", "version", "worlds", "claims", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.columns[0].no_wrap = True
    for row in rows:
        if row.state:
            name = row.usage.partition("[")[0]
            table.add_row(*(Text(cell) for cell in (name, row.state, ", ".join(row.worlds), ", ".join(row.claims))))
    console = Console(highlight=False)
    console.print(table)
    console.print()
    width = max(len(row.usage) for row in rows)
    for row in rows:
        if row.summary:
            console.print(f"{row.usage:{width}}  {row.summary}", markup=False)
    console.print("FILE.toml alone is short for file:FILE.toml. Packages can add names: docs/targets.md.", markup=False)
