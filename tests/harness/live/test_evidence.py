"""From logs to rows, with hand-written logs: none lost, none added, times from the start of the run."""

from __future__ import annotations

from math import nan
from pathlib import Path

import numpy as np
import pytest

from harness.evidence.history import empty_requests
from harness.evidence.records import Rows
from harness.evidence.tables import ATTEMPT
from harness.live.evidence import (
    attempts_of,
    connections_of,
    health_checks_of,
    log_rows,
    own_failures,
    own_numbers,
    reconcile,
    residency_of,
)
from harness.scenario.model import Ending, HarnessError, Residency
from harness.toxiproxy.client import LoggedConnection
from mockgpu.api.tags import tag_of
from mockgpu.server.attempt_log import AttemptLog, LogRow, RowKind, RowOutcome

NONCE = 0x5EED5
START_S = 1000.0


def logged(folder: Path, *rows: LogRow, capacity: int = 100) -> Rows:
    log = AttemptLog(folder / "attempts.log", capacity)
    for row in rows:
        log.add(row)
    data = log.dump()
    log.close()
    return log_rows(data)


def attempt(number: int, at_s: float, kind: RowKind = RowKind.INFERENCE, nonce: int = NONCE) -> LogRow:
    return LogRow(kind, START_S + at_s, "POST", tag=tag_of(nonce, number))


def test_an_attempt_keeps_all_it_knows(tmp_path: Path) -> None:
    row = LogRow(
        kind=RowKind.INFERENCE,
        arrival_s=START_S + 1.5,
        method="POST",
        tag=tag_of(NONCE, 42),
        carriers=5,
        model="m-1",
        status=200,
        outcome=RowOutcome.ANSWERED,
        first_byte_s=START_S + 1.75,
        end_s=START_S + 2.0,
        cold=1,
        queue_wait_s=0.125,
        service_asked_s=0.25,
        service_actual_s=0.375,
    )
    attempts = attempts_of([logged(tmp_path), logged(tmp_path, row)], NONCE, START_S)
    expected = (42, 1, RowKind.INFERENCE, Ending.ANSWERED, 1, 5, 200, 1.5, 1.75, 2.0, 0.125, 0.25, 0.375)
    assert attempts.dtype == ATTEMPT
    assert attempts.tolist() == [expected]


def test_outcomes_are_endings() -> None:
    assert {outcome.name: int(outcome) for outcome in RowOutcome} == {ending.name: int(ending) for ending in Ending}


def test_attempts_of_all_backends_in_order_of_arrival(tmp_path: Path) -> None:
    one = logged(tmp_path, attempt(0, 0.1), attempt(3, 0.4))
    other = logged(tmp_path, attempt(1, 0.2), attempt(2, 0.3, RowKind.UPDATE))
    attempts = attempts_of([one, other], NONCE, START_S)
    assert attempts["request"].tolist() == [0, 1, 2, 3]
    assert attempts["backend"].tolist() == [0, 1, 1, 0]
    assert attempts["start_s"] == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_one_still_open_has_no_end(tmp_path: Path) -> None:
    (row,) = attempts_of([logged(tmp_path, attempt(0, 0.1))], NONCE, START_S)
    assert row["ending"] == Ending.OPEN
    assert np.isnan([row["first_byte_s"], row["end_s"], row["service_actual_s"]]).all()


def test_an_end_without_an_outcome_is_a_failure_of_the_mock(tmp_path: Path) -> None:
    rows = logged(
        tmp_path,
        attempt(0, 0.1),  # in flight, or cut off by a kill
        LogRow(RowKind.INFERENCE, START_S, end_s=START_S + 0.2, outcome=RowOutcome.ANSWERED),
        LogRow(RowKind.INFERENCE, START_S, end_s=START_S + 0.2, outcome=RowOutcome.CLIENT_GONE),
        LogRow(RowKind.RESIDENCY_LOADED, START_S, end_s=START_S, outcome=RowOutcome.ANSWERED),
    )
    assert own_failures(rows) == 0
    failed = [
        LogRow(kind, START_S, end_s=START_S + 0.2) for kind in (RowKind.UPDATE, RowKind.HEALTH_CHECK, RowKind.FOREIGN)
    ]
    assert own_failures(logged(tmp_path, attempt(0, 0.1), *failed)) == 3


def test_foreign_rows_are_kept_without_a_request(tmp_path: Path) -> None:
    rows = logged(
        tmp_path,
        attempt(7, 0.1, nonce=NONCE + 1),
        LogRow(RowKind.FOREIGN, START_S + 0.2, "POST"),
        attempt(8, 0.3, RowKind.FOREIGN, nonce=1),
        attempt(9, 0.4),
    )
    assert own_numbers(rows, NONCE).tolist() == [-1, -1, -1, 9]
    assert attempts_of([rows], NONCE, START_S)["request"].tolist() == [-1, -1, -1, 9]


