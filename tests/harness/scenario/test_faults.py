"""Request faults as JSON for the mock servers: each has a form there, with equal settings."""

from __future__ import annotations

from typing import get_args

import pytest

from harness.scenario.faults import (
    BadMetrics,
    CutOff,
    Drip,
    Evict,
    FailingStatus,
    Fault,
    Garbage,
    Hang,
    Join,
    Kill,
    Leave,
    NotAlive,
    NotReady,
    OutOfMemory,
    OverCapacity,
    Pause,
    QueueFull,
    RequestFault,
    Restart,
    Slow,
    Stall,
    StreamError,
    Truncated,
    WrongLength,
    Zombie,
    as_mock,
    heals_at_s,
    is_fault,
)
from mockgpu.faults import decisions as mock

CASES: list[tuple[RequestFault, mock.Fault]] = [
    (FailingStatus("gpu-0", 1.0, 500), mock.StatusFault(500, seed=7)),
    (FailingStatus("gpu-0", 1.0, 500, first=0), mock.StatusFault(500, first=0, seed=7)),
    (FailingStatus("gpu-0", 1.0, 429, None, 0.25, 1.5, 2.0), mock.StatusFault(429, 1.5, share=0.25, seed=7)),
    (OverCapacity("gpu-0", 1.0, 20.0), mock.CapacityFault(20.0, 1)),
    (OverCapacity("gpu-0", 1.0, 20.0, 5, 2.0), mock.CapacityFault(20.0, 5)),
    (Slow("gpu-0", 1.0, 3.0), mock.SlowFault(3.0)),
    (Hang("gpu-0", 1.0), mock.HangFault()),
    (CutOff("gpu-0", 1.0), mock.CutFault(1)),
    (CutOff("gpu-0", 1.0, 0), mock.CutFault(0)),
    (StreamError("gpu-0", 1.0), mock.StreamErrorFault(1)),
    (QueueFull("gpu-0", 1.0), mock.QueueFullFault(seed=7)),
    (QueueFull("gpu-0", 1.0, None, 0.5, 2.0), mock.QueueFullFault(2.0, share=0.5, seed=7)),
    (OutOfMemory("gpu-0", 1.0), mock.OutOfMemoryFault(seed=7)),
    (OutOfMemory("gpu-0", 1.0, first=3, dead=True), mock.OutOfMemoryFault(True, first=3, seed=7)),
    (Zombie("gpu-0", 1.0), mock.ZombieFault()),
    (Stall("gpu-0", 1.0), mock.StallFault(1)),
    (Truncated("gpu-0", 1.0, 2), mock.TruncatedFault(2)),
    (Drip("gpu-0", 1.0, 0.5), mock.DripFault(0.5)),
    (Garbage("gpu-0", 1.0), mock.GarbageFault()),
    (WrongLength("gpu-0", 1.0, -3), mock.WrongLengthFault(-3)),
    (NotReady("gpu-0", 1.0), mock.NotReadyFault()),
    (NotAlive("gpu-0", 1.0), mock.NotAliveFault()),
    (BadMetrics("gpu-0", 1.0, "garbage"), mock.MetricsFault("garbage")),
    (BadMetrics("gpu-0", 1.0, "missing"), mock.MetricsFault("missing")),
    (BadMetrics("gpu-0", 1.0, "frozen"), mock.MetricsFault("frozen")),
    (Evict("gpu-0", 1.0), mock.EvictFault()),
]


@pytest.mark.parametrize(("fault", "expected"), CASES, ids=lambda value: type(value).__name__)
def test_the_mock_understands_them(fault: RequestFault, expected: mock.Fault) -> None:
    assert mock.from_json(as_mock(fault, 7)) == expected


def test_every_kind_is_there() -> None:
    assert {type(fault) for fault, _ in CASES} == set(get_args(RequestFault))
    assert {type(fault) for _, fault in CASES} == set(mock.KINDS.values())
    assert set(get_args(RequestFault)) < set(get_args(Fault))


def test_faults_are_told_from_changes_of_membership() -> None:
    assert all(is_fault(fault) for fault, _ in CASES)
    assert is_fault(Kill("gpu-0", 1.0))
    assert not is_fault(Leave("gpu-0", 1.0)) and not is_fault(Join("gpu-0", 1.0))


def test_what_lasts_heals() -> None:
    assert heals_at_s(Pause("gpu-0", 1.0, 0.5)) == 1.5
    assert heals_at_s(Hang("gpu-0", 1.0)) is None
    assert heals_at_s(Evict("gpu-0", 1.0)) is None
    assert heals_at_s(Leave("gpu-0", 1.0)) is None
    assert heals_at_s(Restart("gpu-0", 1.0, 0.5)) is None, "it heals when it is back"
