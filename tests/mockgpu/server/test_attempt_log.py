import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest

from mockgpu.server.attempt_log import (
    HEADER_SIZE,
    METHODS,
    ROW_FIELDS,
    ROW_SIZE,
    AttemptLog,
    LogError,
    LogRow,
    RowKind,
    RowOutcome,
    body_hash_of,
    read_files,
    read_header,
    read_rows,
)

FULL = LogRow(
    kind=RowKind.FOREIGN,
    arrival_s=1.25,
    method="POST",
    tag=2**52 - 1,
    carriers=15,
    model="llama-8b",
    status=503,
    outcome=RowOutcome.REFUSED,
    submitted_s=1.5,
    first_byte_s=2.5,
    end_s=3.5,
    cold=1,
    retry=2,
    batch=2**16 - 1,
    prompt_tokens=2**32 - 1,
    cached_tokens=17,
    tokens_out=18,
    queue_wait_s=0.25,
    service_asked_s=0.5,
    service_actual_s=0.75,
    bytes_in=10,
    bytes_out=2**40,
    body_hash=2**64 - 1,
)


def test_rows_come_back_as_written(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "log", 10)
    log.add(FULL)
    log.add(LogRow(RowKind.HEALTH_CHECK, 7.0, "GET"))
    rows = read_rows(log.dump())
    log.close()
    assert rows[0] == FULL
    assert (rows[1].kind, rows[1].method, rows[1].outcome) == (RowKind.HEALTH_CHECK, "GET", RowOutcome.OPEN)
    assert math.isnan(rows[1].end_s) and math.isnan(rows[1].service_asked_s)


def test_a_row_is_completed_in_its_place(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "log", 10)
    first = LogRow(RowKind.INFERENCE, 1.0, "POST")
    ticket = log.add(first)
    log.add(LogRow(RowKind.INFERENCE, 2.0, "POST"))
    first.outcome, first.end_s = RowOutcome.ANSWERED, 3.0
    log.update(ticket, first)
    assert [(row.arrival_s, row.outcome) for row in read_rows(log.dump())] == [
        (1.0, RowOutcome.ANSWERED),
        (2.0, RowOutcome.OPEN),
    ]
    log.close()


def test_a_full_log_says_so_once_and_counts_what_it_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = AttemptLog(tmp_path / "gpu-3.log", 2)
    tickets = [log.add(LogRow(RowKind.INFERENCE, float(number))) for number in range(2)]
    assert capsys.readouterr() == ("", "")
    tickets += [log.add(LogRow(RowKind.INFERENCE, float(number))) for number in range(2, 5)]
    log.update(tickets[-1], FULL)
    assert read_header(log.dump()).lost == 3
    assert [row.arrival_s for row in read_rows(log.dump())] == [0.0, 1.0]
    (line,) = capsys.readouterr().err.splitlines()
    assert "mockgpu: the log gpu-3 is full with 2 rows" in line and "--log-rows" in line
    log.close()


def test_clearing_voids_tickets_of_before(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "log", 2)
    old = [log.add(LogRow(RowKind.INFERENCE, 1.0)), log.add(LogRow(RowKind.INFERENCE, 1.5)), log.add(FULL)]
    log.clear()
    new = log.add(LogRow(RowKind.INFERENCE, 2.0))
    for ticket in old:
        log.update(ticket, FULL)
    assert [row.arrival_s for row in read_rows(log.dump())] == [2.0]
    assert read_header(log.dump()).lost == 0
    log.update(new, FULL)
    assert read_rows(log.dump()) == [FULL]
    log.close()


def test_a_long_model_name_is_cut_between_characters(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "log", 1)
    log.add(LogRow(RowKind.INFERENCE, 1.0, model="a" + "é" * 40))
    assert read_rows(log.dump())[0].model == "a" + "é" * 31
    log.close()


def test_numpy_decodes_the_documented_layout(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "log", 3)
    log.add(FULL)
    log.add(LogRow(RowKind.UPDATE, 9.0))
    data = log.dump()
    log.close()
    rows = numpy.frombuffer(data, numpy.dtype(list(ROW_FIELDS)), read_header(data).count, HEADER_SIZE)
    assert rows.dtype.itemsize == ROW_SIZE
    assert list(rows["arrival_s"]) == [1.25, 9.0]
    assert rows["model"][0] == b"llama-8b"
    for field in ("tag", "body_hash", "bytes_out", "status", "carriers", "cold", "kind", "outcome"):
        assert rows[field][0] == getattr(FULL, field)
    assert METHODS[rows["method"][0]] == "POST"


def test_several_files_read_as_one(tmp_path: Path) -> None:
    for number in range(3):
        log = AttemptLog(tmp_path / str(number), 1)
        log.add(LogRow(RowKind.INFERENCE, float(number)))
        log.add(FULL)
        log.close()
    data = read_files([tmp_path / str(number) for number in range(3)])
    assert [row.arrival_s for row in read_rows(data)] == [0.0, 1.0, 2.0]
    assert read_header(data).lost == 3
    assert read_rows(read_files([])) == []


def test_several_files_are_read_from_any_row_on(tmp_path: Path) -> None:
    for number in range(3):
        log = AttemptLog(tmp_path / str(number), 2)
        log.add(LogRow(RowKind.INFERENCE, 2.0 * number))
        log.add(LogRow(RowKind.INFERENCE, 2.0 * number + 1))
        log.close()
    paths = [tmp_path / str(number) for number in range(3)]
    for first in range(8):
        rows = read_rows(read_files(paths, first))
        assert [row.arrival_s for row in rows] == [float(number) for number in range(first, 6)]


def test_other_bytes_are_refused(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "log", 1)
    log.add(FULL)
    data = log.dump()
    log.close()
    for wrong in (b"", b"x" * 200, data[:-1]):
        with pytest.raises(LogError, match="expected"):
            read_rows(wrong)


def test_rows_survive_sigkill_of_their_writer(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib; from mockgpu.server.attempt_log import *\n"
        "log = AttemptLog(pathlib.Path(sys.argv[1]), 10)\n"
        "row = LogRow(RowKind.INFERENCE, 1.0); ticket = log.add(row)\n"
        "log.add(LogRow(RowKind.INFERENCE, 2.0))\n"
        "row.outcome = RowOutcome.ANSWERED; log.update(ticket, row)\n"
        "print('written', flush=True); time.sleep(60)"
    )
    path = tmp_path / "log"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        os.kill(writer.pid, signal.SIGKILL)
    rows = read_rows(read_files([path]))
    assert [row.outcome for row in rows] == [RowOutcome.ANSWERED, RowOutcome.OPEN]


def test_it_keeps_up_with_5000_rows_a_second(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "log", 20_000)
    began_s = time.process_time()
    for _ in range(20_000):
        row = LogRow(RowKind.INFERENCE, 1.0, "POST", model="llama-8b")
        ticket = log.add(row)
        row.outcome = RowOutcome.ANSWERED
        log.update(ticket, row)
    assert 20_000 / (time.process_time() - began_s) > 5_000
    log.close()


def test_body_hashes_tell_bodies_apart() -> None:
    assert body_hash_of(b"") == 0
    assert body_hash_of(b"a") != body_hash_of(b"b")
    assert 0 < body_hash_of(b"a") < 2**64
