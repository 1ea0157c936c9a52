"""Conversion of records to rows of plain JSON types and back, for other processes and files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from harness.property.verdict import FindingRow, Outcome, Record
from harness.scenario.model import World


def row_of(record: Record) -> dict[str, Any]:
    """`record` as a dict of str, int, float, bool, None, lists and dicts."""
    row: dict[str, Any] = plain({item.name: getattr(record, item.name) for item in dataclasses.fields(record)})
    return row


def record_of(row: Mapping[str, Any]) -> Record:
    """The record of a row made by `row_of`."""
    values = dict(row)
    values["world"] = World(row["world"])
    values["outcome"] = Outcome(row["outcome"])
    values["findings"] = tuple(_finding_of(finding) for finding in row["findings"])
    values["first_try"] = record_of(row["first_try"]) if row["first_try"] else None
    for name in ("observed", "bound"):
        values[name] = _figure_of(row[name])
    return Record(**values)


def _finding_of(row: Mapping[str, Any]) -> FindingRow:
    return FindingRow(**{**row, "observed": _figure_of(row["observed"]), "bound": _figure_of(row["bound"])})


def _figure_of(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """`value` in plain JSON types: dataclasses become dicts, tuples lists, numpy numbers Python numbers."""
    if isinstance(value, Record):
        return row_of(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, frozenset | set):
        return sorted(plain(item) for item in value)
    if value is None or isinstance(value, bool):
        return value
    # Enums and numpy floats are subclasses of str, int and float; only the plain types can be sent to other processes.
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)
