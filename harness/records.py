"""Binary form of requests: one fixed-size row each, written by the load process and read back by the live world.

A file is the eight bytes of `MAGIC`, a little-endian row count (u8), and the rows as laid out in `REQUEST`.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.model import HarnessError

Rows = npt.NDArray[Any]

MAGIC = b"SYREQ\x00\x00\x01"

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
        ("key", "<i4"),
        ("connection", "<i4"),
        ("answered_by", "<i4"),
        ("bytes", "<u4"),
        ("intended_s", "<f8"),
        ("sent_s", "<f8"),
        ("first_byte_s", "<f8"),
        ("end_s", "<f8"),
    ]
)
"""One request as its client saw it. Times in seconds from the start of the run, nan where there was none.

`failure` and `echo` are the enums of harness.model; `answered_by` is the backend's number, -1 unknown; `reused` is 1
if the connection had carried a request before; `connection` -1 unless the stream keeps to one.
"""


def write_requests(path: Path, rows: Rows) -> None:
    """Write `rows` (of dtype `REQUEST`) to `path`, all or nothing (temporary file, then rename)."""
    partial = path.with_suffix(path.suffix + ".part")
    partial.write_bytes(MAGIC + struct.pack("<Q", len(rows)) + np.ascontiguousarray(rows, dtype=REQUEST).tobytes())
    partial.rename(path)


def read_requests(path: Path) -> Rows:
    """Rows of the file at `path`, ordered by number. HarnessError if it is missing, cut short or not ours."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise HarnessError(f"{path}: no request records ({error}); the load process wrote none") from None
    head = len(MAGIC) + 8
    if len(data) < head or data[: len(MAGIC)] != MAGIC:
        raise HarnessError(f"{path}: not a file of request records (expected it to start with {MAGIC!r})")
    (count,) = struct.unpack_from("<Q", data, len(MAGIC))
    if len(data) != head + count * REQUEST.itemsize:
        raise HarnessError(f"{path}: {len(data)} bytes, expected {count} rows of {REQUEST.itemsize} after the head")
    rows = np.frombuffer(data, dtype=REQUEST, offset=head)
    return rows[np.argsort(rows["number"], kind="stable")]
