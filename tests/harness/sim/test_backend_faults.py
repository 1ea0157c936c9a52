"""Every kind of request fault is visible in a simulated history, or listed with the reason why it is not."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from harness.balancer.core.bare import BareGateway
from harness.evidence.history import History
from harness.gateway.protocol import (
    Action,
    Event,
    HealthCheckResult,
    MembershipChanged,
    SendHealthCheck,
    SetTimer,
    TimerFired,
)
from harness.scenario.model import Echo, Ending, Failure, Keys, Residency
from harness.sim.world import Simulation
from mockgpu.faults.decisions import Change
from mockgpu.faults.json_form import HERE
from mockgpu.faults.kinds import (
    KINDS,
    BadMetrics,
    Drip,
    Evict,
    FailingStatus,
    Garbage,
    Hang,
    OutOfMemory,
    OverCapacity,
    RequestFault,
    Slow,
    Stall,
    StreamError,
    Truncated,
    WrongLength,
)
from tests.harness.sim.rig import COLD_SERVER, GatewayOf, Listening, OneBackend, scenario, stream
from tests.mockgpu.fault_samples import SAMPLES

AT_S = 0.505
FAULTS: dict[str, RequestFault] = SAMPLES | {
    fault.kind: fault
    for fault in (
        FailingStatus(*HERE, 500),
        OverCapacity(*HERE, 0.0, 3),
        OutOfMemory(*HERE, dead=True),
        Slow(*HERE, 3.0),
        Drip(*HERE, 0.005),
        WrongLength(*HERE, 5),
    )
}
IMPOSSIBLE = {
    "not-alive": "affects only health checks of liveness, and the balancer here checks /health",
}
ONLY_HEARD = ("metrics",)
"""Kinds that only the gateway's events show, not a history."""
TIMER = 1_000_000


class Checked:
    """The bare gateway, which also checks its backend every 50 ms; records the results."""

    def __init__(self) -> None:
        self.bare = BareGateway(OneBackend(), attempt_timeout_s=0.5)
        self.reports: list[tuple[float, HealthCheckResult]] = []

    def react(self, event: Event, now_s: float) -> list[Action]:
        """As the bare gateway, with health checks."""
        check = SendHealthCheck(len(self.reports), "gpu-0", 0.05)
        if isinstance(event, MembershipChanged):
            return [*self.bare.handle(event, now_s), check]
        if isinstance(event, TimerFired) and event.timer_id == TIMER:
            return [check]
        if isinstance(event, HealthCheckResult):
            self.reports.append((now_s, event))
            return [SetTimer(TIMER, now_s + 0.05)] if now_s < 2.0 else []
        return list(self.bare.handle(event, now_s))


def played(fault: RequestFault | None, *later: Change) -> tuple[History, Checked]:
    """A run with the first change at AT_S and the others at intervals of half a second."""
    checked = Checked()
    load = stream(timeout_s=1.0, keys=Keys(3))
    what = scenario(load=load, server=COLD_SERVER)
    simulation = Simulation(GatewayOf(Listening(checked.react)), what, 1)
    changes = [*([] if fault is None else [Change((fault,))]), *later]
    for index, change in enumerate(changes):
        simulation._event_queue.at(AT_S + index / 2, lambda each: apply(simulation, each), change)
    return simulation.run(), checked


def apply(simulation: Simulation, change: Change) -> None:
    """Apply a change as the timeline runner does."""
    backend = simulation._backends["gpu-0"]
    simulation._timeline.reset_connections(backend.change_faults(simulation._now.now_s, change))
    simulation._advance(backend)


def same(one: History, other: History) -> bool:
    """Whether two histories hold the same rows."""
    names = ("requests", "attempts", "health_checks", "residency")
    return all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in names)


def after(history: History) -> Any:
    """Attempts that begin under the fault."""
    return history.attempts[history.attempts["start_s"] > AT_S]


def test_every_kind_has_a_case_here() -> None:
    assert set(FAULTS) == set(KINDS) > set(IMPOSSIBLE)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_shows_or_there_is_a_reason(kind: str) -> None:
    plain, _ = played(None)
    history, checked = played(FAULTS[kind])
    assert same(history, plain) == (kind in IMPOSSIBLE or kind in ONLY_HEARD)
    again, _ = played(FAULTS[kind])
    assert same(history, again), "the same seed gives the same history"
    if kind in ONLY_HEARD:
        assert all((result.report is None) == (at_s > AT_S + 0.001) for at_s, result in checked.reports)


