"""The attempt log: the requests that one backend received, in a memory-mapped file of fixed-size rows.

The kernel owns the mapped pages, so written rows survive SIGKILL of the writer. A row is written when a request
arrives, with outcome ``open``, and completed in place when the request ends; ``outcome`` is the last byte of a row and
is written last. A row that is still ``open`` belongs to a request in flight or to a killed writer or, if it has an end
time, to a request in which the mock itself failed. A client may receive its answer shortly before the row is
completed.

Layout, little-endian, without padding::

    header  64 bytes   HEADER_FORMAT: magic, format version, row size, rows used, capacity, rows lost
    rows    176 bytes  ROW_FORMAT, fields in the order of ROW_FIELDS

``ROW_FIELDS`` has numpy's type names, so ``numpy.frombuffer(data, numpy.dtype(list(ROW_FIELDS)), count, HEADER_SIZE)``
decodes all rows, with ``count`` from ``read_header``. Times are seconds of CLOCK_MONOTONIC, durations are seconds; both
are nan where unknown. ``model`` is UTF-8, cut to 64 bytes and padded with zero bytes.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from math import nan
from pathlib import Path

LOG_ROWS = 500_000
"""Default capacity of a log in rows: 88 MB when full; the file is sparse."""
MAGIC = b"MOCKGPU\0"
FORMAT_VERSION = 2
HEADER_FORMAT = "<8sIIQQQ24x"
ROW_FIELDS: tuple[tuple[str, str], ...] = (
    ("tag", "<u8"),  # see mockgpu.api.tags; 0: none
    ("body_hash", "<u8"),  # of the request body, see body_hash_of; 0: no body
    ("arrival_s", "<f8"),
    ("submitted_s", "<f8"),  # submission to the model; the time before it is the mock's overhead
    ("first_byte_s", "<f8"),  # just before the first byte of the answer is written
    ("end_s", "<f8"),
    ("queue_wait_s", "<f8"),  # submission to start of service, loads included
    ("service_asked_s", "<f8"),  # service time according to the model
    ("service_actual_s", "<f8"),  # measured service time, never less; the excess is this process's delay
    ("bytes_in", "<u8"),  # bodies only
    ("bytes_out", "<u8"),
    ("model", "S64"),
    ("prompt_tokens", "<u4"),
    ("cached_tokens", "<u4"),  # prompt tokens found in the prefix cache
    ("tokens_out", "<u4"),  # sent to the client, as far as this process knows
    ("batch", "<u2"),  # running jobs of the model at the start of service, this one included
    ("status", "<u2"),  # 0: none was sent
    ("kind", "u1"),  # Kind
    ("method", "u1"),  # index into METHODS
    ("carriers", "u1"),  # bit mask of mockgpu.api.tags.Carrier: the places where the request carried its tag
    ("cold", "u1"),  # 1: the model was not resident at submission
    ("retry", "u1"),  # retry number from x-stainless-retry-count; 0: first attempt or unknown
    ("reserved", "S2"),
    ("outcome", "u1"),  # RowOutcome; must stay the last byte
)
ROW_FORMAT = "<QQdddddddQQ64sIIIHHBBBBB2xB"
METHODS = ("", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")  # others are recorded as ""

_HEADER = struct.Struct(HEADER_FORMAT)
_ROW = struct.Struct(ROW_FORMAT)
_COUNT_AT = 16
_LOST_AT = 32
_COUNT = struct.Struct("<Q")
HEADER_SIZE = _HEADER.size
ROW_SIZE = _ROW.size


class RowKind(IntEnum):
    """The subject of a row. ``foreign``: an inference or update request of another run."""

    INFERENCE = 0
    UPDATE = 1
    HEALTH_CHECK = 2
    RESIDENCY_LOADING = 3
    RESIDENCY_LOADED = 4
    RESIDENCY_EVICTED = 5
    FOREIGN = 6


class RowOutcome(IntEnum):
    """How a request ended. Residency rows are ``answered`` from the start. ``cut``: the backend ended it itself."""

    OPEN = 0
    ANSWERED = 1
    CLIENT_GONE = 2
    REFUSED = 3
    CUT = 4


class LogError(ValueError):
    """Bytes that are no attempt log of this format; the text has the value and what was expected."""


@dataclass(slots=True)
class LogRow:
    """One row, as filled in by its writer or decoded by ``read_rows``; see ROW_FIELDS for the fields."""

    kind: RowKind
    arrival_s: float
    method: str = ""
    tag: int = 0
    carriers: int = 0
    model: str = ""
    status: int = 0
    outcome: RowOutcome = RowOutcome.OPEN
    submitted_s: float = nan
    first_byte_s: float = nan
    end_s: float = nan
    cold: int = 0
    retry: int = 0
    batch: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens_out: int = 0
    queue_wait_s: float = nan
    service_asked_s: float = nan
    service_actual_s: float = nan
    bytes_in: int = 0
    bytes_out: int = 0
    body_hash: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """``count`` rows follow; ``lost`` further rows did not fit into ``capacity``."""

    count: int
    capacity: int
    lost: int


_METHOD_NUMBERS = {name: number for number, name in enumerate(METHODS)}


def body_hash_of(body: bytes) -> int:
    """A body's BLAKE2b digest (digest size 8) as a little-endian number; 0 if the body is empty."""
    if not body:
        return 0
    return int.from_bytes(blake2b(body, digest_size=8).digest(), "little")


