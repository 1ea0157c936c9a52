"""Scenarios as JSON text and back. Pure; limits for a user's files are in `harness.chaos.scenario_text`."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from types import ModuleType
from typing import Any

from harness.scenario import arrival_rates, faults, model, request_mix
from harness.scenario.fast_dataclass import canonical
from harness.scenario.model import Scenario
from harness.scenario.validation import nearest

MODULES: tuple[ModuleType, ...] = (model, request_mix, arrival_rates, faults)
"""Modules with the classes of a scenario."""

IS = "is"
"""JSON key for the class name of an object."""


def to_json(scenario: Scenario) -> str:
    """`scenario` as JSON: each object names its class under "is"."""
    return json.dumps(canonical(scenario), indent=1) + "\n"


def decode(text: str) -> Scenario:
    """The scenario in JSON `text`. ValueError: one line with error and location."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not valid JSON: {error}") from None
    except RecursionError:
        raise ValueError("lists or objects are nested too deeply for a scenario") from None
    return scenario_of(given)


def scenario_of(given: object) -> Scenario:
    """The scenario of an object as in `to_json`, in plain JSON types. ValueError: one line with error and location.

    >>> scenario = Scenario("two backends", backends=2, load=model.Load(streams=()))
    >>> scenario_of(json.loads(to_json(scenario))) == scenario
    True
    """
    try:
        scenario = _value(given, "scenario")
    except RecursionError:
        raise ValueError("lists or objects are nested too deeply for a scenario") from None
    if not isinstance(scenario, Scenario):
        raise ValueError('expected an object with "is": "Scenario" at the top')
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
    """The object for a JSON value; nested objects are validated first."""
    if isinstance(given, list):
        return tuple(_value(item, f"{where}[{number}]") for number, item in enumerate(given))
    if not isinstance(given, dict):
        return given
    from pydantic import ValidationError

    from harness.scenario.reading import one_line, shown

    name = given.get(IS)
    cls = _classes().get(name) if isinstance(name, str) else None
    if cls is None:
        raise ValueError(f'{where}: "is" says {name!r}; {nearest(str(name), _classes())}')
    names = [item.name for item in dataclasses.fields(cls)]
    fields = {key: _value(item, f"{where}.{key}") for key, item in given.items() if key != IS}
    for key in fields:
        if key not in names:
            raise ValueError(f"{where}: {name} has no {key!r}; {nearest(key, names)}")
    adapter = _adapter(cls.__name__)
    try:
        made = adapter.validate_python(fields)
    except ValidationError as error:
        raise ValueError(one_line(error, where, adapter.json_schema())) from None
    for key, item in fields.items():
        if isinstance(item, bool | str) and not isinstance(getattr(made, key), type(item)):
            raise ValueError(f"{where}.{key}: saw {shown(item)}, expected a number")  # pydantic converts them
    return made
