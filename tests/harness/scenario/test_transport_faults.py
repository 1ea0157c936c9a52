"""Transport faults: toxics, and what a probe of each must observe, for exchanges written by hand."""

from __future__ import annotations

import pytest

from harness.scenario.faults import (
    Bandwidth,
    Blackhole,
    Down,
    Kill,
    Latency,
    LimitData,
    Pause,
    ProcessFault,
    Reset,
    Slicer,
    SlowClose,
    Timeout,
    TransportFault,
)
from harness.scenario.link import ProbeResult

GOOD = ProbeResult(True, 500, 1, 0.01, 0.01, True, False, 0.01)
"""An answer as of a healthy backend: at once, then closed."""
SILENCE = ProbeResult(True, closed_s=1.0, first_s=1.0, last_s=1.0)
REFUSED = ProbeResult(False, closed=True)


@pytest.mark.parametrize(
    ("fault", "toxics"),
    [
        (Down("g", 0.0), []),
        (Latency("g", 0.0, 0.2, jitter_s=0.0504), [("latency", "downstream", {"latency": 200, "jitter": 50})]),
        (
            Blackhole("g", 0.0),
            [("timeout", "downstream", {"timeout": 0}), ("timeout", "upstream", {"timeout": 0})],
        ),
        (Reset("g", 0.0), [("reset_peer", "upstream", {"timeout": 0})]),
        (Bandwidth("g", 0.0, 20.4), [("bandwidth", "downstream", {"rate": 20})]),
        (Bandwidth("g", 0.0, 0.0), [("bandwidth", "downstream", {"rate": 1})]),
        (SlowClose("g", 0.0, 0.4), [("slow_close", "downstream", {"delay": 400})]),
        (Timeout("g", 0.0, 0.0), [("timeout", "upstream", {"timeout": 1})]),
        (
            Slicer("g", 0.0, 0, 0.002),
            [("slicer", "downstream", {"average_size": 1, "size_variation": 0, "delay": 2000})],
        ),
        (LimitData("g", 0.0, 300), [("limit_data", "downstream", {"bytes": 300})]),
    ],
    ids=str,
)
def test_toxics_have_the_units_of_toxiproxy(fault: TransportFault, toxics: list[object]) -> None:
    assert [(toxic.kind, toxic.stream, dict(toxic.attributes)) for toxic in fault.toxics()] == toxics


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        (Kill("g", 0.0), REFUSED),
        (Down("g", 0.0), REFUSED),
        (Pause("g", 0.0), SILENCE),
        (Blackhole("g", 0.0), SILENCE),
        (Reset("g", 0.0), ProbeResult(True, closed=True, reset=True)),
        (Latency("g", 0.0, 0.3), ProbeResult(True, 500, 1, 0.3, 0.3, True, False, 0.3)),
        (Bandwidth("g", 0.0, 2.0), ProbeResult(True, 400, 4, 0.05, 0.2, True, False, 0.2)),
        (SlowClose("g", 0.0, 0.2), ProbeResult(True, 500, 1, 0.01, 0.01, True, False, 0.22)),
        (Timeout("g", 0.0, 0.2), ProbeResult(True, closed=True, closed_s=0.2)),
        (Timeout("g", 0.0, 5.0), ProbeResult(True, closed_s=0.5)),
        (Slicer("g", 0.0, 100, 0.1), ProbeResult(True, 500, 5, 0.01, 0.41, True, False, 0.41)),
        (LimitData("g", 0.0, 300), ProbeResult(True, 300, 1, 0.01, 0.01, True, False, 0.01)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_probe_shows_the_fault_and_a_good_answer_does_not(
    fault: ProcessFault | TransportFault, seen: ProbeResult
) -> None:
    assert fault.shows(seen, 0.0)
    assert not fault.shows(GOOD, 0.0)


@pytest.mark.parametrize("fault", [Bandwidth("g", 0.0, 2.0), Slicer("g", 0.0, 100, 0.1)], ids=str)
def test_a_delay_of_other_faults_is_not_taken_for_this_one(fault: TransportFault) -> None:
    late = ProbeResult(True, 500, 5, 0.5, 0.55, True, False, 0.55)
    assert fault.shows(late, 0.0) and not fault.shows(late, 0.5)
