"""Scenarios as text: JSON of a user's file, with limits, and Python source to paste into a test. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from enum import Enum
from types import ModuleType
from typing import Any

from harness.chaos.scenario_limits import check_limits
from harness.scenario import model
from harness.scenario.model import Scenario
from harness.scenario.text_form import MODULES, decode

WIDTH = 100
"""Line width of Python source; a longer value has one line per field."""


# --- JSON -------------------------------------------------------------------------------------------------


def from_json(text: str) -> Scenario:
    """The scenario in JSON `text`, from `to_json` or written by hand. ValueError: one line with error and location.

    Checks everything that would make a run fail, except server settings (`harness.sim.playable`).
    """
    scenario = decode(text)
    check_limits(scenario)
    return scenario


# --- Python -----------------------------------------------------------------------------------------------


def to_python(scenario: Scenario, name: str = "SCENARIO") -> str:
    """`scenario` as Python source, imports first; default values are omitted."""
    used: dict[str, set[str]] = {}
    body = f"{name} = {_source(scenario, used, 0)}"
    lines = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(used.items())]
    return "\n".join([*lines, "", body]) + "\n"


def _source(value: object, used: dict[str, set[str]], depth: int) -> str:
    """Source of a value at indentation level `depth`; adds the names to import, by module, to `used`."""
    if isinstance(value, Enum):
        _use(type(value), used)
        return f"{type(value).__name__}.{value.name}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        _use(type(value), used)
        return _call(type(value).__name__, [*_arguments(value, used, depth + 1)], depth, ")")
    if isinstance(value, tuple):
        items = [_source(item, used, depth + 1) for item in value]
        return f"({items[0]},)" if len(items) == 1 and "\n" not in items[0] else _call("", items, depth, ")")
    if isinstance(value, frozenset):
        return f"frozenset({sorted(value)!r})"
    return repr(value)


def _arguments(value: Any, used: dict[str, set[str]], depth: int) -> Iterator[str]:
    for item in dataclasses.fields(value):
        given = getattr(value, item.name)
        default = item.default_factory() if callable(item.default_factory) else item.default
        if given != default:
            yield f"{item.name}={_source(given, used, depth)}"


def _call(name: str, items: list[str], depth: int, closing: str) -> str:
    """`name(items)` on one line if it fits, else one line per item."""
    whole = f"{name}({', '.join(items)}{closing}"
    if "\n" not in whole and len(whole) + 4 * depth <= WIDTH:
        return whole
    inner = "".join(f"{'    ' * (depth + 1)}{item},\n" for item in items)
    return f"{name}(\n{inner}{'    ' * depth}{closing}"


def _use(cls: type, used: dict[str, set[str]]) -> None:
    """Add a class to `used`, under the first of MODULES that has it."""
    for module in MODULES:
        if getattr(module, cls.__name__, None) is cls and not _is_private(module, cls):
            used.setdefault(module.__name__, set()).add(cls.__name__)
            return


def _is_private(module: ModuleType, cls: type) -> bool:
    """Whether a module only imports the class for its own use."""
    return module is model and not cls.__module__.endswith("model")
