"""Tensors of KServe v2 requests and answers, as JSON and in the binary extension.

With the extension the body is JSON of ``Inference-Header-Content-Length`` bytes, followed by the raw bytes of the
tensors with the parameter ``binary_data_size`` (their number of bytes), in order. Numbers are little-endian; an
element of BYTES is its length in 4 bytes, then its data.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mockgpu.api.wire import BadRequestError, read_json, shown

HEADER_LENGTH = "Inference-Header-Content-Length"
SIZES: Mapping[str, int] = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}
_WHOLE = {
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
}
_MAX_DIMENSIONS = 64


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input. ``texts``: the elements of BYTES. ``number``: the element of a single whole number, else None."""

    name: str
    datatype: str
    elements: int
    texts: tuple[str, ...] = ()
    number: int | None = None


def split_body(headers: Mapping[str, str], body: bytes) -> tuple[dict[str, Any], bytes]:
    """The JSON part of a body and the raw bytes after it; raises BadRequestError."""
    length = headers.get(HEADER_LENGTH)
    if length is None:
        return read_json(body), b""
    if not (length.isascii() and length.isdigit()) or len(length) > 12 or int(length) > len(body):
        raise BadRequestError(f"{HEADER_LENGTH} is {shown(length)}, expected at most the body's {len(body)} bytes")
    return read_json(body[: int(length)]), body[int(length) :]


def read_inputs(data: Mapping[str, Any], raw: bytes) -> list[Tensor]:
    """All inputs; raises BadRequestError if shape, type and data do not match."""
    inputs = data.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise BadRequestError(f"inputs is {shown(inputs)}, expected a list of tensors", "inputs")
    tensors = []
    for given in inputs:
        if not isinstance(given, dict) or not isinstance(given.get("name"), str):
            raise BadRequestError(f"inputs holds {shown(given)}, expected an object with a name", "inputs")
        tensor, raw = _read_input(given, raw)
        tensors.append(tensor)
    if len(tensors) > 1:
        duplicates = [name for name, count in Counter(tensor.name for tensor in tensors).items() if count > 1]
        if duplicates:
            raise BadRequestError(f"two inputs are named {shown(duplicates[0])}, expected distinct names", "inputs")
    if raw:
        raise BadRequestError(f"{len(raw)} bytes follow the tensors, expected none", "inputs")
    return tensors


def _read_input(given: Mapping[str, Any], raw: bytes) -> tuple[Tensor, bytes]:
    name, datatype = str(given["name"]), given.get("datatype")
    if not isinstance(datatype, str) or (datatype not in SIZES and datatype != "BYTES"):
        raise BadRequestError(
            f"input {shown(name)}: datatype is {shown(datatype)}, expected one of KServe's", "datatype"
        )
    elements = _elements(name, given.get("shape"))
    parameters = given.get("parameters")
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is None:
        return _from_json(name, datatype, elements, given.get("data")), raw
    if type(size) is not int or not 0 <= size <= len(raw):
        raise BadRequestError(
            f"input {shown(name)}: binary_data_size is {shown(size)}, with {len(raw)} bytes left", name
        )
    return _from_bytes(name, datatype, elements, raw[:size]), raw[size:]


def _elements(name: str, shape: object) -> int:
    is_list = isinstance(shape, list) and len(shape) <= _MAX_DIMENSIONS
    if not is_list or not all(type(size) is int and 0 <= size < 2**31 for size in shape):  # type: ignore[attr-defined]
        raise BadRequestError(f"input {shown(name)}: shape is {shown(shape)}, expected a list of sizes", "shape")
    return math.prod(shape)  # type: ignore[call-overload, no-any-return]


def _from_json(name: str, datatype: str, elements: int, data: object) -> Tensor:
    flat: list[object] = []
    pending = list(reversed(data)) if isinstance(data, list) else []
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending += reversed(item)
        else:
            flat.append(item)
    _check_count(name, len(flat), elements, "elements")
    if datatype == "BYTES":
        if not all(isinstance(item, str) for item in flat):
            raise BadRequestError(f"input {shown(name)}: its data are not all texts, expected text for BYTES", name)
        return Tensor(name, datatype, elements, tuple(str(item) for item in flat))
    whole = datatype in _WHOLE
    if whole:
        minimum, maximum = _range_of(datatype)
        valid = all(type(item) is int and minimum <= item <= maximum for item in flat)
    elif datatype == "BOOL":
        valid = all(isinstance(item, bool) or (type(item) is int and item in (0, 1)) for item in flat)
    else:
        valid = all(isinstance(item, int | float) and not isinstance(item, bool) for item in flat)
    if not valid:
        raise BadRequestError(f"input {shown(name)}: its data are not all numbers of {datatype}", name)
    single = flat[0] if elements == 1 and whole else None
    return Tensor(name, datatype, elements, number=single if type(single) is int else None)


def _range_of(datatype: str) -> tuple[int, int]:
    bits = 8 * SIZES[datatype]
    return (0, 2**bits - 1) if datatype.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _from_bytes(name: str, datatype: str, elements: int, raw: bytes) -> Tensor:
    if datatype != "BYTES":
        _check_count(name, len(raw), elements * SIZES[datatype], "bytes")
        single = elements == 1 and datatype in _WHOLE
        return Tensor(
            name, datatype, elements, number=struct.unpack("<" + _WHOLE[datatype], raw)[0] if single else None
        )
    texts, offset = [], 0
    while offset + 4 <= len(raw):
        end = offset + 4 + int.from_bytes(raw[offset : offset + 4], "little")
        texts.append(raw[offset + 4 : end].decode(errors="replace"))
        offset = end
    if offset != len(raw):
        raise BadRequestError(f"input {shown(name)}: its last element is truncated", name)
    _check_count(name, len(texts), elements, "elements")
    return Tensor(name, datatype, elements, tuple(texts))


def _check_count(name: str, count: int, expected: int, unit: str) -> None:
    if count != expected:
        raise BadRequestError(f"input {shown(name)}: {count} {unit}, expected {expected} by its shape", name)


def packed_text(text: str) -> bytes:
    """One element of BYTES in the binary extension."""
    data = text.encode()
    return len(data).to_bytes(4, "little") + data
