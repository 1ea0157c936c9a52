"""In-band faults: faults that a request declares for itself, in a header or in its body.

- ``X-Mock-Fault``: one fault or a list in JSON, ``{"kind": "slow", "factor": 4}``, or in short form
  ``slow;factor=4, cut;after_tokens=2``.
- ``mock_fault``, a field of the JSON body: the same object, list or short form.
- ``X-Return-Error: 503``, or with a Retry-After header ``X-Return-Error: 503;retry_after_s=2``.

Only kinds that apply to a single request, without selection fields: a request cannot set a fault for others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mockgpu.api.wire import BadRequestError, Headers
from mockgpu.faults.json_form import from_json
from mockgpu.faults.kinds import OutOfMemory
from mockgpu.faults.selection import FaultError, SelectiveFault

FAULT, ERROR, FIELD = "X-Mock-Fault", "X-Return-Error", "mock_fault"
_BRACKETS = ("{", "[")


def in_band_faults(headers: Headers, data: Mapping[str, Any]) -> tuple[SelectiveFault, ...]:
    """The faults that a request declares, usually none; raises BadRequestError that names the header or field."""
    header, status, field = headers.get(FAULT), headers.get(ERROR), data.get(FIELD)
    if header is None and status is None and field is None:
        return ()
    source = FAULT
    try:
        faults = _read(header)
        source = ERROR
        if status is not None:
            code, *rest = status.split(";")
            faults += _read(";".join([f"status;status={code.strip()}", *rest]))
        source = FIELD
        faults += _read(field)
        if len({fault.kind for fault in faults}) < len(faults):
            raise FaultError("two faults of one kind, expected one of each")
    except FaultError as bad:
        raise BadRequestError(f"{source}: {bad}", source) from None
    return tuple(faults)


def _read(given: object) -> list[SelectiveFault]:
    if given is None:
        return []
    if isinstance(given, str):
        text = given.strip()
        given = _from_json_text(text) if text.startswith(_BRACKETS) else [_short(part) for part in text.split(",")]
    return [_single(each) for each in (given if isinstance(given, list) else [given])]


def _from_json_text(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FaultError(f"invalid JSON: {error}") from None


def _short(text: str) -> dict[str, object]:
    """``slow;factor=4`` as an object. A value that is not JSON is taken as text."""
    kind, *pairs = (part.strip() for part in text.split(";"))
    fields: dict[str, object] = {"kind": kind}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise FaultError(f"{pair!r} in {text.strip()!r}, expected name=value")
        try:
            fields[name.strip()] = json.loads(value)
        except (ValueError, RecursionError):
            fields[name.strip()] = value.strip()
    return fields


def _single(data: object) -> SelectiveFault:
    fault = from_json(data)
    if not isinstance(fault, SelectiveFault):
        raise FaultError(f"fault {fault.kind} does not apply to a single request; set it by /mock/faults")
    if isinstance(fault, OutOfMemory) and fault.dead:
        raise FaultError(
            f"fault {fault.kind} is dead, which does not apply to a single request; set it by /mock/faults"
        )
    if not fault.applies_to_all:
        raise FaultError(
            f"fault {fault.kind} is selective, expected no first, every, share or after: it applies to this request"
        )
    return fault
