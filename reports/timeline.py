"""The course of a run as a small table: one row for each stretch, with what happened in it beside it."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.evidence.run_timeseries import is_timeseries
from harness.property.verdict import Record

COURSE = "course"
"""Where a record's facts hold the course of its run."""


def course_in(record: Record) -> Mapping[str, Any] | None:
    """The course of a record's run, if it has one: runs with faults or changes of membership do."""
    course = record.facts.get(COURSE)
    return course if is_timeseries(course) else None


def course_table(course: Mapping[str, Any]) -> Table:
    """The table; figures are of the requests sent in each stretch. The percentages are shares of first attempts, in the
    order of the backends: gpu-0, gpu-1 and so on.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in ("from s", "req/s", "lost", "p50 ms", "p99 ms", "% by backend"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what happened", overflow="fold")
    for row in course["stretches"]:
        rate = row["sent"] / (row["end_s"] - row["start_s"])
        cells = [Text(f"{row['start_s']:g}"), Text(f"{rate:.0f}"), _lost(row["lost"])]
        cells += [_short(row["p50_ms"]), _short(row["p99_ms"])]
        shares = " ".join("   " if share is None else f"{share * 100:3.0f}" for share in row["shares"])
        table.add_row(*cells, Text(shares), Text("\n".join(_marks_in(course["marks"], row))))
    return table


def course_text(course: Mapping[str, Any], width: int = 120) -> str:
    """The table as plain text of at most `width` columns."""
    kept = io.StringIO()
    Console(file=kept, width=width, no_color=True, highlight=False).print(course_table(course))
    return "\n".join(line.rstrip() for line in kept.getvalue().splitlines())


def _marks_in(marks: Sequence[Sequence[Any]], row: Mapping[str, Any]) -> list[str]:
    return [f"{at_s:.2f} s {text}" for at_s, text in marks if row["start_s"] <= at_s < row["end_s"]]


def _lost(count: int) -> Text:
    return Text(str(count), style="bold red" if count else "dim")


def _short(value: float | None) -> Text:
    return Text("" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}")
