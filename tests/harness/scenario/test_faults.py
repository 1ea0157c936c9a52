"""Steps of a timeline: faults are told from membership changes, and request faults are those of the mock servers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from typing import get_args

import pytest

from harness.scenario.fast_dataclass import canonical
from harness.scenario.faults import (
    BadMetrics,
    Evict,
    FailingStatus,
    Fault,
    Hang,
    Join,
    Kill,
    Leave,
    OverCapacity,
    Pause,
    RequestFault,
    Restart,
    Slow,
    WrongLength,
    heals_at_s,
    is_fault,
)
from mockgpu.faults.kinds import KINDS
from mockgpu.faults.selection import FaultError


def test_the_kinds_are_those_of_the_mock_servers() -> None:
    assert set(get_args(RequestFault)) == set(KINDS.values())
    assert set(KINDS.values()) < set(get_args(Fault))


def test_importing_the_kinds_loads_no_server() -> None:
    script = "import harness.scenario.faults, sys; print(*sorted(name for name in sys.modules if 'mockgpu.' in name))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.split() == [
        "mockgpu.api",
        "mockgpu.api.text",
        "mockgpu.faults",
        "mockgpu.faults.kinds",
        "mockgpu.faults.report_kinds",
        "mockgpu.faults.selection",
    ]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Slow("gpu-0", 1.0, 3.0), ["at_s", "backend", "factor", "for_s", "is"]),
        (
            FailingStatus("gpu-0", 1.0, 500),
            ["at_s", "backend", "first", "for_s", "is", "retry_after_s", "share", "status"],
        ),
        (Slow("gpu-0", 1.0, 3.0, every=2, seed=7), ["at_s", "backend", "every", "factor", "for_s", "is", "seed"]),
        (Evict("gpu-0", 1.0), ["at_s", "backend", "is"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_fields_of_later_versions_leave_old_digests_alone(fault: Fault, expected: list[str]) -> None:
    """The canonical form, of which a digest is made, has them only where they are set."""
    assert sorted(canonical(fault)) == expected


@pytest.mark.parametrize("kind", get_args(RequestFault))
def test_place_and_time_are_the_first_fields(kind: type[RequestFault]) -> None:
    assert [item.name for item in fields(kind)][:2] == ["backend", "at_s"]


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (FailingStatus, {"status": 999}, "fault status: status is 999, expected a status from 400 to 599"),
        (FailingStatus, {"status": 503, "share": 1.5}, "fault status: share is 1.5, expected a number from 0 to 1"),
        (Slow, {"factor": 0.0}, "fault slow: factor is 0.0, expected a number above 0, at most 1000000"),
        (OverCapacity, {"rate_per_s": 5.0, "burst": 0}, "fault capacity: burst is 0, expected a whole number from 1"),
        (WrongLength, {"by": 0}, "fault wrong-length: by is 0, expected a whole number from"),
        (BadMetrics, {"how": "odd"}, "fault metrics: how is 'odd', expected garbage, missing or frozen"),
    ],
)
def test_a_fault_that_a_server_refuses_cannot_be_made(
    kind: type[RequestFault], settings: dict[str, object], message: str
) -> None:
    with pytest.raises(FaultError) as caught:
        kind("gpu-0", 1.0, **settings)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


def test_faults_are_told_from_changes_of_membership() -> None:
    assert is_fault(Hang("gpu-0", 1.0)) and is_fault(Kill("gpu-0", 1.0))
    assert not is_fault(Leave("gpu-0", 1.0)) and not is_fault(Join("gpu-0", 1.0))


def test_what_lasts_heals() -> None:
    assert heals_at_s(Pause("gpu-0", 1.0, 0.5)) == 1.5
    assert heals_at_s(Hang("gpu-0", 1.0)) is None
    assert heals_at_s(Evict("gpu-0", 1.0)) is None
    assert heals_at_s(Leave("gpu-0", 1.0)) is None
    assert heals_at_s(Restart("gpu-0", 1.0, 0.5)) is None, "it heals when it is back"
