"""Named fault plans: affected backends, healing in time, and a sim run of each."""

from __future__ import annotations

import pytest

from harness.chaos.fault_plans import FAULT_PLANS, SLOWER, brown_out_backends, victim_of
from harness.scenario.faults import Bandwidth, Blackhole, Down, FailingStatus, Kill, Latency, Restart, Slicer, Slow

FOUR = ("gpu-0", "gpu-1", "gpu-2", "gpu-3")


def over_s(step: object) -> float:
    return float(getattr(step, "at_s")) + float(getattr(step, "for_s"))  # noqa: B009


@pytest.mark.parametrize("name", FAULT_PLANS)
@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_all_of_it_lies_between_its_beginning_and_its_end(name: str, count: int) -> None:
    backends = tuple(f"gpu-{number}" for number in range(count))
    steps = FAULT_PLANS[name](backends, 1.0, 2.0)
    assert steps
    assert all(step.at_s >= 1.0 and over_s(step) <= 3.0 + 1e-9 for step in steps)
    assert {step.backend for step in steps} <= set(backends)
    assert FAULT_PLANS[name].__doc__


def test_one_backend_alone() -> None:
    assert FAULT_PLANS["node-crash"](FOUR, 1.0, 2.0) == (Kill("gpu-1", 1.0, 2.0),)
    assert FAULT_PLANS["blackhole"](FOUR, 1.0, 2.0) == (Blackhole("gpu-1", 1.0, 2.0),)
    assert FAULT_PLANS["grey-failure"](FOUR, 1.0, 2.0) == (Slow("gpu-1", 1.0, SLOWER, 2.0),)
    assert victim_of(("gpu-0",)) == "gpu-0"


def test_flapping_closes_and_opens_three_times() -> None:
    steps = FAULT_PLANS["flapping"](FOUR, 1.0, 1.5)
    assert steps == tuple(Down("gpu-1", at_s, 0.25) for at_s in (1.0, 1.5, 2.0))


def test_rolling_restart_takes_one_at_a_time() -> None:
    steps = FAULT_PLANS["rolling-restart"](FOUR, 1.0, 4.0)
    assert steps == tuple(Restart(name, 1.0 + turn, 0.5) for turn, name in enumerate(FOUR))


def test_half_of_the_fleet_browns_out() -> None:
    steps = FAULT_PLANS["brown-out"](FOUR, 1.0, 2.0)
    assert {(type(step), step.backend) for step in steps} == {
        (kind, name) for kind in (Slow, FailingStatus) for name in FOUR[:2]
    }
    assert [len(brown_out_backends(FOUR[:count])) for count in (1, 2, 3, 4)] == [1, 1, 1, 2]


def test_packet_misery_loses_no_byte() -> None:
    steps = FAULT_PLANS["packet-misery"](FOUR, 1.0, 2.0)
    assert [type(step) for step in steps] == [Latency, Slicer, Bandwidth, Latency]
    assert [step.backend for step in steps] == list(FOUR)


def test_thundering_return_is_of_all_at_once() -> None:
    assert FAULT_PLANS["thundering-return"](FOUR, 1.0, 2.0) == tuple(Down(name, 1.0, 2.0) for name in FOUR)
