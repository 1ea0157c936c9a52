"""Receipts: nothing counts twice, nothing is taken for whole that is not, backends keep their names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness.evidence.records import REQUEST, read_requests
from harness.load.locust_engine.messages import TO_COORDINATOR, TO_WORKER, Receipts, twice
from tests.harness.load.conftest import ROOT
from tests.harness.load.locusts import serving


def packed(*numbers: int, answered_by: int = -1) -> bytes:
    rows = np.zeros(len(numbers), dtype=REQUEST)
    rows["number"] = numbers
    rows["answered_by"] = answered_by
    return rows.tobytes()


def test_a_batch_that_comes_twice_counts_once() -> None:
    receipts = Receipts()
    for _ in range(2):
        receipts.put(0, packed(1, 2), [])
    assert receipts.rows == 2
    receipts.told(1, 2)
    assert receipts.complete


@pytest.mark.parametrize(("batches", "rows"), [(2, 2), (1, 3), (2, 3)])
def test_a_batch_or_a_row_that_is_missing_is_no_whole(batches: int, rows: int) -> None:
    receipts = Receipts()
    assert not receipts.complete
    receipts.put(0, packed(1, 2), [])
    assert not receipts.complete
    receipts.told(batches, rows)
    assert not receipts.complete
    assert receipts.missing == rows - 2


def test_what_a_lost_player_was_to_make_counts_as_missing() -> None:
    receipts = Receipts()
    receipts.requests = 10
    receipts.put(0, packed(1, 2), [])
    assert receipts.missing == 8


def test_batches_may_come_in_any_order() -> None:
    receipts = Receipts()
    receipts.put(1, packed(3), [])
    receipts.told(2, 3)
    before = receipts.complete
    receipts.put(0, packed(1, 2), [])
    assert (before, receipts.complete) == (False, True)
    assert sorted(receipts.all_rows({})["number"]) == [1, 2, 3]


def test_each_player_numbers_backends_its_own_way() -> None:
    one, two, numbers = Receipts(), Receipts(), dict[str, int]()
    one.put(0, packed(1, answered_by=1), ["gpu-0", "gpu-1"])
    two.put(0, packed(2, answered_by=0), ["gpu-1"])
    two.put(1, packed(3, answered_by=1), ["gpu-1", "gpu-2"])
    two.put(2, packed(4), ["gpu-1", "gpu-2"])
    rows = np.concatenate([one.all_rows(numbers), two.all_rows(numbers)])
    names = [*numbers, "unknown"]
    assert [names[number] for number in rows["answered_by"]] == ["gpu-1", "gpu-1", "gpu-2", "unknown"]


def test_a_request_with_two_records_is_told() -> None:
    rows = np.frombuffer(packed(1, 2, 2), dtype=REQUEST)
    assert twice(rows).startswith("1 requests have more than one record (the first: number 2)")
    assert twice(rows[:2]) == ""


def test_no_message_goes_both_ways() -> None:
    """In a single process both sides listen under the same runner."""
    assert not set(TO_WORKER) & set(TO_COORDINATOR)


@pytest.mark.slow
def test_what_gets_lost_on_the_way_is_said_again_and_counts_once(tmp_path: Path) -> None:
    out = tmp_path / "run.records"
    with serving() as (url, _):
        command = [sys.executable, "-m", "tests.harness.load.lossy", url, str(out)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["steelyard_ack", "steelyard_done", "steelyard_records"]
    assert list(read_requests(out)["number"]) == list(range(150))
