"""Request faults as JSON objects, as the control API and headers carry them: ``{"kind": "slow", "factor": 4}``. Pure.

The form has neither place nor time: a server reads its own faults, which apply at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields

from mockgpu.api.text import shown
from mockgpu.faults.kinds import KINDS, RequestFault
from mockgpu.faults.selection import SELECTION_FIELDS, STEP_FIELDS, FaultError

HERE = ("", 0.0)
"""``backend`` and ``at_s`` of a fault that a server sets for itself."""


def to_json(fault: RequestFault) -> dict[str, object]:
    """A fault as a JSON object: its kind, and its fields except place, time and those that are None."""
    names = [item.name for item in fields(fault) if item.name not in STEP_FIELDS]
    return {"kind": fault.kind, **{name: value for name in names if (value := getattr(fault, name)) is not None}}


def from_json(data: object) -> RequestFault:
    """Read a fault from the object that ``to_json`` makes, without place and time (``HERE``); raises FaultError."""
    if not isinstance(data, Mapping):
        raise FaultError(f"a fault is {shown(data)}, expected an object with a kind: {', '.join(KINDS)}")
    given = dict(data)
    kind = checked_kind(given.pop("kind", None))
    declared = [item for item in fields(KINDS[kind]) if item.name not in STEP_FIELDS]
    unknown = sorted(str(name) for name in set(given) - {item.name for item in declared})
    missing = [item.name for item in declared if item.default is MISSING and item.name not in given]
    if unknown or missing:
        problem = f"has no {unknown[0]}" if unknown else f"needs {missing[0]}"
        # The kind's own fields first.
        names = sorted((item.name for item in declared), key=lambda name: name in SELECTION_FIELDS)
        raise FaultError(f"fault {kind} {problem}; its fields: {', '.join(names) or 'none'}")
    return KINDS[kind](*HERE, **given)


def checked_kind(kind: object) -> str:
    """Return ``kind`` if a fault kind has that name; raises FaultError."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise FaultError(f"unknown fault {shown(kind)}, expected one of: {', '.join(KINDS)}")
    return kind
