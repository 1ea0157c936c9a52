"""Faults of single requests in the mock's words: each has them, and they say the same."""

from __future__ import annotations

from typing import get_args

import pytest

from harness.timeline import (
    CutOff,
    FailingStatus,
    Fault,
    Hang,
    Join,
    Kill,
    Leave,
    NotReady,
    OverCapacity,
    RequestFault,
    Slow,
    as_mock,
    is_fault,
)
from mockgpu import faults as mock

CASES: list[tuple[RequestFault, mock.Fault]] = [
    (FailingStatus("gpu-0", 1.0, 500), mock.Status(500, seed=7)),
    (FailingStatus("gpu-0", 1.0, 500, first=0), mock.Status(500, first=0, seed=7)),
    (FailingStatus("gpu-0", 1.0, 429, None, 0.25, 1.5, 2.0), mock.Status(429, 1.5, share=0.25, seed=7)),
    (OverCapacity("gpu-0", 1.0, 20.0), mock.Capacity(20.0, 1)),
    (OverCapacity("gpu-0", 1.0, 20.0, 5, 2.0), mock.Capacity(20.0, 5)),
    (Slow("gpu-0", 1.0, 3.0), mock.Slow(3.0)),
    (Hang("gpu-0", 1.0), mock.Hang()),
    (CutOff("gpu-0", 1.0), mock.Cut(1)),
    (CutOff("gpu-0", 1.0, 0), mock.Cut(0)),
    (NotReady("gpu-0", 1.0), mock.NotReady()),
]


@pytest.mark.parametrize(("fault", "expected"), CASES, ids=lambda value: type(value).__name__)
def test_the_mock_understands_them(fault: RequestFault, expected: mock.Fault) -> None:
    assert mock.from_json(as_mock(fault, 7)) == expected


def test_every_kind_is_there() -> None:
    assert {type(fault) for fault, _ in CASES} == set(get_args(RequestFault))
    assert {type(fault) for _, fault in CASES} < set(mock.KINDS.values())
    assert set(get_args(RequestFault)) < set(get_args(Fault))


def test_faults_are_told_from_changes_of_membership() -> None:
    assert all(is_fault(fault) for fault, _ in CASES)
    assert is_fault(Kill("gpu-0", 1.0))
    assert not is_fault(Leave("gpu-0", 1.0)) and not is_fault(Join("gpu-0", 1.0))
