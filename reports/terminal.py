"""The summary of a session on the terminal: one table, and a few lines on slack, seeds and outcomes."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.property.verdict import MEANINGS, Outcome, Record, explained
from harness.scenario.model import World
from reports.figures import figure, milliseconds
from reports.run_timeseries import TimeSeries
from reports.timeline import timeseries_table

NO_TIMESERIES: Mapping[str, TimeSeries] = MappingProxyType({})

CHAOS = "chaos."
"""Name prefix of the properties whose time series is printed."""

NOT_CLAIMED = "not claimed"
UNKNOWN = "unknown"
"""Version of a target that states none."""

STYLES = {
    Outcome.PASS: "green",
    Outcome.FAIL: "bold red",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.VACUOUS: "yellow",
    Outcome.UNSUPPORTED: "dim",
    Outcome.ERROR: "bold magenta",
}


def as_text(
    records: Sequence[Record],
    width: int,
    colours: bool,
    notes: bool = False,
    timeseries: Mapping[str, TimeSeries] = NO_TIMESERIES,
) -> str:
    """The output of `render` on a terminal of `width` columns.

    With `notes` also the findings' notes, and the runs of chaos fault plans as tables; `timeseries` are those of runs,
    by the digests of their histories.
    """
    output = io.StringIO()
    console = Console(
        file=output,
        width=width,
        force_terminal=colours,
        color_system="standard" if colours else None,
        no_color=not colours,
        highlight=False,
    )
    render(records, console)
    if notes:
        _print_notes(records, console)
        _print_timeseries(records, timeseries, console)
    return output.getvalue()


def _print_notes(records: Sequence[Record], console: Console) -> None:
    """Print every note of the findings once: counts behind a figure, latencies by backend and so on."""
    for record in records:
        for note in dict.fromkeys(row.note for row in record.findings if row.note):
            console.print(Text(f"{record.property}[{record.world.value}]: {note}"))


def _print_timeseries(records: Sequence[Record], timeseries: Mapping[str, TimeSeries], console: Console) -> None:
    """Print the time series of each run of a chaos fault plan, once for all properties that share the run."""
    shown: set[str] = set()
    for record in records:
        is_chaos = record.property.startswith(CHAOS)
        if is_chaos and record.history in timeseries and record.history not in shown:
            shown.add(record.history)
            name = record.property.rpartition(".")[0]
            console.print(Text(f"\n{name}[{record.world.value}], {_balancer(record)}, seed {record.seed}"))
            console.print(timeseries_table(timeseries[record.history]))


def render(records: Sequence[Record], console: Console) -> None:
    """Print the table of `records` and a summary. Property names are never cut.

    If the table is too wide, first columns with one common value move to a line above it, then bands are split in two.
    """
    targets = list(dict.fromkeys(map(_balancer, records)))
    worlds = list(dict.fromkeys(record.world.value for record in records))
    shared: list[str] = []
    table = _table(records, shared, broken=False)
    for name, values in (("target", targets), ("world", worlds)):
        if not _fits(table, console) and len(values) == 1:
            shared.append(name)
            table = _table(records, shared, broken=False)
    if not _fits(table, console):
        table = _table(records, shared, broken=True)
    values_of = {"target": targets[0], "world": worlds[0]}
    if shared:
        line = ", ".join(f"{name} {values_of[name]}" for name in shared)
        console.print(Text(line[0].upper() + line[1:]))  # not `capitalize`, which lower-cases the rest
    console.print(table)
    for record in records:
        if record.first_try is not None:
            console.print(_repeated(record))
    for reason, count in _unsupported(records).items():
        console.print(Text(f"Unsupported, though claimed: {count} {reason}"))
    console.print(Text(_last_line(records)))
    if legend := _legend(records):
        console.print(Text(legend))


def _balancer(record: Record) -> str:
    """Name of the target, and its version if it states one."""
    return record.target if record.version == UNKNOWN else f"{record.target} {record.version}"


def _fits(table: Table, console: Console) -> bool:
    return table.__rich_measure__(console, console.options.update(width=10_000)).maximum <= console.width


def _table(records: Sequence[Record], shared: Sequence[str], broken: bool) -> Table:
    """The table without the columns named in `shared`; `broken`: bands may continue on a second line."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    # Long names make long lines; they are not cut.
    table.add_column("property", no_wrap=True, min_width=max(len(item.property) for item in records))
    cells: dict[str, list[str]] = {
        "target": list(map(_balancer, records)),
        "world": [item.world.value for item in records],
    }
    for name in cells:
        if name not in shared:
            table.add_column(name, overflow="fold", min_width=5)
    table.add_column("outcome", no_wrap=True, min_width=max(len(item.outcome) for item in records))
    for name in ("observed", "bound", "sample"):
        table.add_column(name, justify="right", overflow="fold", min_width=len(name))
    for number, record in enumerate(records):
        figures = [figure(record.observed), figure(record.bound)]
        table.add_row(
            Text(record.property),
            *(Text(column[number]) for name, column in cells.items() if name not in shared),
            Text(record.outcome.value, style=STYLES[record.outcome]),
            *(item.replace("–", "– ") if broken else item for item in figures),
            "" if record.sample is None else str(record.sample),
        )
    return table


def _repeated(record: Record) -> Text:
    first = record.first_try
    cause = f"; the first try was {first.outcome.value}: {first.reason}" if first is not None else ""
    return Text(f"{record.property}[{record.world.value}] was repeated at {record.time_scale:g}x the time scale{cause}")


def _unsupported(records: Sequence[Record]) -> Counter[str]:
    """Reasons why claimed properties could not be judged, with their counts."""
    return Counter(
        record.reason
        for record in records
        if record.outcome is Outcome.UNSUPPORTED and not record.reason.startswith(NOT_CLAIMED)
    )


def _last_line(records: Sequence[Record]) -> str:
    slack = [
        f"{milliseconds(max(item.slack_s for item in records if item.world is world))} in {world.value}"
        for world in World
        if any(item.world is world for item in records)
    ]
    seeds = sorted({record.seed for record in records})
    counts = Counter(record.outcome for record in records)
    outcomes = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome])
    plural = "s" if len(seeds) > 1 else ""
    return (
        f"Slack (timing uncertainty) at most {', '.join(slack)}. Seed{plural} {', '.join(map(str, seeds))}. {outcomes}."
    )


def _legend(records: Sequence[Record]) -> str:
    """The meanings of the outcomes in `records` that need one; "" if there are none."""
    occurring = {record.outcome for record in records}
    outcomes = ", ".join(explained(outcome) for outcome in MEANINGS if outcome in occurring)
    return f"Outcomes: {outcomes}." if outcomes else ""
