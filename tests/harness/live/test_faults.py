"""Every kind of fault begins, is seen to bite, shows in the history of a live run, and heals."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from harness.claims import HealthChecks
from harness.history import History, Mask, StepSeen
from harness.live import faults as module
from harness.live.faults import FaultWay
from harness.live.fleet import Fleet
from harness.live.ports import HOST, PortBlock
from harness.live.session import LiveSession
from harness.model import Ending, Failure, HarnessError, ModelServer, TargetError
from harness.targets.reference import ReferenceTarget
from harness.timeline import (
    Blackhole,
    CutOff,
    Down,
    FailingStatus,
    Fault,
    Hang,
    Kill,
    Latency,
    NotReady,
    OverCapacity,
    RequestFault,
    Reset,
    Slow,
)
from tests.harness.live.helpers import PATIENCE_S, free_block, free_ports, traffic

SICK = "gpu-1"
SEED = os.getpid()
AT_S, FOR_S, END_S = 0.5, 1.5, 3.2
LATENCY_S = 0.15
TIMEOUT_S = 0.6
SLOWER = 40.0

KINDS: tuple[type[Fault], ...] = get_args(Fault)
REQUEST_KINDS: tuple[type[RequestFault], ...] = get_args(RequestFault)
WAY_KINDS = [kind for kind in KINDS if kind not in REQUEST_KINDS]
"""Faults of a process or of the way to it, which the fault way carries out by itself."""


def healthy(history: History, mine: Mask) -> bool:
    return bool(history.answered()[mine].all())


def refused(history: History, mine: Mask) -> bool:
    """The balancer could not connect and said so."""
    return set(history.requests["status"][mine]) == {502}


def late(history: History, mine: Mask) -> bool:
    """Answered, and never before the latency had passed."""
    took_s = (history.requests["first_byte_s"] - history.requests["sent_s"])[mine]
    return healthy(history, mine) and bool((took_s >= LATENCY_S).all())


def silent(history: History, mine: Mask) -> bool:
    """No answer within the client's patience, and no backend saw a request."""
    lost = set(history.requests["failure"][mine]) == {Failure.TIMEOUT}
    return lost and bool((history.first_attempts()[mine] == -1).all())


def failing(history: History, mine: Mask) -> bool:
    """The backend answered, with the status asked for."""
    rows = history.requests[mine]
    return set(rows["status"]) == {418} and len(set(rows["answered_by"])) == 1


def overflowing(history: History, mine: Mask) -> bool:
    """Some are served, the others are told 503."""
    return set(history.requests["status"][mine]) == {200, 503}


def slower(history: History, mine: Mask) -> bool:
    """Each service takes that many times as long as before."""
    asked_s = history.attempts["service_asked_s"][history.first_attempts()]
    before_s = asked_s[history.requests["sent_s"] < AT_S - 0.1].max()
    return healthy(history, mine) and bool((asked_s[mine] > before_s * SLOWER * 0.9).all())


def hanging(history: History, mine: Mask) -> bool:
    """No answer within the client's patience, though the backend has the request."""
    lost = set(history.requests["failure"][mine]) == {Failure.TIMEOUT}
    return lost and bool((history.first_attempts()[mine] != -1).all())


def broken(history: History, mine: Mask) -> bool:
    """Every answer began and broke off, as its client and its backend both saw."""
    truncated = set(history.requests["failure"][mine]) == {Failure.TRUNCATED}
    return truncated and set(history.attempts["ending"][history.first_attempts()[mine]]) == {Ending.CUT}


def out_of_turn(history: History, mine: Mask) -> bool:
    """Check-ups are told so, and what is sent is served."""
    checks = history.check_ups[history.check_ups["backend"] == 1]
    told = checks["status"][(checks["at_s"] > AT_S + 0.3) & (checks["at_s"] < AT_S + FOR_S)]
    return set(told) == {503} and healthy(history, mine)


CASES: dict[type[Fault], tuple[Callable[[str], Fault], Callable[[History, Mask], bool]]] = {
    Blackhole: (lambda name: Blackhole(name, AT_S, FOR_S), silent),
    CutOff: (lambda name: CutOff(name, AT_S, for_s=FOR_S), broken),
    Down: (lambda name: Down(name, AT_S, FOR_S), refused),
    FailingStatus: (lambda name: FailingStatus(name, AT_S, 418, for_s=FOR_S), failing),
    Hang: (lambda name: Hang(name, AT_S, FOR_S), hanging),
    Kill: (lambda name: Kill(name, AT_S, FOR_S), refused),
    Latency: (lambda name: Latency(name, AT_S, LATENCY_S, FOR_S), late),
    NotReady: (lambda name: NotReady(name, AT_S, FOR_S), out_of_turn),
    OverCapacity: (lambda name: OverCapacity(name, AT_S, 5.0, for_s=FOR_S), overflowing),
    Reset: (lambda name: Reset(name, AT_S, FOR_S), refused),
    Slow: (lambda name: Slow(name, AT_S, SLOWER, FOR_S), slower),
}

