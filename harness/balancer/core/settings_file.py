"""Settings of the reference balancer from a TOML file whose keys and tables are named like the settings' fields."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any

from pydantic import BaseModel, Field

from harness.balancer.core.gateway import ReferenceGateway
from harness.balancer.core.loading import settings_adapter
from harness.balancer.picking.policies import POLICIES
from harness.balancer.settings import Settings
from harness.scenario.model import ClaimsError
from harness.scenario.reading import among, check, read, toml_in

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]


class CheckRanges(BaseModel):
    """Ranges of `CheckSettings`."""

    interval_s: Seconds
    timeout_s: Seconds
    unhealthy: Count
    healthy: Count


class EjectionRanges(BaseModel):
    """Ranges of `EjectionSettings`."""

    failures: Count
    open_s: Seconds
    cap_share: Share


class SlowStartRanges(BaseModel):
    """Ranges of `SlowStartSettings`."""

    window_s: Seconds
    minimum_share: Share
    aggression: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Ranges(BaseModel):
    """Ranges of all settings whose classes do not check their numbers themselves."""

    virtual_nodes: Count
    attempt_timeout_s: Annotated[float, Field(gt=0)]
    commit_at: Annotated[str, among(("head", "first_byte"))]
    spread: Annotated[str, among(POLICIES)] | None
    bounded_load: Annotated[float, Field(ge=1)] | None
    drain_deadline_s: Seconds
    health_checks: CheckRanges | None
    ejection: EjectionRanges | None
    slow_start: SlowStartRanges | None


def settings_from(path: Path, base: Settings) -> Settings:
    """`base` changed by a TOML file, whose keys and tables are named like the fields of harness.balancer.settings.

    `table = false` switches a mechanism off. ClaimsError, one line, for an unreadable file or invalid content.
    """
    try:
        plain = settings_adapter().dump_python(base, mode="json")
        changed = read(Settings, _merged(Settings, plain, toml_in(path, "settings")))
        check(Ranges, changed)
        ReferenceGateway(changed, Random(0))
    except ValueError as error:
        raise ClaimsError(f"settings file {path}: {error}") from None
    return changed


def _merged(kind: type[Any], base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes`, table by table, in the types of JSON; false is None for a mechanism that can be off."""
    hints = typing.get_type_hints(kind)
    merged = dict(base)
    for key, value in changes.items():
        members = [*_members(hints.get(key))]
        part = next((member for member in members if is_dataclass(member)), None)
        if isinstance(part, type) and isinstance(value, dict):
            merged[key] = _merged(part, base.get(key) or {}, value)
        else:
            merged[key] = None if value is False and type(None) in members else value
    return merged


def _members(hint: Any) -> Iterator[Any]:
    """The alternatives of a union type; any other type itself."""
    yield from typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
