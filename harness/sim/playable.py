"""Validation of a scenario against the rules of the mock servers, before a run. Pure."""

from __future__ import annotations

from harness.scenario.faults import RequestFault, as_mock
from harness.scenario.model import Scenario
from mockgpu.faults.decisions import FaultError, from_json
from mockgpu.gpu.catalogue import Setup, SetupError


def check(scenario: Scenario) -> None:
    """ValueError, one line with its position, for the first fault or server setting that a mock server would refuse."""
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
