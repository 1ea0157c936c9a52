"""The summary of a run on the terminal: one table, and a few lines on slack, seeds and outcomes."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.model import Outcome, Record, World
from reports.figures import figure, milliseconds

STYLES = {
    Outcome.PASS: "green",
    Outcome.FAIL: "bold red",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.VACUOUS: "yellow",
    Outcome.UNSUPPORTED: "dim",
    Outcome.ERROR: "bold magenta",
}


def as_text(records: Sequence[Record], width: int, colours: bool) -> str:
    """What `render` prints on a terminal of `width` columns."""
    kept = io.StringIO()
    console = Console(
        file=kept,
        width=width,
        force_terminal=colours,
        color_system="standard" if colours else None,
        no_color=not colours,
        highlight=False,
    )
    render(records, console)
    return kept.getvalue()


def render(records: Sequence[Record], console: Console) -> None:
    """Print the table of `records` and what else they have in common. Property names are never cut."""
    targets = list(dict.fromkeys(f"{record.target} {record.version}" for record in records))
    table = _table(records, with_target=True)
    if len(targets) == 1 and console.measure(table).maximum >= console.width:
        # One target for all: its column is the first thing that a narrow terminal can do without.
        table = _table(records, with_target=False)
        console.print(Text(f"Target {targets[0]}"))
    console.print(table)
    for record in records:
        if record.first_try is not None:
            console.print(_repeated(record))
    console.print(Text(_last_line(records)))


def _table(records: Sequence[Record], with_target: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("property", no_wrap=True, overflow="ignore", min_width=max(len(item.property) for item in records))
    if with_target:
        table.add_column("target", overflow="fold")
    table.add_column("world", no_wrap=True)
    table.add_column("outcome", no_wrap=True, min_width=max(len(item.outcome.value) for item in records))
    for name in ("observed", "bound", "sample"):
        table.add_column(name, justify="right", overflow="fold")
    for record in records:
        target = [Text(f"{record.target} {record.version}")] if with_target else []
        table.add_row(
            Text(record.property),
            *target,
            record.world.value,
            Text(record.outcome.value, style=STYLES[record.outcome]),
            figure(record.observed),
            figure(record.bound),
            "" if record.sample is None else str(record.sample),
        )
    return table


def _repeated(record: Record) -> Text:
    first = record.first_try
    told = f"; the first try was {first.outcome.value}: {first.reason}" if first is not None else ""
    return Text(f"{record.property}[{record.world.value}] was repeated at {record.time_scale:g}x the time scale{told}")


def _last_line(records: Sequence[Record]) -> str:
    slack = [
        f"{milliseconds(max(item.slack_s for item in records if item.world is world))} in {world.value}"
        for world in World
        if any(item.world is world for item in records)
    ]
    seeds = sorted({record.seed for record in records})
    counts = Counter(record.outcome for record in records)
    told = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome])
    plural = "s" if len(seeds) > 1 else ""
    return f"Slack at most {', '.join(slack)}. Seed{plural} {', '.join(map(str, seeds))}. {told}."