def test_the_largest_nonce_and_number(tmp_path: Path) -> None:
    nonce, number = (1 << 31) - 1, (1 << 21) - 1
    rows = logged(tmp_path, attempt(number, 0.1, nonce=nonce), attempt(0, 0.1, nonce=nonce))
    assert own_numbers(rows, nonce).tolist() == [number, 0]


def test_health_checks_and_residency_are_no_attempts(tmp_path: Path) -> None:
    rows = logged(
        tmp_path,
        LogRow(RowKind.HEALTH_CHECK, START_S + 0.5, "GET", status=503),
        LogRow(RowKind.RESIDENCY_LOADING, START_S + 0.1, model="m-1"),
        LogRow(RowKind.RESIDENCY_LOADED, START_S + 0.2, model="m-1"),
        LogRow(RowKind.RESIDENCY_EVICTED, START_S + 0.3, model="m-1"),
        LogRow(RowKind.HEALTH_CHECK, START_S + 0.4, "GET", status=200),
    )
    assert len(attempts_of([rows], NONCE, START_S)) == 0
    checks = health_checks_of([rows], START_S)
    assert checks["status"].tolist() == [200, 503]
    assert checks["at_s"] == pytest.approx([0.4, 0.5])
    residency = residency_of([rows], START_S)
    assert residency["event"].tolist() == [Residency.LOADING, Residency.LOADED, Residency.EVICTED]
    assert set(residency["model"]) == {b"m-1"}


def test_without_logs_there_are_no_rows() -> None:
    assert attempts_of([], NONCE, START_S).tolist() == []
    assert health_checks_of([], START_S).tolist() == []
    assert residency_of([], START_S).tolist() == []
    assert connections_of([], {}, START_S).tolist() == []


def test_lost_rows_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="too small: 3 rows lost of 2"):
        logged(tmp_path, *(attempt(number, 0.1) for number in range(5)), capacity=2)


@pytest.mark.parametrize("data", [b"", b"short", b"x" * 200])
def test_no_log_is_an_error(data: bytes) -> None:
    with pytest.raises(HarnessError, match="attempt log cannot be read: "):
        log_rows(data)


def test_a_log_cut_short_is_an_error(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "log", 10)
    log.add(attempt(0, 0.1))
    data = log.dump()
    log.close()
    with pytest.raises(HarnessError, match=f"cut short: {len(data) - 1} bytes for 1 rows"):
        log_rows(data[:-1])


def test_connections() -> None:
    seen = [
        LoggedConnection("gpu-1", START_S + 2.0, None, 10, 20, None),
        LoggedConnection("gpu-0", START_S + 1.0, START_S + 1.5, 30, 40, "client"),
        LoggedConnection("somebody-elses", START_S, None, 0, 0, None),
    ]
    rows = connections_of(seen, {"gpu-0": 0, "gpu-1": 1}, START_S)
    assert rows["backend"].tolist() == [0, 1]
    assert rows["bytes_up"].tolist() == [30, 10]
    assert rows["bytes_down"].tolist() == [40, 20]
    assert rows["ended"].tolist() == [b"client", b""]
    assert rows["opened_s"].tolist() == [1.0, 2.0]
    assert rows["closed_s"] == pytest.approx([0.5 + 1.0, nan], nan_ok=True)


# --- reconciliation ---------------------------------------------------------------------------------------


def test_reconcile_counts_what_has_no_partner(tmp_path: Path) -> None:
    rows = logged(
        tmp_path,
        attempt(0, 0.1),
        attempt(0, 0.2),
        attempt(2, 0.3),
        attempt(4, 0.4),
        attempt(99, 0.5),
        LogRow(RowKind.FOREIGN, START_S + 0.6, "POST"),
    )
    before = attempts_of([rows], NONCE, START_S)
    attempts, facts = reconcile(empty_requests(4), before)
    assert attempts["request"].tolist() == [0, 0, 2, -1, -1, -1]
    assert facts == {"unknown_attempts": 2, "foreign_attempts": 1, "requests_without_attempt": 2}
    assert before["request"].tolist() == [0, 0, 2, 4, 99, -1], "its own copy"


def test_reconcile_without_anything() -> None:
    attempts, facts = reconcile(empty_requests(0), np.zeros(0, ATTEMPT))
    assert len(attempts) == 0
    assert set(facts.values()) == {0}