def _pack(buffer: mmap.mmap, offset: int, row: LogRow) -> None:
    _ROW.pack_into(
        buffer,
        offset,
        row.tag,
        row.body_hash,
        row.arrival_s,
        row.submitted_s,
        row.first_byte_s,
        row.end_s,
        row.queue_wait_s,
        row.service_asked_s,
        row.service_actual_s,
        row.bytes_in,
        row.bytes_out,
        row.model.encode()[:64],
        row.prompt_tokens,
        row.cached_tokens,
        row.tokens_out,
        row.batch,
        row.status,
        row.kind,
        _METHOD_NUMBERS.get(row.method, 0),
        row.carriers,
        row.cold,
        row.retry,
        row.outcome,
    )


class AttemptLog:
    """Writer of one log file; it creates (or truncates) and maps the file.

    The file is sparse: unused capacity costs address space, not memory. A full log prints one message on standard
    error, counts the lost rows and continues.
    """

    def __init__(self, path: Path, capacity_rows: int) -> None:
        self._name = path.stem
        self._capacity = capacity_rows
        self._count = 0
        self._lost = 0
        self._cleared = 0  # rows before the last clear: tickets below this are invalid
        with path.open("w+b") as file:
            os.truncate(file.fileno(), HEADER_SIZE + capacity_rows * ROW_SIZE)
            self._map = mmap.mmap(file.fileno(), 0)
        _HEADER.pack_into(self._map, 0, MAGIC, FORMAT_VERSION, ROW_SIZE, 0, capacity_rows, 0)

    def add(self, row: LogRow) -> int:
        """Write a new row; returns a ticket for ``update``, or -1 if the log is full."""
        count = self._count
        if count >= self._capacity:
            if not self._lost:
                self._report_full()
            self._lost += 1
            _COUNT.pack_into(self._map, _LOST_AT, self._lost)
            return -1
        _pack(self._map, HEADER_SIZE + count * ROW_SIZE, row)
        self._count = count + 1
        _COUNT.pack_into(self._map, _COUNT_AT, self._count)
        return self._cleared + count

    def _report_full(self) -> None:
        problem = f"mockgpu: the log {self._name} is full with {self._capacity} rows, further rows are lost"
        print(f"{problem}; raise --log-rows, or clear the log with /mock/reset", file=sys.stderr, flush=True)

    def update(self, ticket: int, row: LogRow) -> None:
        """Overwrite a row; does nothing if it was lost or has been cleared."""
        number = ticket - self._cleared
        if number >= 0:
            _pack(self._map, HEADER_SIZE + number * ROW_SIZE, row)

    def clear(self) -> None:
        """Drop all rows. Later updates of rows of requests still in flight are ignored."""
        self._cleared += self._count
        self._count = self._lost = 0
        _COUNT.pack_into(self._map, _COUNT_AT, 0)
        _COUNT.pack_into(self._map, _LOST_AT, 0)

    def dump(self) -> bytes:
        """Header and used rows, as in the file."""
        return bytes(self._map[: HEADER_SIZE + self._count * ROW_SIZE])

    def close(self) -> None:
        """Unmap the file without deleting it."""
        self._map.close()


