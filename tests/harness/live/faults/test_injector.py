"""Fault injection: each process and transport fault takes effect and heals, with both kinds of fault proxy."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args
from unittest.mock import Mock

import pytest

from harness.live.faults import injector as module
from harness.live.faults import probes
from harness.live.faults.injector import REAL, FaultInjector
from harness.live.faults.probes import answers, is_effective
from harness.live.fleet import FleetProcess
from harness.live.process.ports import HOST, PortBlock
from harness.scenario import link, transport_faults
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
    Restart,
    Slicer,
    SlowClose,
    Timeout,
    TransportFault,
)
from harness.scenario.model import HarnessError, ModelServer, TargetError
from tests.harness.fault_effects import sample
from tests.harness.live.helpers import PATIENCE_S, free_block, free_ports

SICK = "gpu-1"
SEED = os.getpid()
LONG_S = 2.0
"""Longer than a probe waits."""

SPECIAL: tuple[ProcessFault | TransportFault, ...] = (
    Bandwidth(SICK, 0.0, 2.0),
    Bandwidth(SICK, 0.0, 20_000.0),
    Blackhole(SICK, 0.0),
    Down(SICK, 0.0),
    Kill(SICK, 0.0),
    Latency(SICK, 0.0, 0.15),
    Latency(SICK, 0.0, LONG_S),
    Latency(SICK, 0.0, 0.15, jitter_s=0.15),
    LimitData(SICK, 0.0, 0),
    LimitData(SICK, 0.0, 300_000),
    Pause(SICK, 0.0),
    Reset(SICK, 0.0),
    Restart(SICK, 0.0),
    Slicer(SICK, 0.0, 64, 0.01),
    Slicer(SICK, 0.0, 1, 0.01),
    SlowClose(SICK, 0.0, 0.15),
    SlowClose(SICK, 0.0, LONG_S),
    Timeout(SICK, 0.0, 0.15),
    Timeout(SICK, 0.0, LONG_S),
)
KINDS = (*get_args(ProcessFault), *get_args(TransportFault))
FAULTS: tuple[ProcessFault | TransportFault, ...] = (
    *SPECIAL,
    *(replace(sample(kind), backend=SICK) for kind in KINDS if kind not in map(type, SPECIAL)),
)
IDS = [f"{type(fault).__name__}-{number}" for number, fault in enumerate(FAULTS)]
TRIES = 5
"""A stall of the machine may look like a fault once, but not this often."""


@pytest.fixture(scope="module")
def block() -> PortBlock:
    return free_block(SEED + 1, 2)


@pytest.fixture(scope="module")
def fleet(block: PortBlock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetProcess]:
    started = FleetProcess(block, 2, ModelServer(), tmp_path_factory.mktemp("fleet"), processes=True)
    try:
        started.await_ready()
        yield started
    finally:
        started.stop()


def opened(kind: str, block: PortBlock, folder: Path) -> FaultInjector:
    injector = FaultInjector(kind, block, folder)
    injector.await_ready()
    for number in range(2):
        injector.open(f"gpu-{number}", (HOST, block.proxy(number)), (HOST, block.backend(number)))
    return injector


@pytest.fixture(scope="module")
def injector(
    block: PortBlock, fleet: FleetProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FaultInjector]:
    started = opened("embedded", block, tmp_path_factory.mktemp("injector"))
    yield started
    started.stop()


@pytest.fixture(scope="module")
def real_injector(
    fleet: FleetProcess, block: PortBlock, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FaultInjector]:
    """An injector with a real Toxiproxy, for the same fleet."""
    if shutil.which(REAL) is None:
        pytest.skip(f"no {REAL} on PATH")
    ports = free_block(SEED + 4, 2)
    started = FaultInjector("real", ports, tmp_path_factory.mktemp("real"))
    started.await_ready()
    for number in range(2):
        started.open(f"gpu-{number}", (HOST, ports.proxy(number)), (HOST, block.backend(number)))
    yield started
    started.stop()


def assert_bites_and_heals(injector: FaultInjector, fleet: FleetProcess, fault: ProcessFault | TransportFault) -> None:
    """Twice, and only at the fault's backend."""
    sick, sound = injector._addresses[SICK], injector._addresses["gpu-0"]
    for _ in range(2):
        assert answers(sick, PATIENCE_S)
        assert not all(is_effective(fault, sick) for _ in range(TRIES)), "a probe must not see what is not there"
        assert injector.begin(fault, fleet) is not None
        assert answers(sound, PATIENCE_S)
        injector.heal(fault, fleet)
    assert answers(sick, PATIENCE_S)


