"""Helpers for frozen data: cheap construction, canonical JSON, scaled durations. Standard library only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar, dataclass_transform

Frozen = TypeVar("Frozen")
Made = TypeVar("Made")


@dataclass_transform(frozen_default=True)
def fast_dataclass(cls: type[Made]) -> type[Made]:
    """A slotted dataclass for objects made per request: frozen for the type checker, mutable at run time.

    Constructing a truly frozen dataclass takes three to five times as long (1.1 instead of 0.2 us for ten fields), and
    balancer and simulator construct a dozen per request.
    """
    return dataclasses.dataclass(slots=True, unsafe_hash=True)(cls)


def canonical(value: object) -> Any:
    """`value` as plain JSON types with class names; equal values give equal text.

    A field whose metadata has `omit_default` is left out while it has its default. Declare every field like that which
    a class of scenarios gets later, so that the digests of scenarios without it stay the same:

    >>> @dataclasses.dataclass
    ... class Step:
    ...     at_s: float
    ...     twice: bool = dataclasses.field(default=False, metadata={"omit_default": True})
    >>> canonical(Step(1.5)), canonical(Step(1.5, twice=True))
    ({'is': 'Step', 'at_s': 1.5}, {'is': 'Step', 'at_s': 1.5, 'twice': True})
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        for item in dataclasses.fields(value):
            if item.metadata.get("omit_default") and fields[item.name] == item.default:
                del fields[item.name]
        return {"is": type(value).__name__, **{name: canonical(held) for name, held in fields.items()}}
    if isinstance(value, Mapping):
        return {str(key): canonical(item) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(canonical(item) for item in value)
    if isinstance(value, tuple | list):
        return [canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 2 and 2.0 are equal, so their text must be equal
    return value


def scale_durations(value: Frozen, factor: float) -> Frozen:
    """`value` with every duration multiplied and every rate divided by `factor`.

    Durations are fields whose names end in `_s`, rates those ending in `_per_s`; nested dataclasses and tuples are
    included. A time scale is nothing more: scenario, servers and claims are scaled alike.
    """
    if isinstance(value, tuple):
        return tuple(scale_durations(item, factor) for item in value)  # type: ignore[return-value]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    changes: dict[str, Any] = {}
    for item in dataclasses.fields(value):
        old = getattr(value, item.name)
        new = _scaled_field(item.name, old, factor)
        if new is not old:
            changes[item.name] = new
    return dataclasses.replace(value, **changes) if changes else value


def _scaled_field(name: str, value: Any, factor: float) -> Any:
    if name.endswith("_per_s") and isinstance(value, int | float):
        return value / factor
    if name.endswith("_s") and isinstance(value, int | float):
        return value * factor
    if name.endswith("_s") and isinstance(value, tuple):
        return tuple(item * factor for item in value)
    return scale_durations(value, factor)
