"""Request records round-trip exactly, and other files are rejected."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from harness.evidence.records import MAGIC, REQUEST, ROW, read_about, read_requests, write_requests
from harness.scenario.model import Failure, HarnessError


def some_rows() -> np.ndarray[tuple[int], np.dtype[np.void]]:
    rows = np.zeros(5, dtype=REQUEST)
    rows["number"] = [4, 2, 0, 1, 3]
    rows["failure"] = [Failure.NONE, Failure.TIMEOUT, Failure.OTHER, Failure.NOT_SENT, Failure.RESET]
    rows["answered_by"] = [0, -1, 3, -1, 2]
    rows["intended_s"] = rows["number"] * 0.1
    rows["sent_s"] = [0.4, np.nan, 0.0, np.nan, 0.3]
    rows["status"] = 503
    return rows


def test_round_trip_ordered_by_number(tmp_path: Path) -> None:
    rows = some_rows()
    write_requests(tmp_path / "run.records", rows)
    again = read_requests(tmp_path / "run.records")
    assert again.dtype == REQUEST
    assert list(again["number"]) == [0, 1, 2, 3, 4]
    assert again.tobytes() == rows[np.argsort(rows["number"])].tobytes()
    assert [path.name for path in tmp_path.iterdir()] == ["run.records"]


def test_no_rows(tmp_path: Path) -> None:
    write_requests(tmp_path / "run.records", np.zeros(0, dtype=REQUEST))
    assert len(read_requests(tmp_path / "run.records")) == 0


def test_writing_again_replaces(tmp_path: Path) -> None:
    write_requests(tmp_path / "run.records", some_rows())
    write_requests(tmp_path / "run.records", some_rows()[:2])
    assert len(read_requests(tmp_path / "run.records")) == 2


def test_the_layout_is_fixed() -> None:
    assert REQUEST.itemsize == ROW.size == 78
    assert not REQUEST.isalignedstruct
    assert MAGIC[:5] == b"SYREQ" and len(MAGIC) == 8


def assert_one_line(path: Path, message: str) -> None:
    with pytest.raises(HarnessError, match=message) as caught:
        read_requests(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    assert_one_line(tmp_path / "run.records", "no request records")


@pytest.mark.parametrize("lost", [1, REQUEST.itemsize, 4 * REQUEST.itemsize])
def test_a_cut_file(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "run.records"
    write_requests(path, some_rows())
    path.write_bytes(path.read_bytes()[:-lost])
    assert_one_line(path, "expected 5 rows")


def test_bytes_too_many(tmp_path: Path) -> None:
    path = tmp_path / "run.records"
    write_requests(path, some_rows())
    path.write_bytes(path.read_bytes() + b"x")
    assert_one_line(path, "expected 5 rows")


@pytest.mark.parametrize("content", [b"", MAGIC, b"\x89PNG\r\n\x1a\n" + bytes(100), b"[1, 2,\n3]" * 20])
def test_an_alien_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.records"
    path.write_bytes(content)
    assert_one_line(path, "not a file of request records")


def test_what_is_told_about_the_rows_comes_back(tmp_path: Path) -> None:
    path, about = tmp_path / "run.records", {"backends": ["gpu-0", "gpü-1"], "lost": 0}
    write_requests(path, some_rows(), about)
    assert read_about(path) == about
    assert len(read_requests(path)) == 5
    write_requests(path, some_rows())
    assert read_about(path) == {}


@pytest.mark.parametrize("message", [b"[1]", b"{no", b"\xff\xff\xff"])
def test_about_that_is_no_object(tmp_path: Path, message: bytes) -> None:
    path = tmp_path / "run.records"
    path.write_bytes(MAGIC + struct.pack("<QI", 0, len(message)) + message)
    assert_one_line(path, "not a JSON object")


def test_a_row_packed_by_struct_is_a_row_of_numpy() -> None:
    values = (1, 2, 3, 0, 5, 2, 1, 200, 9, -4, -1, 6, 7, 1 << 63, 0.5, 1.5, 2.5, 3.5, 4.5)
    assert tuple(np.frombuffer(ROW.pack(*values), dtype=REQUEST)[0]) == values
