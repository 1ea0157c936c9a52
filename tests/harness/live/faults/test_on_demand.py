"""The book of faults in force, without a stage: what one thread does to it while another looks."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from harness.live.faults.injector import FaultInjector
from harness.live.faults.on_demand import ActiveFaults
from harness.live.fleet import FleetProcess
from harness.scenario.faults import Fault, Latency
from harness.scenario.model import ClaimsError

FLEET = cast(FleetProcess, None)


class Way:
    """Every fault bites at once."""

    def begin(self, fault: Fault, fleet: FleetProcess, seed: int) -> float | None:
        """As the fault way's."""
        return 1.0

    def heal(self, fault: Fault, fleet: FleetProcess) -> None:
        """As the fault way's."""


class Meddling(str):
    """A backend's name; while it is compared with another, a fault on a third is set, as from another thread."""

    active_faults: ActiveFaults
    asked = 0

    def __eq__(self, other: object) -> bool:
        type(self).asked += 1
        if type(self).asked <= 3:
            self.active_faults.add(Latency(f"gpu-{type(self).asked + 1}", 0.0, 1.0))
        return str(self) == str(other)

    __hash__ = str.__hash__


def test_faults_of_other_backends_may_come_while_one_is_checked() -> None:
    book = ActiveFaults(cast(FaultInjector, Way()), FLEET, 1)
    book.add(Latency("gpu-0", 0.0, 1.0))
    book.add(Latency("gpu-1", 0.0, 1.0))
    Meddling.active_faults = book
    with pytest.raises(ClaimsError, match=r"^latency is in force on gpu-0"):
        book.add(Latency(Meddling("gpu-0"), 0.0, 1.0))
    assert sorted(entry.fault.backend for entry in book.entries()) == ["gpu-0", "gpu-1", "gpu-2", "gpu-3", "gpu-4"]


def test_the_first_two_on_a_backend_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One asks for the backend's lock while another is making it."""
    book = ActiveFaults(cast(FaultInjector, Way()), FLEET, 1)
    make, inner = threading.RLock, list[object]()

    def slow() -> object:
        if not inner:
            inner.append(None)
            inner[0] = book._lock("gpu-0")
        return make()

    monkeypatch.setattr("harness.live.faults.on_demand.threading.RLock", slow)
    assert book._lock("gpu-0") is inner[0] is book._lock("gpu-0")