ALONE: tuple[type[Fault], ...] = (Kill, NotReady)
"""Kinds that need a run of their own: processes to kill, check-ups to tell. The others share one, each on a backend."""

TOGETHER = [kind for kind in CASES if kind not in ALONE]


@pytest.fixture(scope="module")
def session() -> Iterator[LiveSession]:
    with LiveSession() as opened:
        yield opened


@pytest.fixture(scope="module")
def shared_run(session: LiveSession) -> History:
    """A run in which backend n + 1 suffers from kind n of those that go together, all at a time."""
    faults = [CASES[kind][0](f"gpu-{number}") for number, kind in enumerate(TOGETHER, start=1)]
    backends = len(faults) + 1
    scenario = traffic(
        END_S, *faults, backends=backends, rate_per_s=40.0 * backends, keys=16 * backends, timeout_s=TIMEOUT_S
    )
    return session.play(ReferenceTarget(), scenario, SEED)


def run_of(kind: type[Fault], session: LiveSession, request: pytest.FixtureRequest) -> tuple[History, int]:
    """A run with that fault, and the number of the backend that suffers from it."""
    make, _ = CASES[kind]
    if kind in TOGETHER:
        history: History = request.getfixturevalue("shared_run")
        return history, TOGETHER.index(kind) + 1
    scenario = traffic(END_S + 1.0, make(SICK), timeout_s=TIMEOUT_S)
    if kind is NotReady:  # it shows to those who ask
        scenario = replace(scenario, off=scenario.off - {HealthChecks.table})
    return session.play(ReferenceTarget(), scenario, SEED), 1


def owned_by(history: History, backend: int) -> Mask:
    """Requests whose key that backend owned before the fault; all keys are asked for before it."""
    first = history.first_backends()
    early = history.requests["sent_s"] < AT_S
    keys = set(history.requests["key"][early & (first == backend)])
    mask: Mask = np.isin(history.requests["key"], list(keys))
    return mask


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_begins_shows_and_heals(
    session: LiveSession, kind: type[Fault], request: pytest.FixtureRequest
) -> None:
    _, shows = CASES[kind]
    history, number = run_of(kind, session, request)
    (step,) = [step for step in history.steps if step.backend == number]
    assert step.kind == kind.__name__
    assert_timed(step)
    sent_s, end_s = history.requests["sent_s"], history.requests["end_s"]
    sick, sound = owned_by(history, number), owned_by(history, 0)
    assert sick.any() and sound.any()
    during = sick & (sent_s > step.effective_s) & (end_s < AT_S + FOR_S)  # healing takes a moment
    assert during.any()
    assert shows(history, during), history.requests[during]
    assert healthy(history, sick & (end_s < step.asked_s))
    after = sick & (sent_s > step.healed_s + 0.2)
    assert after.sum() >= 5
    assert healthy(history, after), history.requests[after]
    assert healthy(history, sound)


def assert_timed(step: StepSeen) -> None:
    """Asked for in time and never early; in effect within a second, and never before it was asked for."""
    assert AT_S <= step.asked_s < AT_S + FOR_S
    assert step.took_effect
    assert step.asked_s <= step.effective_s <= step.asked_s + 1.0
    assert step.healed_s >= AT_S + FOR_S
    if step.kind == "Latency":
        assert step.effective_s >= step.asked_s + LATENCY_S * 0.99, "the probe had to wait for it"


def test_a_kill_leaves_the_other_backends_and_the_sentinel_alone(session: LiveSession) -> None:
    """The sentinel must not ping the one that is killed: it would take its death for two seconds of slack."""
    history = session.play(ReferenceTarget(), traffic(1.5, Kill("gpu-0", 0.3)), SEED)
    assert history.steps[0].took_effect
    assert np.isnan(history.steps[0].healed_s)
    assert history.slack_s.max() < 1.5
    assert healthy(history, history.first_backends() == 1)


# --- the way itself ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def block() -> PortBlock:
    return free_block(SEED + 1, 2)


