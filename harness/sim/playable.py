"""What the mock servers of a scenario would refuse, found before it is played. Pure."""

from __future__ import annotations

from harness.scenario.faults import RequestFault, as_mock
from harness.scenario.model import Scenario
from mockgpu.faults.decisions import FaultError, from_json
from mockgpu.gpu.catalogue import Setup, SetupError


def check(scenario: Scenario) -> None:
    """ValueError if they refuse a fault, or a figure of their own: one line on the first, and where it is."""
    try:
        Setup.from_json(scenario.server.as_setup())
    except SetupError as error:
        raise ValueError(f"scenario.server: {error}") from None
    for number, step in enumerate(scenario.timeline):
        if isinstance(step, RequestFault):
            try:
                from_json(as_mock(step, 0))
            except FaultError as error:
                raise ValueError(f"scenario.timeline[{number}]: {type(step).__name__}: {error}") from None
