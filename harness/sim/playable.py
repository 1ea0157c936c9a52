"""Validation of a scenario's server settings against the rules of the mock servers, before a run. Pure."""

from __future__ import annotations

from harness.scenario.model import Scenario
from mockgpu.gpu.catalogue import Setup, SetupError


def check(scenario: Scenario) -> None:
    """ValueError, one line with its position, for the first server setting that a mock server would refuse.

    Faults need no check: those that a mock server would refuse cannot be made.
    """
    try:
        Setup.from_json(scenario.server.as_setup())
    except SetupError as error:
        raise ValueError(f"scenario.server: {error}") from None