@pytest.fixture(scope="module")
def fleet(block: PortBlock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    started = Fleet(block, 2, ModelServer(), tmp_path_factory.mktemp("fleet"), processes=True)
    try:
        started.await_ready()
        yield started
    finally:
        started.stop()


def opened(kind: str, block: PortBlock, folder: Path) -> FaultWay:
    way = FaultWay(kind, block, folder)
    way.await_ready()
    for number in range(2):
        way.open(f"gpu-{number}", (HOST, block.proxy(number)), (HOST, block.backend(number)))
    return way


@pytest.fixture(scope="module")
def way(block: PortBlock, fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultWay]:
    started = opened("embedded", block, tmp_path_factory.mktemp("way"))
    yield started
    started.stop()


@pytest.mark.parametrize("kind", WAY_KINDS)
def test_a_fault_bites_heals_and_bites_again(way: FaultWay, fleet: Fleet, kind: type[Fault]) -> None:
    fault = CASES[kind][0](SICK)
    for _ in range(2):
        assert way._first_byte_s(SICK, PATIENCE_S) < PATIENCE_S
        assert way.begin(fault, fleet) is not None
        assert way._first_byte_s("gpu-0", PATIENCE_S) < PATIENCE_S
        way.heal(fault, fleet)
    assert way._first_byte_s(SICK, PATIENCE_S) < PATIENCE_S


@pytest.mark.parametrize("kind", WAY_KINDS)
def test_a_fault_that_does_not_bite_is_told(
    way: FaultWay, fleet: Fleet, kind: type[Fault], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probes must look: with the proxy's hands tied nothing bites."""
    fault = CASES[kind][0](SICK)
    monkeypatch.setattr(module, "PROBE_S", 0.2)
    monkeypatch.setattr(module, "SILENT_S", 2.0)
    for action in ("disable", "enable", "add_toxic"):
        monkeypatch.setattr(way._proxy, action, lambda *_: None)
    assert way.begin(fault, fleet) is None
    if kind is Kill:
        fleet.restart(SICK)


def test_a_toxic_that_is_there_already_is_our_error(way: FaultWay, fleet: Fleet) -> None:
    fault = Latency(SICK, AT_S, LATENCY_S)
    assert way.begin(fault, fleet) is not None
    with pytest.raises(HarnessError, match=r"^the fault proxy could not add latency to gpu-1: ") as told:
        way.begin(fault, fleet)
    assert "\n" not in str(told.value)
    way.heal(fault, fleet)


def test_connections_are_told(way: FaultWay) -> None:
    assert {item.proxy for item in way.connections()} == {"gpu-0", "gpu-1"}


def test_a_dead_fault_proxy_is_our_error(block: PortBlock, tmp_path: Path) -> None:
    other = free_block(SEED + 2, 2)
    started = opened("embedded", other, tmp_path)
    started.stop()
    with pytest.raises(HarnessError, match=r"^the fault proxy ended: exit status 0"):
        started.check()
    with pytest.raises(HarnessError, match=r"^the fault proxy ended: exit status 0"):
        started.connections()


def test_one_that_runs_already_is_used_and_left_as_it_was(way: FaultWay, block: PortBlock, tmp_path: Path) -> None:
    ports = free_block(SEED + 3, 1)
    guest = FaultWay(f"http://{HOST}:{block.fault_control}", ports, tmp_path)
    guest.await_ready()
    guest.open("guest", (HOST, ports.proxy(0)), (HOST, block.backend(0)))
    assert guest._first_byte_s("guest", PATIENCE_S) < PATIENCE_S
    guest.stop()
    guest.stop()
    assert guest._first_byte_s("guest", 7.0) == 7.0
    assert way._first_byte_s("gpu-0", PATIENCE_S) < PATIENCE_S


def test_kinds_of_fault_proxy(block: PortBlock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TargetError, match=r"^--toxiproxy real: no toxiproxy-server on PATH; install it, or"):
        FaultWay("real", block, tmp_path)
    for kind in ("http://192.0.2.1:8474", "http://127.0.0.1", "nonsense"):
        with pytest.raises(TargetError, match=r"expected embedded, real, or http://127\.0\.0\.1:PORT"):
            FaultWay(kind, block, tmp_path)
    monkeypatch.setattr(module, "START_S", 0.1)
    port = free_ports(1)[0]
    with pytest.raises(HarnessError, match=rf"^no fault proxy answers at 127\.0\.0\.1:{port} after"):
        FaultWay(f"{HOST}:{port}", block, tmp_path).await_ready()
