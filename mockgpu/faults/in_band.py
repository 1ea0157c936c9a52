"""Faults that a request brings for itself alone, in a header or in its body.

- ``X-Mock-Fault``: a fault or a list of them in JSON, ``{"kind": "slow", "factor": 4}``, or in short
  ``slow;factor=4, cut;after_tokens=2``.
- ``mock_fault``, a field of the JSON body: the same, the object or the list itself or the short text.
- ``X-Return-Error: 503``, or with a header to try again later ``X-Return-Error: 503;retry_after_s=2``.

Only kinds that strike a single request, aimed at nothing: a request brings no fault for others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from mockgpu.api.wire import BadRequestError, Headers
from mockgpu.faults.kinds import FaultError, OutOfMemoryFault, SelectiveFault, Single, from_json

FAULT, ERROR, FIELD = "X-Mock-Fault", "X-Return-Error", "mock_fault"
_BRACKETS = ("{", "[")


def brought(headers: Headers, data: Mapping[str, Any]) -> tuple[Single, ...]:
    """The faults that a request brings, none as a rule; raises BadRequestError that names the header or field."""
    in_header, status, field = headers.get(FAULT), headers.get(ERROR), data.get(FIELD)
    if in_header is None and status is None and field is None:
        return ()
    where = FAULT
    try:
        faults = _read(in_header)
        where = ERROR
        if status is not None:
            code, *rest = status.split(";")
            faults += _read(";".join([f"status;status={code.strip()}", *rest]))
        where = FIELD
        faults += _read(field)
        if len({fault.kind for fault in faults}) < len(faults):
            raise FaultError("two faults of one kind, expected one of each")
    except FaultError as bad:
        raise BadRequestError(f"{where}: {bad}", where) from None
    return tuple(faults)


def _read(given: object) -> list[Single]:
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
        raise FaultError(f"this is no JSON: {error}") from None


def _short(text: str) -> dict[str, object]:
    """``slow;factor=4`` as an object. What is no JSON value is a word."""
    kind, *pairs = (part.strip() for part in text.split(";"))
    said: dict[str, object] = {"kind": kind}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise FaultError(f"{pair!r} in {text.strip()!r}, expected name=value")
        try:
            said[name.strip()] = json.loads(value)
        except (ValueError, RecursionError):
            said[name.strip()] = value.strip()
    return said


def _single(data: object) -> Single:
    fault = from_json(data)
    if not isinstance(fault, get_args(Single)):
        raise FaultError(f"fault {fault.kind} is no matter of one request; set it by /mock/faults")
    assert isinstance(fault, SelectiveFault)
    if isinstance(fault, OutOfMemoryFault) and fault.dead:
        raise FaultError(f"fault {fault.kind} is dead, which is no matter of one request; set it by /mock/faults")
    if not fault.at_all:
        raise FaultError(f"fault {fault.kind} is aimed, expected no first, every, share or after: it strikes this one")
    return fault
