"""Server settings that the mock servers would refuse raise one line with a position; others pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.chaos.fault_plans import FAULT_PLANS
from harness.chaos.swarm import random_fault_plan
from harness.property.declare import catalogue
from harness.scenario.model import Load, ModelServer, Scenario, Stream
from harness.sim.playable import check
from harness.targets.reference import ReferenceTarget

PLAIN = Scenario("x", 2, Load((Stream("traffic", 0.0, 100.0, 20),)))
NAMES = ("gpu-0", "gpu-1", "gpu-2", "gpu-3")


def test_all_that_is_played_here_is_fine() -> None:
    claims = ReferenceTarget().claims
    for item in catalogue():
        check(item.scenario(claims))
    for make in FAULT_PLANS.values():
        check(replace(PLAIN, timeline=make(NAMES, 0.75, 1.0)))
    for seed in range(20):
        check(replace(PLAIN, timeline=random_fault_plan(seed, NAMES, 4.0)))


def test_figures_of_the_servers_that_they_refuse() -> None:
    with pytest.raises(ValueError, match=r"^scenario\.server: .*max_running"):
        check(replace(PLAIN, server=ModelServer(max_running=-1)))