@pytest.mark.parametrize("fault", FAULTS, ids=IDS)
def test_a_fault_bites_heals_and_bites_again(
    injector: FaultInjector, fleet: FleetProcess, fault: ProcessFault | TransportFault
) -> None:
    assert_bites_and_heals(injector, fleet, fault)


@pytest.mark.parametrize("fault", FAULTS, ids=IDS)
def test_and_so_it_does_with_a_real_toxiproxy(
    real_injector: FaultInjector, fleet: FleetProcess, fault: ProcessFault | TransportFault
) -> None:
    assert_bites_and_heals(real_injector, fleet, fault)


@pytest.mark.parametrize("fault", FAULTS, ids=IDS)
def test_a_fault_that_does_not_bite_is_told(
    injector: FaultInjector, fleet: FleetProcess, fault: ProcessFault | TransportFault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If proxy and fleet do nothing, no probe may observe a fault."""
    monkeypatch.setattr(probes, "PROBE_S", 0.0)
    for declaring in (link, transport_faults):
        monkeypatch.setattr(declaring, "SILENT_S", 2.0)
    for action in ("disable", "enable", "add_toxic"):
        monkeypatch.setattr(injector._proxy, action, lambda *_, **__: None)
    for action in ("kill", "pause"):
        monkeypatch.setattr(fleet, action, lambda _: None)
    assert any(injector.begin(fault, fleet) is None for _ in range(TRIES))


def test_a_toxic_that_is_there_already_is_our_error(injector: FaultInjector, fleet: FleetProcess) -> None:
    fault = Latency(SICK, 0.0, 0.1)
    assert injector.begin(fault, fleet) is not None
    with pytest.raises(HarnessError, match=r"^the fault proxy could not add latency to gpu-1: ") as caught:
        injector.begin(fault, fleet)
    assert "\n" not in str(caught.value)
    injector.heal(fault, fleet)


def test_connections_are_told(injector: FaultInjector) -> None:
    assert {item.proxy for item in injector.connections()} == {"gpu-0", "gpu-1"}


def test_a_dead_fault_proxy_is_our_error(block: PortBlock, tmp_path: Path) -> None:
    other = free_block(SEED + 2, 2)
    started = opened("embedded", other, tmp_path)
    started.stop()
    with pytest.raises(HarnessError, match=r"^the fault proxy ended: exit status 0"):
        started.check()
    with pytest.raises(HarnessError, match=r"^the fault proxy ended: exit status 0"):
        started.connections()


def test_one_that_runs_already_is_used_and_left_as_it_was(
    injector: FaultInjector, block: PortBlock, tmp_path: Path
) -> None:
    ports = free_block(SEED + 3, 1)
    guest = FaultInjector(f"http://{HOST}:{block.fault_control}", ports, tmp_path)
    guest.await_ready()
    guest.open("guest", (HOST, ports.proxy(0)), (HOST, block.backend(0)))
    assert answers((HOST, ports.proxy(0)), PATIENCE_S)
    guest.stop()
    guest.stop()
    assert not answers((HOST, ports.proxy(0)), PATIENCE_S)
    assert answers(injector._addresses["gpu-0"], PATIENCE_S)


def test_kinds_of_fault_proxy(block: PortBlock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TargetError, match=r"^--toxiproxy real: no toxiproxy-server on PATH; install it, or"):
        FaultInjector("real", block, tmp_path)
    for kind in ("http://192.0.2.1:8474", "http://127.0.0.1", "nonsense"):
        with pytest.raises(TargetError, match=r"expected embedded, real, or http://127\.0\.0\.1:PORT"):
            FaultInjector(kind, block, tmp_path)


def test_one_that_does_not_run_is_told_at_once(
    block: PortBlock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only our own child process is waited for."""
    monkeypatch.setattr("harness.live.faults.injector.time.sleep", Mock(side_effect=AssertionError("waits")))
    port = free_ports(1)[0]
    advice = "start toxiproxy-server there, or leave --toxiproxy out"
    with pytest.raises(TargetError, match=rf"^no fault proxy answers at 127\.0\.0\.1:{port}; {advice}$"):
        FaultInjector(f"{HOST}:{port}", block, tmp_path).await_ready()


@pytest.mark.parametrize(
    ("version", "fine"), [("2.6.9", False), ("1.10.0", False), ("2.7.0", True), ("2.12.0", True), ("git", True)]
)
def test_what_is_older_than_the_client_is_refused(
    injector: FaultInjector, block: PortBlock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, fine: bool
) -> None:
    guest = FaultInjector(f"http://{HOST}:{block.fault_control}", block, tmp_path)
    monkeypatch.setattr(guest._proxy, "version", lambda: version)
    if fine:
        guest.await_ready()
        assert (guest.kind, guest.version) == (f"http://{HOST}:{block.fault_control}", version)
        return
    with pytest.raises(TargetError, match=rf" is Toxiproxy {version}, expected 2\.7 or later; ") as caught:
        guest.await_ready()
    assert "\n" not in str(caught.value)


def test_something_else_at_that_address_is_told(fleet: FleetProcess, block: PortBlock, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"^--toxiproxy .*the fault proxy could not report its version: "):
        FaultInjector(f"{HOST}:{block.fleet_control}", block, tmp_path).await_ready()


def test_the_embedded_one_has_the_seed_of_the_run(
    block: PortBlock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = Mock()
    monkeypatch.setattr(module, "Child", child)
    FaultInjector("embedded", block, tmp_path, 77)
    words = child.call_args.args[0]
    assert words[words.index("--seed") + 1] == "77"


# --- simultaneous faults ----------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [Kill(SICK, 0.0), Restart(SICK, 0.0)], ids=str)
def test_a_way_stays_closed_until_everybody_let_go(
    injector: FaultInjector, fleet: FleetProcess, inner: ProcessFault
) -> None:
    sick, outer = injector._addresses[SICK], Down(SICK, 0.0)
    for first, second in ((outer, inner), (inner, outer)):
        assert injector.begin(outer, fleet) is not None
        assert injector.begin(inner, fleet, (outer,)) is not None
        injector.heal(first, fleet, (second,))
        assert is_effective(outer, sick)
        injector.heal(second, fleet)
        assert answers(sick, PATIENCE_S)


def test_a_reset_does_not_open_a_closed_way(injector: FaultInjector, fleet: FleetProcess) -> None:
    sick, outer = injector._addresses[SICK], Down(SICK, 0.0)
    injector.begin(outer, fleet)
    over = threading.Event()
    over.set()
    injector.begin(Reset(SICK, 0.0), fleet, (outer,), over=over)
    assert is_effective(outer, sick)
    injector.heal(Reset(SICK, 0.0), fleet, (outer,))
    injector.heal(outer, fleet)
    assert answers(sick, PATIENCE_S)


def test_a_process_is_probed_by_itself(
    injector: FaultInjector, fleet: FleetProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a closed or silent link every fault looks the same from outside."""
    monkeypatch.setattr(probes, "PROBE_S", 0.0)
    for outer, inner in ((Down(SICK, 0.0), Kill(SICK, 0.0)), (Blackhole(SICK, 0.0), Pause(SICK, 0.0))):
        injector.begin(outer, fleet)
        with monkeypatch.context() as tied:
            for action in ("kill", "pause", "restart", "resume"):
                tied.setattr(fleet, action, lambda _: None)
            assert any(injector.begin(inner, fleet, (outer,)) is None for _ in range(TRIES))
            injector.heal(inner, fleet, (outer,))
        injector.heal(outer, fleet)
    assert answers(injector._addresses[SICK], PATIENCE_S)


@pytest.mark.parametrize(
    "fault",
    [
        Blackhole(SICK, 0.0),
        Bandwidth(SICK, 0.0, 2.0),
        Slicer(SICK, 0.0, 64, 0.01),
        LimitData(SICK, 0.0, 300),
        SlowClose(SICK, 0.0, 0.15),
        Timeout(SICK, 0.0, LONG_S),
        Reset(SICK, 0.0),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_what_is_late_already_is_no_sign_of_another_fault(
    injector: FaultInjector, fleet: FleetProcess, fault: TransportFault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe waits for delayed answers, observes the fault, and observes none if there is none."""
    sick, outer = injector._addresses[SICK], Latency(SICK, 0.0, 0.6)
    assert injector.begin(outer, fleet) is not None
    assert not all(is_effective(fault, sick, (outer.effect,)) for _ in range(TRIES))
    assert injector.begin(fault, fleet, (outer,)) is not None
    injector.heal(fault, fleet, (outer,))
    injector.heal(outer, fleet)
    assert answers(sick, PATIENCE_S)
