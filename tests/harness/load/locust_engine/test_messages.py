"""Receipts: no batch counts twice, missing rows are detected, backends keep their names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness.evidence.records import REQUEST, read_requests
from harness.load.locust_engine.messages import TO_COORDINATOR, TO_WORKER, Receipts, duplicates
from tests.harness.load.conftest import ROOT
from tests.harness.load.locusts import serving


def packed(*numbers: int, answered_by: int = -1) -> bytes:
    rows = np.zeros(len(numbers), dtype=REQUEST)
    rows["number"] = numbers
    rows["answered_by"] = answered_by
    return rows.tobytes()


def test_a_duplicate_batch_counts_once() -> None:
    receipts = Receipts()
    for _ in range(2):
        receipts.put(0, packed(1, 2), [])
    assert receipts.rows == 2
    receipts.announce(1, 2)
    assert receipts.complete


@pytest.mark.parametrize(("batches", "rows"), [(2, 2), (1, 3), (2, 3)])
def test_a_missing_batch_or_row_makes_receipts_incomplete(batches: int, rows: int) -> None:
    receipts = Receipts()
    assert not receipts.complete
    receipts.put(0, packed(1, 2), [])
    assert not receipts.complete
    receipts.announce(batches, rows)
    assert not receipts.complete
    assert receipts.missing == rows - 2


def test_planned_requests_of_a_lost_worker_count_as_missing() -> None:
    receipts = Receipts()
    receipts.requests = 10
    receipts.put(0, packed(1, 2), [])
    assert receipts.missing == 8


def test_batches_may_arrive_in_any_order() -> None:
    receipts = Receipts()
    receipts.put(1, packed(3), [])
    receipts.announce(2, 3)
    before = receipts.complete
    receipts.put(0, packed(1, 2), [])
    assert (before, receipts.complete) == (False, True)
    assert sorted(receipts.all_rows({})["number"]) == [1, 2, 3]


def test_each_worker_has_its_own_numbers_of_backends() -> None:
    one, two, numbers = Receipts(), Receipts(), dict[str, int]()
    one.put(0, packed(1, answered_by=1), ["gpu-0", "gpu-1"])
    two.put(0, packed(2, answered_by=0), ["gpu-1"])
    two.put(1, packed(3, answered_by=1), ["gpu-1", "gpu-2"])
    two.put(2, packed(4), ["gpu-1", "gpu-2"])
    rows = np.concatenate([one.all_rows(numbers), two.all_rows(numbers)])
    names = [*numbers, "unknown"]
    assert [names[number] for number in rows["answered_by"]] == ["gpu-1", "gpu-1", "gpu-2", "unknown"]


def test_a_request_with_two_records_is_reported() -> None:
    rows = np.frombuffer(packed(1, 2, 2), dtype=REQUEST)
    assert duplicates(rows).startswith("1 requests have more than one record (the first: number 2)")
    assert duplicates(rows[:2]) == ""


def test_no_message_is_sent_in_both_directions() -> None:
    """In a single process both sides register their handlers at the same runner."""
    assert not set(TO_WORKER) & set(TO_COORDINATOR)


@pytest.mark.slow
def test_lost_messages_are_resent_and_count_once(tmp_path: Path) -> None:
    out = tmp_path / "run.records"
    with serving() as (url, _):
        command = [sys.executable, "-m", "tests.harness.load.lossy", url, str(out)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["steelyard_ack", "steelyard_done", "steelyard_records"]
    assert list(read_requests(out)["number"]) == list(range(150))
