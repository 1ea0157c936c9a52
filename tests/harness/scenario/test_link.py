"""Effects of faults on a link: what leaves answers alone, and the delays that a probe allows for."""

from __future__ import annotations

import pytest

from harness.scenario.faults import Bandwidth, Blackhole, Down, Latency, LimitData, Reset, Slicer, SlowClose
from harness.scenario.link import HEAD_BYTES, LONGEST_S, Depth, LinkEffect, ProbeResult, extra_s, least_s

LATENCY = Latency("g", 0.0, 0.2, jitter_s=0.05).effect


def test_only_some_effects_change_answers() -> None:
    assert LinkEffect().plain
    plain = {Down: (), Reset: (), Blackhole: (), SlowClose: (0.1,)}
    assert all(kind("g", 0.0, *settings).effect.plain for kind, settings in plain.items())
    others = (LATENCY, Bandwidth("g", 0.0, 0.0).effect, Slicer("g", 0.0, 0, 0.1).effect, LimitData("g", 0.0, 0).effect)
    assert not any(effect.plain for effect in others)


def test_open_connections_end_where_none_may_be_used() -> None:
    assert Down("g", 0.0).effect.ends_connections and Reset("g", 0.0).effect.ends_connections
    assert not Blackhole("g", 0.0).effect.ends_connections and not LATENCY.ends_connections


def test_delays_of_all_effects_are_allowed_for_up_to_a_limit() -> None:
    slow = (
        LATENCY,
        Bandwidth("g", 0.0, 10.0).effect,
        Slicer("g", 0.0, 100, 0.01).effect,
        SlowClose("g", 0.0, 0.3).effect,
    )
    assert least_s(slow) == pytest.approx(0.15)
    assert extra_s(slow, 1000 - HEAD_BYTES) == pytest.approx(0.25 + 0.1 + 0.1 + 0.3)
    assert extra_s((LinkEffect(latency_s=9.0),), 0) == LONGEST_S and extra_s((), 1000) == 0.0


def test_silence_is_an_open_connection_without_a_byte() -> None:
    assert ProbeResult(accepted=True).silent
    assert not any(seen.silent for seen in (ProbeResult(), ProbeResult(True, 1), ProbeResult(True, closed=True)))


def test_depths_are_in_order() -> None:
    assert list(Depth) == sorted(Depth) == [Depth.NOTHING, Depth.CONNECT, Depth.WRITE, Depth.SILENCE, Depth.ANSWER]