def read_header(data: bytes) -> Header:
    """Decode the header; raises LogError if the bytes do not begin with one."""
    if len(data) < HEADER_SIZE:
        raise LogError(f"attempt log: {len(data)} bytes, expected at least {HEADER_SIZE}")
    magic, version, row_size, count, capacity, lost = _HEADER.unpack_from(data)
    if (magic, version, row_size) != (MAGIC, FORMAT_VERSION, ROW_SIZE):
        raise LogError(
            f"attempt log: begins with {magic!r}, version {version}, row size {row_size}, "
            f"expected {MAGIC!r}, {FORMAT_VERSION}, {ROW_SIZE}"
        )
    return Header(count, capacity, lost)


def read_rows(data: bytes) -> list[LogRow]:
    """Decode all rows in order of writing; raises LogError if the bytes are no log or are truncated."""
    header = read_header(data)
    end = HEADER_SIZE + header.count * ROW_SIZE
    if len(data) < end:
        raise LogError(f"attempt log: {len(data)} bytes, expected {end} for {header.count} rows")
    return [_unpack(fields) for fields in _ROW.iter_unpack(memoryview(data)[HEADER_SIZE:end])]


def _unpack(fields: tuple[int | float | bytes, ...]) -> LogRow:
    tag, body_hash, arrival, submitted, first_byte, end, queue_wait, expected, actual, *rest = fields
    bytes_in, bytes_out, model, *rest = rest
    prompt_tokens, cached_tokens, tokens_out, batch, status, kind, method, carriers, cold, retry, outcome = rest
    assert isinstance(model, bytes)
    return LogRow(
        kind=RowKind(int(kind)),
        arrival_s=float(arrival),
        method=METHODS[int(method)],
        tag=int(tag),
        carriers=int(carriers),
        # The 64-byte limit may have split a character.
        model=model.rstrip(b"\0").decode(errors="ignore"),
        status=int(status),
        outcome=RowOutcome(int(outcome)),
        submitted_s=float(submitted),
        first_byte_s=float(first_byte),
        end_s=float(end),
        cold=int(cold),
        retry=int(retry),
        batch=int(batch),
        prompt_tokens=int(prompt_tokens),
        cached_tokens=int(cached_tokens),
        tokens_out=int(tokens_out),
        queue_wait_s=float(queue_wait),
        service_asked_s=float(expected),
        service_actual_s=float(actual),
        bytes_in=int(bytes_in),
        bytes_out=int(bytes_out),
        body_hash=int(body_hash),
    )


def read_files(paths: list[Path], first: int = 0) -> bytes:
    """The rows of several log files, in that order, as one log: those of a backend's processes before and after kills.

    ``first``: number of rows to skip at the beginning. Safe during writing: only rows counted in the header are read.
    """
    rows: list[bytes] = []
    count = capacity = lost = 0
    for path in paths:
        with path.open("rb") as file:
            header = read_header(file.read(HEADER_SIZE))
            skipped = min(first, header.count)
            file.seek(skipped * ROW_SIZE, os.SEEK_CUR)
            rows.append(file.read((header.count - skipped) * ROW_SIZE))
        first -= skipped
        count += header.count - skipped
        capacity += header.capacity
        lost += header.lost
    return _HEADER.pack(MAGIC, FORMAT_VERSION, ROW_SIZE, count, capacity, lost) + b"".join(rows)
