"""The link to a backend: delay and truncation of answers."""

from __future__ import annotations

import math
from random import Random

import pytest

from harness.scenario.faults import (
    Bandwidth,
    Blackhole,
    Down,
    Latency,
    LimitData,
    Reset,
    Slicer,
    SlowClose,
    Timeout,
    TransportFault,
)
from harness.scenario.model import Kind
from harness.sim.link import ERROR_BYTES, UPDATE_BYTES, Link, answer_bytes, slices


def link(*faults: TransportFault, seed: int = 1) -> Link:
    """A link with these faults."""
    made = Link(Random(seed))
    for fault in faults:
        made.change(fault, on=True)
    return made


def test_a_plain_way_changes_nothing() -> None:
    assert (link().delay_s(1000), link().passing(1000), link().plain) == (0.0, 1000, True)


@pytest.mark.parametrize(
    ("fault", "delay_s"),
    [
        (Latency("gpu-0", 0.0, 0.2), 0.2),
        (Bandwidth("gpu-0", 0.0, 2.0), 0.5),
        (Bandwidth("gpu-0", 0.0, 0.0), math.inf),
        (Slicer("gpu-0", 0.0, 1000, 0.1), 0.0),
        (Slicer("gpu-0", 0.0, 999, 0.1), 0.1),
        (Slicer("gpu-0", 0.0, 100, 0.1), 1.5),
        (LimitData("gpu-0", 0.0, 10), 0.0),
    ],
    ids=str,
)
def test_how_late_a_kilobyte_comes(fault: TransportFault, delay_s: float) -> None:
    changed = link(fault)
    assert not changed.plain
    assert changed.delay_s(1000) == pytest.approx(delay_s)
    changed.change(fault, on=False)
    assert (changed.delay_s(1000), changed.plain) == (0.0, True)


def test_delays_add_up() -> None:
    both = link(Latency("gpu-0", 0.0, 0.2), Bandwidth("gpu-0", 0.0, 2.0), Slicer("gpu-0", 0.0, 500, 0.1))
    assert both.delay_s(1000) == pytest.approx(0.2 + 0.5 + 0.1)


def test_jitter_is_even_on_both_sides_drawn_from_the_seed_and_never_early() -> None:
    fault = Latency("gpu-0", 0.0, 0.1, jitter_s=0.05)
    drawn, again, other = (
        [made.delay_s(1) for _ in range(2000)] for made in (link(fault), link(fault), link(fault, seed=2))
    )
    assert drawn == again != other
    assert 0.05 <= min(drawn) < 0.051 and 0.149 < max(drawn) <= 0.15
    assert sum(drawn) / len(drawn) == pytest.approx(0.1, abs=0.003)
    wild = link(Latency("gpu-0", 0.0, 0.01, jitter_s=0.05))
    assert min(wild.delay_s(1) for _ in range(100)) == 0.0


def test_no_more_than_the_limit_passes() -> None:
    limited = link(LimitData("gpu-0", 0.0, 300))
    assert [limited.passing(size) for size in (299, 300, 301)] == [299, 300, 300]


@pytest.mark.parametrize(
    ("size", "slice_bytes", "count"), [(0, 10, 1), (10, 10, 1), (11, 10, 2), (21, 10, 4), (5, 0, 8)]
)
def test_slices_are_halves_of_halves(size: int, slice_bytes: int, count: int) -> None:
    """As the fault proxy slices: 1,000 bytes in slices of 100 are 16 of 62 or 63."""
    assert slices(size, slice_bytes) == count
    assert slices(1000, 100) == 16


def test_silence_has_two_reasons() -> None:
    """Healing one leaves the other."""
    hole, timeout = Blackhole("gpu-0", 0.0), Timeout("gpu-0", 0.0, 0.3)
    both = link(hole, timeout)
    observed = [(both.silent, both.closes_after_s)]
    for fault in (timeout, hole):
        both.change(fault, on=False)
        observed.append((both.silent, both.closes_after_s))
    assert observed == [(True, 0.3), (True, None), (False, None)]


def test_connections_are_refused_reset_or_closed_late() -> None:
    assert not link(Down("gpu-0", 0.0)).up
    assert link(Reset("gpu-0", 0.0)).resetting
    assert link(SlowClose("gpu-0", 0.0, 0.4)).close_delay_s == 0.4


def test_sizes_are_those_of_the_mock_servers() -> None:
    measured = {1: 477, 4: 490, 40: 635, 400: 2078}
    assert {tokens: answer_bytes(Kind.INFERENCE, 200, tokens) for tokens in measured} == pytest.approx(
        measured, rel=0.01
    )
    assert answer_bytes(Kind.UPDATE, 200, 4) == UPDATE_BYTES
    assert answer_bytes(Kind.UPDATE, 503, 4) == answer_bytes(Kind.INFERENCE, 500, 40) == ERROR_BYTES
