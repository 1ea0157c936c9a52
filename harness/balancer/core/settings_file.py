"""A TOML file that changes settings of the reference balancer: keys and tables are named like its fields."""

from __future__ import annotations

import math
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from pydantic import TypeAdapter, ValidationError

from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.picking.policies import POLICIES
from harness.balancer.settings import Settings
from harness.claims.validation import nearest, one_of
from harness.scenario.model import ClaimsError


def settings_from(path: Path, base: Settings) -> Settings:
    """`base` with what a TOML file says: keys and tables are named like the fields of harness.balancer.settings.

    `table = false` switches a mechanism off. ClaimsError of one line for a file that cannot be read or says nonsense.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ClaimsError(f"settings file {path}: {error.strerror}; give a readable TOML file") from None
    except ValueError as error:
        raise ClaimsError(f"settings file {path}: no TOML: {error}") from None
    try:
        changed: Settings = _changed(base, document, "")
        _check(changed)
    except ValueError as error:
        raise ClaimsError(f"settings file {path}: {error}") from None
    return changed


def _check(settings: Settings) -> None:
    """ValueError for settings of which no balancer can be made."""
    one_of(settings.commit_at, "commit_at", ("head", "first_byte"))
    if settings.update_policy is not None:
        one_of(settings.update_policy, "update_policy", POLICIES)
    if not 0 < settings.drain_deadline_s < math.inf:
        raise ValueError(f"drain_deadline_s {settings.drain_deadline_s}: expected above 0, and an end")
    if not settings.attempt_timeout_s > 0:
        raise ValueError(f"attempt_timeout_s {settings.attempt_timeout_s}: expected above 0")
    ReferenceGateway(settings, Random(0))


def _changed(base: Any, document: Mapping[str, Any], where: str) -> Any:
    """The dataclass `base`, or a new one of that class, with the fields that `document` names.

    ValueError with the place for anything wrong.
    """
    kind = base if isinstance(base, type) else type(base)
    hints = typing.get_type_hints(kind)
    valid = [field.name for field in fields(kind)]
    changes: dict[str, Any] = {}
    for key, value in document.items():
        place = f"{where}{key}"
        if key not in valid:
            raise ValueError(f"{place} is unknown; {nearest(key, valid)}")
        part: Any = next((kind for kind in _members(hints[key]) if is_dataclass(kind)), None)
        if part is not None and isinstance(value, dict):
            changes[key] = _changed((base is not kind and getattr(base, key)) or part, value, f"{place}.")
        elif value is False and type(None) in _members(hints[key]):
            changes[key] = None
        else:
            changes[key] = _value(hints[key], value, place)
    wanted = [field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]
    missing = [name for name in wanted if base is kind and name not in changes]
    if missing:
        raise ValueError(f"{where}{missing[0]} is missing; it has no default")
    try:
        return kind(**changes) if base is kind else replace(base, **changes)
    except ValueError as error:
        raise ValueError(f"{where.rstrip('.')}: {error}" if where else str(error)) from None


def _members(hint: Any) -> Iterator[Any]:
    """The alternatives of a union; a plain type is its own."""
    yield from typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _value(hint: Any, value: Any, place: str) -> Any:
    if isinstance(value, bool) and bool not in _members(hint):  # pydantic would take it for 0 or 1
        raise ValueError(f"{place} {str(value).lower()}: expected another kind of value")
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        told = error.errors()[0]["msg"]
        raise ValueError(f"{place} {value!r}: {told[:1].lower()}{told[1:]}") from None
