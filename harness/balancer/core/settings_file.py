"""Settings of the reference balancer from a TOML file whose keys and tables are named like the settings' fields."""

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
from harness.scenario.model import ClaimsError
from harness.scenario.validation import nearest, one_of


def settings_from(path: Path, base: Settings) -> Settings:
    """`base` changed by a TOML file, whose keys and tables are named like the fields of harness.balancer.settings.

    `table = false` switches a mechanism off. ClaimsError, one line, for an unreadable file or invalid content.
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
    """ValueError for settings that no balancer can be created with."""
    one_of(settings.commit_at, "commit_at", ("head", "first_byte"))
    if settings.spread is not None:
        one_of(settings.spread, "spread", POLICIES)
    if not 0 < settings.drain_deadline_s < math.inf:
        raise ValueError(f"drain_deadline_s {settings.drain_deadline_s}: expected above 0, and an end")
    if not settings.attempt_timeout_s > 0:
        raise ValueError(f"attempt_timeout_s {settings.attempt_timeout_s}: expected above 0")
    ReferenceGateway(settings, Random(0))


def _changed(base: Any, document: Mapping[str, Any], prefix: str) -> Any:
    """`base` (a dataclass or an instance of one) with the fields in `document` set.

    `prefix`: path of the table, for messages. ValueError with the path of the first invalid key or value.
    """
    kind = base if isinstance(base, type) else type(base)
    hints = typing.get_type_hints(kind)
    valid = [field.name for field in fields(kind)]
    changes: dict[str, Any] = {}
    for key, value in document.items():
        key_path = f"{prefix}{key}"
        if key not in valid:
            raise ValueError(f"{key_path} is unknown; {nearest(key, valid)}")
        part: Any = next((kind for kind in _members(hints[key]) if is_dataclass(kind)), None)
        if part is not None and isinstance(value, dict):
            changes[key] = _changed((base is not kind and getattr(base, key)) or part, value, f"{key_path}.")
        elif value is False and type(None) in _members(hints[key]):
            changes[key] = None
        else:
            changes[key] = _value(hints[key], value, key_path)
    required = [field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]
    missing = [name for name in required if base is kind and name not in changes]
    if missing:
        raise ValueError(f"{prefix}{missing[0]} is missing; it has no default")
    try:
        return kind(**changes) if base is kind else replace(base, **changes)
    except ValueError as error:
        raise ValueError(f"{prefix.rstrip('.')}: {error}" if prefix else str(error)) from None


def _members(hint: Any) -> Iterator[Any]:
    """The alternatives of a union type; any other type itself."""
    yield from typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _value(hint: Any, value: Any, key_path: str) -> Any:
    if isinstance(value, bool) and bool not in _members(hint):  # pydantic would accept it as 0 or 1
        raise ValueError(f"{key_path} {str(value).lower()}: expected another kind of value")
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise ValueError(f"{key_path} {value!r}: {message[:1].lower()}{message[1:]}") from None
