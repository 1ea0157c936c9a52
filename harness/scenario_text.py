"""Scenarios as text: JSON to keep and play again, Python to paste into a test. Pure."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from enum import Enum
from functools import cache
from types import ModuleType
from typing import Any

from harness import model, shapes, timeline
from harness.claims import nearest
from harness.frozen import canonical
from harness.model import Scenario

MODULES: tuple[ModuleType, ...] = (model, shapes, timeline)
"""Where everything that a scenario is made of can be imported from."""

WIDTH = 100
"""Columns from which on a value is broken into a line for each field."""

IS = "is"
"""The key of an object that names its class."""


# --- JSON -------------------------------------------------------------------------------------------------


def to_json(scenario: Scenario) -> str:
    """`scenario` as JSON: each object names its class under "is"."""
    return json.dumps(canonical(scenario), indent=1) + "\n"


def from_json(text: str) -> Scenario:
    """The scenario that `to_json` wrote, or one written by hand. ValueError: one line on what is wrong with it."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not valid JSON: {error}") from None
    scenario = _value(document, "scenario")
    if not isinstance(scenario, Scenario):
        raise ValueError('expected an object with "is": "Scenario" at the top')
    known = scenario.backend_ids
    for step in scenario.timeline:
        if step.backend not in known:
            raise ValueError(f"{type(step).__name__} of {step.backend!r}: {nearest(step.backend, known)}")
        if not 0.0 <= step.at_s < math.inf:
            raise ValueError(f"{type(step).__name__} of {step.backend!r}: at_s {step.at_s}: expected a time from 0 on")
    for stream in scenario.load.streams:
        if not 0.0 < stream.rate_per_s < math.inf:
            raise ValueError(f"stream {stream.name!r}: rate_per_s {stream.rate_per_s}: expected a number above 0")
    return scenario


@cache
def _classes() -> dict[str, type[Any]]:
    found: dict[str, type[Any]] = {}
    for module in MODULES:
        found |= {name: item for name, item in vars(module).items() if isinstance(item, type)}
    return {name: item for name, item in found.items() if dataclasses.is_dataclass(item)}


@cache
def _adapter(name: str) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(_classes()[name])


def _value(given: Any, where: str) -> Any:
    """What a JSON value stands for; objects are checked from the inside out."""
    if isinstance(given, list):
        return tuple(_value(item, f"{where}[{number}]") for number, item in enumerate(given))
    if not isinstance(given, dict):
        return given
    from pydantic import ValidationError

    name = given.get(IS)
    cls = _classes().get(name) if isinstance(name, str) else None
    if cls is None:
        raise ValueError(f'{where}: "is" says {name!r}; {nearest(str(name), _classes())}')
    names = [item.name for item in dataclasses.fields(cls)]
    fields = {key: _value(item, f"{where}.{key}") for key, item in given.items() if key != IS}
    for key in fields:
        if key not in names:
            raise ValueError(f"{where}: {name} has no {key!r}; {nearest(key, names)}")
    try:
        return _adapter(cls.__name__).validate_python(fields)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join([where, *(str(part) for part in first["loc"][:1])])
        raise ValueError(f"{place}: saw {first['input']!r}: {first['msg']}") from None


# --- Python -----------------------------------------------------------------------------------------------


def to_python(scenario: Scenario, name: str = "SCENARIO") -> str:
    """`scenario` as Python source, imports first; what equals a default is left out."""
    used: dict[str, set[str]] = {}
    body = f"{name} = {_source(scenario, used, 0)}"
    lines = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(used.items())]
    return "\n".join([*lines, "", body]) + "\n"


def _source(value: object, used: dict[str, set[str]], depth: int) -> str:
    """Source of a value that begins `depth` levels deep; notes in `used` what must be imported from where."""
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
    """`name(items)` on one line where it fits, else a line for each item."""
    whole = f"{name}({', '.join(items)}{closing}"
    if "\n" not in whole and len(whole) + 4 * depth <= WIDTH:
        return whole
    inner = "".join(f"{'    ' * (depth + 1)}{item},\n" for item in items)
    return f"{name}(\n{inner}{'    ' * depth}{closing}"


def _use(cls: type, used: dict[str, set[str]]) -> None:
    """Note where a class is to be imported from: the first of MODULES that has it."""
    for module in MODULES:
        if getattr(module, cls.__name__, None) is cls and not _is_private(module, cls):
            used.setdefault(module.__name__, set()).add(cls.__name__)
            return


def _is_private(module: ModuleType, cls: type) -> bool:
    """Whether a module merely imported the class for its own use."""
    return module is model and not cls.__module__.endswith("model")
