"""The attempt log: what one backend saw, in a memory-mapped file of fixed-size rows.

The kernel owns the mapped pages, so what was written survives SIGKILL of the writer. A row is written when a
request arrives, with outcome ``open``, and completed in place when it ends; ``outcome`` is the last byte of
a row and is written last. So a row that is still ``open`` belongs to a request in flight or to a writer that
was killed, or, where it has an end, to one in which the mock itself failed. A client may hold its answer a
moment before the row says so.

Layout, little-endian, without padding::

    header  64 bytes   HEADER_FORMAT: magic, format version, row size, rows used, capacity, rows lost
    rows    176 bytes  ROW_FORMAT, fields in the order of ROW_FIELDS

``ROW_FIELDS`` carries numpy's name of each type, so that
``numpy.frombuffer(data, numpy.dtype(list(ROW_FIELDS)), count, HEADER_SIZE)`` decodes all rows at once, with
``count`` from ``read_header``. Times are seconds of CLOCK_MONOTONIC, durations seconds, both nan where there
is none; ``model`` is UTF-8 cut to 64 bytes and filled with zero bytes.
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
"""How many rows a log has room for unless told otherwise: 88 MB of it, as far as they are used."""
MAGIC = b"MOCKGPU\0"
FORMAT_VERSION = 2
HEADER_FORMAT = "<8sIIQQQ24x"
ROW_FIELDS: tuple[tuple[str, str], ...] = (
    ("tag", "<u8"),  # see mockgpu.api.tags; 0: none
    ("body_hash", "<u8"),  # of the request's body, see body_hash_of; 0: no body
    ("arrival_s", "<f8"),
    ("submitted_s", "<f8"),  # when the model was given the request: what is before is the mock's own doing
    ("first_byte_s", "<f8"),  # just before the first byte of the answer is written
    ("end_s", "<f8"),
    ("queue_wait_s", "<f8"),  # submission to start of service, loads included
    ("service_asked_s", "<f8"),  # what the model says the service takes
    ("service_actual_s", "<f8"),  # what it took; never less, the excess is this process's lateness
    ("bytes_in", "<u8"),  # bodies only
    ("bytes_out", "<u8"),
    ("model", "S64"),
    ("prompt_tokens", "<u4"),
    ("cached_tokens", "<u4"),  # those of the prompt that the prefix cache spared
    ("tokens_out", "<u4"),  # sent to the client, as far as this process knows
    ("batch", "<u2"),  # running jobs of the model at the start of service, this one included
    ("status", "<u2"),  # 0: none was sent
    ("kind", "u1"),  # Kind
    ("method", "u1"),  # index into METHODS
    ("carriers", "u1"),  # bit mask of mockgpu.api.tags.Carrier: which ones bore this tag
    ("cold", "u1"),  # 1: the model was not resident at submission
    ("retry", "u1"),  # which try it is to its sender, from x-stainless-retry-count; 0: the first, or not said
    ("reserved", "S2"),
    ("outcome", "u1"),  # Outcome; stays the last byte
)
ROW_FORMAT = "<QQdddddddQQ64sIIIHHBBBBB2xB"
METHODS = ("", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")  # any other is ""

_HEADER = struct.Struct(HEADER_FORMAT)
_ROW = struct.Struct(ROW_FORMAT)
_COUNT_AT = 16
_LOST_AT = 32
_COUNT = struct.Struct("<Q")
HEADER_SIZE = _HEADER.size
ROW_SIZE = _ROW.size


class RowKind(IntEnum):
    """What a row is about. ``foreign``: on an inference or update path, but not of this run."""

    INFERENCE = 0
    UPDATE = 1
    HEALTH_CHECK = 2
    RESIDENCY_LOADING = 3
    RESIDENCY_LOADED = 4
    RESIDENCY_EVICTED = 5
    FOREIGN = 6


class RowOutcome(IntEnum):
    """How a row ended. Residency rows are ``answered`` from the start. ``cut``: the backend broke it off itself."""

    OPEN = 0
    ANSWERED = 1
    CLIENT_GONE = 2
    REFUSED = 3
    CUT = 4


class LogError(ValueError):
    """Bytes that are no attempt log of this format; the text says what was seen and expected."""


@dataclass(slots=True)
class LogRow:
    """One row, to be filled in by its writer or as decoded by ``read_rows``; ROW_FIELDS says what is what."""

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
    """``count`` rows follow; ``lost`` more did not fit into ``capacity``."""

    count: int
    capacity: int
    lost: int


_METHOD_NUMBERS = {name: number for number, name in enumerate(METHODS)}


def body_hash_of(body: bytes) -> int:
    """The first 8 bytes of a body's BLAKE2b digest (digest size 8) as a little-endian number; 0 if empty."""
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
    """Writer of one log file, which it creates (or empties) and maps.

    The file is sparse: capacity costs address space, not memory. A full log says so once, on standard error, counts
    what it lost and goes on.
    """

    def __init__(self, path: Path, capacity_rows: int) -> None:
        self._name = path.stem
        self._capacity = capacity_rows
        self._count = 0
        self._lost = 0
        self._cleared = 0  # rows handed out before the last clear: tickets below this are void
        with path.open("w+b") as file:
            os.truncate(file.fileno(), HEADER_SIZE + capacity_rows * ROW_SIZE)
            self._map = mmap.mmap(file.fileno(), 0)
        _HEADER.pack_into(self._map, 0, MAGIC, FORMAT_VERSION, ROW_SIZE, 0, capacity_rows, 0)

    def add(self, row: LogRow) -> int:
        """Write a new row; returns a ticket for ``update``, or -1 if the log is full."""
        count = self._count
        if count >= self._capacity:
            if not self._lost:
                self._say_full()
            self._lost += 1
            _COUNT.pack_into(self._map, _LOST_AT, self._lost)
            return -1
        _pack(self._map, HEADER_SIZE + count * ROW_SIZE, row)
        self._count = count + 1
        _COUNT.pack_into(self._map, _COUNT_AT, self._count)
        return self._cleared + count

    def _say_full(self) -> None:
        seen = f"mockgpu: the log {self._name} is full with {self._capacity} rows, further ones are lost"
        print(f"{seen}; give it more with --log-rows, or begin anew with /mock/reset", file=sys.stderr, flush=True)

    def update(self, ticket: int, row: LogRow) -> None:
        """Write a row anew in its place; does nothing if it was lost or cleared in the meantime."""
        number = ticket - self._cleared
        if number >= 0:
            _pack(self._map, HEADER_SIZE + number * ROW_SIZE, row)

    def clear(self) -> None:
        """Forget all rows. Rows of requests still in flight are dropped when they end."""
        self._cleared += self._count
        self._count = self._lost = 0
        _COUNT.pack_into(self._map, _COUNT_AT, 0)
        _COUNT.pack_into(self._map, _LOST_AT, 0)

    def dump(self) -> bytes:
        """Header and used rows as they are in the file."""
        return bytes(self._map[: HEADER_SIZE + self._count * ROW_SIZE])

    def close(self) -> None:
        """Unmap the file; it stays."""
        self._map.close()