def test_refusals_are_answered_at_once() -> None:
    for kind, status in (("queue-full", 503), ("out-of-memory", 500)):
        history, checked = played(FAULTS[kind])
        rows = after(history)
        assert Counter(zip(rows["ending"], rows["status"], strict=True)) == {(Ending.REFUSED, status): len(rows)}
        assert checked.reports[-1][1].ok == (kind != "out-of-memory"), "a dead engine is not ready"


@pytest.mark.parametrize("kind", ["hang", "zombie", "stall"])
def test_what_is_silent_is_left_by_its_client_or_freed(kind: str) -> None:
    history, checked = played(FAULTS[kind])
    assert set(after(history)["ending"]) == {Ending.CLIENT_GONE}
    last = checked.reports[-1][1].report
    assert last is not None and last.running == 0
    assert (last.queue_depth > 0) == (kind != "stall")
    history, _ = played(FAULTS[kind], Change(clear=frozenset({kind})))
    rows = after(history)
    assert set(rows["ending"][rows["start_s"] < AT_S + 0.5]) == {Ending.CUT}
    assert set(rows["ending"][rows["start_s"] > AT_S + 0.5]) == {Ending.ANSWERED}


def test_a_drip_comes_later_by_its_gaps() -> None:
    plain, _ = played(None)
    history, _ = played(Drip(*HERE, 0.005))
    took_s = after(history)["end_s"] - after(history)["start_s"]
    assert took_s == pytest.approx(after(plain)["end_s"] - after(plain)["start_s"] + 3 * 0.005)
    assert set(after(history)["ending"]) == {Ending.ANSWERED}
    history, _ = played(Drip(*HERE, 0.5))
    assert Ending.CLIENT_GONE in set(after(history)["ending"])


@pytest.mark.parametrize(
    ("fault", "ending", "failure"),
    [
        (Garbage(*HERE), Ending.ANSWERED, Failure.NONE),
        (Truncated(*HERE, 1), Ending.CUT, Failure.NONE),
        (WrongLength(*HERE, -5), Ending.CUT, Failure.NONE),
        (WrongLength(*HERE, 5), Ending.CUT, Failure.TRUNCATED),
    ],
    ids=str,
)
def test_a_spoiled_body_repeats_nothing(fault: RequestFault, ending: Ending, failure: Failure) -> None:
    history, _ = played(fault)
    assert set(after(history)["ending"]) == {ending}
    requested = history.requests[history.requests["sent_s"] > AT_S]
    assert set(requested["echo"]) == {Echo.NONE}
    assert set(requested["failure"]) == {failure}
    assert set(requested["status"]) == {200}


def test_an_error_within_a_stream_is_a_status_where_nothing_is_streamed() -> None:
    history, _ = played(StreamError(*HERE, 1))
    assert set(after(history)["status"]) == {500}
    assert set(after(history)["ending"]) == {Ending.ANSWERED}


def test_an_engine_that_dies_fails_all_inside() -> None:
    """Its memory is lost, too; stalled requests stay open."""
    history, checked = played(
        Slow(*HERE, 1000.0), Change((OutOfMemory(*HERE, dead=True),)), Change(clear=frozenset(KINDS))
    )
    rows = after(history)
    inside = rows["start_s"] < AT_S + 0.5
    assert set(zip(rows["ending"][inside], rows["status"][inside], strict=True)) == {(Ending.REFUSED, 500)}
    assert rows["end_s"][inside] == pytest.approx([AT_S + 0.5] * np.count_nonzero(inside))
    ready = {result.ok for at_s, result in checked.reports if AT_S + 0.55 < at_s < AT_S + 1.0}
    assert ready == {False} and checked.reports[-1][1].ok
    assert Counter(history.residency["event"])[Residency.EVICTED] >= 1
    assert set(rows["status"][rows["start_s"] > AT_S + 1.0]) == {200}
    stalled, _ = played(Stall(*HERE, 1), Change((OutOfMemory(*HERE, dead=True),)))
    assert set(after(stalled)["ending"][after(stalled)["start_s"] < AT_S + 0.5]) == {Ending.CLIENT_GONE}


def test_an_eviction_makes_the_next_request_cold() -> None:
    history, _ = played(Evict(*HERE))
    assert Counter(history.residency["event"])[Residency.EVICTED] >= 1
    assert after(history)["cold"][0] and not np.all(after(history)["cold"])


def test_frozen_figures_stay_in_the_simulator() -> None:
    _, checked = played(BadMetrics(*HERE, "frozen"), Change((Hang(*HERE),)))
    reports = {result.report for at_s, result in checked.reports if at_s > AT_S + 0.001}
    assert len(reports) == 1
