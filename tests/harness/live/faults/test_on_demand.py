"""The faults in force, without an environment: changes by one thread while another reads them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import cast

import pytest

from harness.live.faults.injector import FaultInjector
from harness.live.faults.on_demand import ActiveFaults
from harness.live.fleet import FleetProcess
from harness.scenario.faults import Fault, Latency
from harness.scenario.model import ClaimsError

FLEET = cast(FleetProcess, None)


class FakeInjector:
    """An injector whose faults take effect at once."""

    def begin(self, fault: Fault, fleet: FleetProcess, others: Sequence[Fault], seed: int) -> float | None:
        """As the fault injector's."""
        return 1.0

    def heal(self, fault: Fault, fleet: FleetProcess, others: Sequence[Fault]) -> None:
        """As the fault injector's."""


class Meddling(str):
    """A backend name whose comparison sets a fault on a third backend, as another thread might."""

    active_faults: ActiveFaults
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        type(self).comparisons += 1
        if type(self).comparisons <= 3:
            self.active_faults.add(Latency(f"gpu-{type(self).comparisons + 1}", 0.0, 1.0))
        return str(self) == str(other)

    __hash__ = str.__hash__


def test_faults_of_other_backends_may_come_while_one_is_checked() -> None:
    faults = ActiveFaults(cast(FaultInjector, FakeInjector()), FLEET, 1)
    faults.add(Latency("gpu-0", 0.0, 1.0))
    faults.add(Latency("gpu-1", 0.0, 1.0))
    Meddling.active_faults = faults
    with pytest.raises(ClaimsError, match=r"^latency is in force on gpu-0"):
        faults.add(Latency(Meddling("gpu-0"), 0.0, 1.0))
    assert sorted(row["backend"] for row in faults.rows(1.0)) == ["gpu-0", "gpu-1", "gpu-2", "gpu-3", "gpu-4"]


def test_the_first_two_on_a_backend_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads request a backend's lock at the same time."""
    faults = ActiveFaults(cast(FaultInjector, FakeInjector()), FLEET, 1)
    make, inner = threading.RLock, list[object]()

    def slow() -> object:
        if not inner:
            inner.append(None)
            inner[0] = faults._lock("gpu-0")
        return make()

    monkeypatch.setattr("harness.live.faults.on_demand.threading.RLock", slow)
    assert faults._lock("gpu-0") is inner[0] is faults._lock("gpu-0")