def read_header(data: bytes) -> Header:
    """Decode the header; raises LogError if these are not the first bytes of such a log."""
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
    """Decode all rows, in order of writing; raises LogError if the bytes are no log or are cut short."""
    header = read_header(data)
    end = HEADER_SIZE + header.count * ROW_SIZE
    if len(data) < end:
        raise LogError(f"attempt log: {len(data)} bytes, expected {end} for {header.count} rows")
    return [_unpack(fields) for fields in _ROW.iter_unpack(memoryview(data)[HEADER_SIZE:end])]


def _unpack(fields: tuple[int | float | bytes, ...]) -> LogRow:
    tag, body_hash, arrival, submitted, first_byte, end, queue_wait, asked, actual, *rest = fields
    bytes_in, bytes_out, model, *rest = rest
    prompt_tokens, cached_tokens, tokens_out, batch, status, kind, method, carriers, cold, retry, outcome = rest
    assert isinstance(model, bytes)
    return LogRow(
        kind=RowKind(int(kind)),
        arrival_s=float(arrival),
        method=METHODS[int(method)],
        tag=int(tag),
        carriers=int(carriers),
        # A cut may go through a character.
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
        service_asked_s=float(asked),
        service_actual_s=float(actual),
        bytes_in=int(bytes_in),
        bytes_out=int(bytes_out),
        body_hash=int(body_hash),
    )


def read_files(paths: list[Path], first: int = 0) -> bytes:
    """The rows of several log files, in that order, as one log: a backend's lives before and after kills.

    ``first`` leaves out so many from the beginning. Safe while they are being written: only rows that the header
    counts are taken.
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
