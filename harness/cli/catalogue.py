"""`steelyard catalogue`: all properties, as a table, as JSON, or as the text of CATALOGUE.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import groupby
from typing import Annotated, Any

import typer


class Format(StrEnum):
    """Output format of the catalogue."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"


def catalogue(
    form: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TABLE,
) -> None:
    """List all properties: the promise, the claims it needs, the features that must be off."""
    from harness.property.declare import catalogue as all_properties
    from harness.property.declare import catalogue_row

    rows = [catalogue_row(item) for item in all_properties()]
    match form:
        case Format.JSON:
            print(json.dumps(rows, indent=2))
        case Format.MARKDOWN:
            print("\n".join(_markdown(rows)))
        case Format.TABLE:
            _print_table(rows)


def _families(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for family, members in groupby(rows, key=lambda row: str(row["family"])):
        yield family, list(members)


def _markdown(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "# Catalogue of properties"
    yield ""
    yield "Made by `steelyard catalogue --format markdown` from the code in `suites/`; change it there."
    yield ""
    yield "Where `limits` are claimed they must be off in every property but those that need them."
    for family, members in _families(rows):
        yield ""
        yield f"## {family}"
        for row in members:
            yield ""
            yield f"### `{row['name']}`"
            yield ""
            yield f"- **Promise:** {row['summary']}"
            yield f"- **Needs:** {_named(row['needs']) or 'nothing'}"
            yield f"- **Off:** {_off(row) or 'nothing'}"
            yield f"- **Worlds:** {_named(row['worlds'])}"
            rest = row["description"].partition("\n\n")[2]
            if rest:
                yield ""
                yield rest


def _named(tables: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in tables)


def _off(row: dict[str, Any]) -> str:
    """Features that must be off, and features that are switched off if the target can."""
    parts = [_named(row["without"])] if row["without"] else []
    if row["off"]:
        parts.append(f"{_named(row['off'])} where the target can")
    return "; ".join(parts)


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    width = max((len(row["name"]) for row in rows), default=0)
    for family, members in _families(rows):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, title=family, title_justify="left")
        table.add_column("property", no_wrap=True, min_width=width)
        table.add_column("promise", ratio=1)
        table.add_column("needs")
        for row in members:
            table.add_row(Text(row["name"]), Text(row["summary"]), Text(", ".join(row["needs"])))
        console.print(table)
        console.print()
    console.print(f"{len(rows)} properties. More on each: steelyard catalogue --format markdown", markup=False)
