"""The time series of a run as a small table: one row per interval, with the steps that occurred in it."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.run_timeseries import TimeSeries


def timeseries_table(timeseries: TimeSeries) -> Table:
    """The table; figures are for the requests sent in each interval. Percentages are shares of the first attempts, in
    the order of the backends: gpu-0, gpu-1 and so on.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in ("from s", "req/s", "lost", "p50 ms", "p99 ms", "% by backend"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what happened", overflow="fold")
    for row in timeseries["intervals"]:
        rate = row["sent"] / (row["end_s"] - row["start_s"])
        cells = [Text(f"{row['start_s']:g}"), Text(f"{rate:.0f}"), _lost(row["lost"])]
        cells += [_short(row["p50_ms"]), _short(row["p99_ms"])]
        shares = " ".join("   " if share is None else f"{share * 100:3.0f}" for share in row["shares"])
        table.add_row(*cells, Text(shares), Text("\n".join(_marks_in(timeseries["marks"], row))))
    return table


def timeseries_text(timeseries: TimeSeries, width: int = 120) -> str:
    """The table as plain text of at most `width` columns."""
    output = io.StringIO()
    Console(file=output, width=width, no_color=True, highlight=False).print(timeseries_table(timeseries))
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


def _marks_in(marks: Sequence[Sequence[Any]], row: Mapping[str, Any]) -> list[str]:
    return [f"{at_s:.2f} s {text}" for at_s, text in marks if row["start_s"] <= at_s < row["end_s"]]


def _lost(count: int) -> Text:
    return Text(str(count), style="bold red" if count else "dim")


def _short(value: float | None) -> Text:
    return Text("" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}")
