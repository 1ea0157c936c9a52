"""Binary form of request records: one fixed-size row each, written by the load engine.

A file consists of the eight bytes of `MAGIC`, a little-endian row count (u8), the length in bytes of the metadata
(u4), the metadata as a JSON object, and the rows as laid out in `REQUEST`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.scenario.model import HarnessError

Rows = npt.NDArray[Any]

MAGIC = b"SYREQ\x00\x00\x03"

REQUEST = np.dtype(
    [
        ("number", "<u4"),
        ("stream", "u1"),
        ("kind", "u1"),
        ("method", "u1"),
        ("failure", "u1"),
        ("echo", "u1"),
        ("reused", "u1"),
        ("status", "<u2"),
        ("attempts", "<u2"),
        ("key", "<i4"),
        ("connection", "<i4"),
        ("answered_by", "<i4"),
        ("bytes", "<u4"),
        ("body_hash", "<u8"),
        ("intended_s", "<f8"),
        ("sent_s", "<f8"),
        ("first_byte_s", "<f8"),
        ("end_s", "<f8"),
        ("patience_s", "<f8"),
    ]
)
"""One request as observed by its client. Times in seconds from the start of the run, nan where there was none.

`failure` and `echo` are the enums of harness.scenario.model; `answered_by` is the backend's number, -1 unknown;
`attempts` is the number in the answer's headers, 0 without one; `reused` is 1 if the connection had carried a request
before; `connection` is -1 unless the stream uses a single one; `body_hash` is xxh64 (seed 0) of the answer's body as
received; `patience_s` is the time after which the client gives up (nan: unknown).
"""

ROW = struct.Struct("<I6BHHiiiIQ5d")
"""The same layout for `struct`: packing one row costs a third of setting an element of a numpy array."""

_HEAD = struct.Struct("<8sQI")


def write_requests(path: Path, rows: Rows, about: Mapping[str, Any] | None = None) -> None:
    """Write `rows` (of dtype `REQUEST`) to `path` atomically (temporary file, then rename).

    `about` is metadata, a JSON object such as {"backends": ["gpu-0", "gpu-1"]} in the order of their numbers.
    """
    metadata = json.dumps(dict(about or {})).encode()
    partial = path.with_suffix(path.suffix + ".part")
    with partial.open("wb") as file:
        file.write(_HEAD.pack(MAGIC, len(rows), len(metadata)) + metadata)
        file.write(np.ascontiguousarray(rows, dtype=REQUEST).data)
    partial.rename(path)


def read_requests(path: Path) -> Rows:
    """Rows of the file at `path`, ordered by number. HarnessError if it is missing, truncated or in another format."""
    data, _, begin = _read(path)
    rows = np.frombuffer(data, dtype=REQUEST, offset=begin)
    return rows[np.argsort(rows["number"], kind="stable")]


def read_about(path: Path) -> dict[str, Any]:
    """Metadata of the file at `path`; errors as in `read_requests`."""
    return _read(path)[1]


def _read(path: Path) -> tuple[bytes, dict[str, Any], int]:
    """All bytes of a file, its metadata, and the offset of the first row."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise HarnessError(f"{path}: no request records ({error}); the load process wrote none") from None
    if len(data) < _HEAD.size or data[: len(MAGIC)] != MAGIC:
        raise HarnessError(f"{path}: not a file of request records (expected it to start with {MAGIC!r})")
    _, count, metadata_bytes = _HEAD.unpack_from(data)
    begin = _HEAD.size + metadata_bytes
    if len(data) != begin + count * REQUEST.itemsize:
        raise HarnessError(f"{path}: {len(data)} bytes, expected {count} rows of {REQUEST.itemsize} after the head")
    try:
        about = json.loads(data[_HEAD.size : begin])
    except ValueError:
        about = None
    if not isinstance(about, dict):
        raise HarnessError(f"{path}: its metadata is not a JSON object: {data[_HEAD.size : begin][:80]!r}")
    return data, about, begin
