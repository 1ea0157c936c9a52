"""Effects of each fault and membership change on a history, and their healing.

Steps come at 0.505 s, between two requests, and heal at 1.005 s. With 40 tokens a request takes 20.5 ms, so two are
inside when a step comes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from harness.evidence.history import History
from harness.gateway.protocol import AttemptEnded, HealthCheckResult, Send
from harness.scenario.faults import (
    BadMetrics,
    Bandwidth,
    Blackhole,
    Down,
    Drip,
    Evict,
    FailingStatus,
    Fault,
    Garbage,
    Join,
    Kill,
    Latency,
    Leave,
    LimitData,
    Membership,
    NotAlive,
    NotReady,
    OverCapacity,
    Reset,
    Restart,
    Slicer,
    Slow,
    SlowClose,
    Step,
    Timeout,
    Truncated,
    Weigh,
    WrongLength,
)
from harness.scenario.model import Ending, Keys, Residency
from harness.sim.event_queue import NETWORK_DELAY_S
from tests.harness.fault_effects import sample
from tests.harness.sim.rig import COLD_SERVER, OneBackend, bare, run, scenario, sent_between, stream

AT_S, FOR_S, HEALED_S = 0.505, 0.5, 1.005
LONG = stream(output_tokens=40, keys=Keys(1))
NEEDED: dict[type[Any], dict[str, Any]] = {
    Latency: {"latency_s": 0.2, "jitter_s": 0.0},
    Bandwidth: {"kb_per_s": 2.0},
    Timeout: {"after_s": 0.1},
    Slicer: {"slice_bytes": 64, "gap_s": 0.05},
    LimitData: {"limit_bytes": 300},
    Drip: {"gap_s": 0.1},
    WrongLength: {"by": 5},
    Weigh: {"weight": 3},
    FailingStatus: {"status": 500},
    OverCapacity: {"rate_per_s": 0.5},
    Slow: {"factor": 200.0},
}
"""Fields of a step beside its backend, time and length."""

HIDDEN = {SlowClose, Truncated, Garbage, NotAlive, BadMetrics, Evict}
"""Faults not visible in latencies or health checks here; see tests.harness.fault_effects."""

FAULTS = [kind for kind in get_args(Fault) if kind not in HIDDEN]


def step_of(kind: type[Any], backend: str = "gpu-0") -> Any:
    """A step of this kind, healing if the kind can heal."""
    length = {} if kind in get_args(Membership) else {"for_s": FOR_S}
    return replace(sample(kind), backend=backend, at_s=AT_S, **NEEDED.get(kind, {}), **length)


def statuses(history: History, start_s: float, end_s: float) -> set[int]:
    """Statuses of the requests that were due in between."""
    return set(history.requests["status"][sent_between(history, start_s, end_s)].tolist())


def attempted(history: History, start_s: float, end_s: float) -> int:
    """Number of the requests due in between that reached a backend."""
    return int(np.count_nonzero(history.first_backends()[sent_between(history, start_s, end_s)] >= 0))


def observed(history: History, start_s: float, end_s: float) -> tuple[list[float], list[int]]:
    """Latencies of the requests due in that time, rounded to nanoseconds, and statuses of its health checks."""
    between = (history.health_checks["at_s"] >= start_s) & (history.health_checks["at_s"] < end_s)
    latencies_s = (
        history.all_requests().where(sent_between(history, start_s, end_s)).answered().latencies_s().round(9).tolist()
    )
    return latencies_s, history.health_checks["status"][between].tolist()


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: str(kind.__name__))
def test_every_fault_is_seen_and_heals(kind: type[Fault]) -> None:
    calm = run(bare(timeout_s=0.2), scenario())
    history = run(bare(timeout_s=0.2), scenario(step_of(kind)))
    (step,) = history.steps
    assert (step.kind, step.backend, step.asked_s, step.effective_s) == (kind.__name__, 0, AT_S, AT_S)
    assert step.healed_s == HEALED_S
    before, during, after = (
        (observed(history, *ends), observed(calm, *ends)) for ends in ((0.0, 0.5), (0.51, 1.004), (1.01, 2.0))
    )
    assert before[0] == before[1]
    assert during[0] != during[1]
    assert after[0] == after[1]


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind is not Restart], ids=lambda kind: str(kind.__name__))
def test_a_fault_without_an_end_stays(kind: type[Fault]) -> None:
    history = run(bare(timeout_s=0.2), scenario(replace(step_of(kind), for_s=None)))
    assert np.isnan(history.steps[0].healed_s)
    latencies_s, health_checks = observed(history, 1.45, 2.0)
    if kind is NotReady:
        assert health_checks == [503]
    else:
        assert not latencies_s or min(latencies_s) > 0.05, "without a fault they are below 5 ms"


@pytest.mark.parametrize("kind", get_args(Membership), ids=lambda kind: str(kind.__name__))
def test_every_change_of_membership_is_seen(kind: type[Membership]) -> None:
    """After either change gpu-1 is the first of the list; a leaver still answers its earlier requests."""
    joins = kind is Join
    what = scenario(
        step_of(kind, "gpu-1" if joins else "gpu-0"), load=LONG, backends=1 if joins else 2, spare=1 if joins else 0
    )
    history = run(bare(), what)
    assert [(step.kind, step.effective_s) for step in history.steps] == [(kind.__name__, AT_S)]
    first = history.first_backends()
    assert set(first[sent_between(history, 0.0, 0.505)]) == {0}
    assert set(first[sent_between(history, 0.505, 2.0)]) == {1}
    assert history.answered().all()


def test_each_change_rotates_the_list() -> None:
    policy = OneBackend()
    run(bare(policy), scenario(Leave("gpu-1", 0.1), Join("gpu-3", 0.2), Join("gpu-1", 0.3), backends=3, spare=1))
    assert policy.names == ("gpu-1", "gpu-0", "gpu-2", "gpu-3")


# --- one by one -------------------------------------------------------------------------------------------


def test_a_killed_backend_refuses_and_returns_cold() -> None:
    policy = OneBackend()
    history = run(bare(policy), scenario(step_of(Kill), load=LONG, server=COLD_SERVER))
    inside = sent_between(history, 0.485, 0.505)
    assert set(history.attempts["ending"][history.first_attempts()[inside]]) == {Ending.OPEN}
    assert policy.errors.count("reset") == 2
    assert statuses(history, 0.485, 1.005) == {502}
    assert (attempted(history, 0.51, 1.0), policy.errors.count("refused")) == (0, 50)
    assert statuses(history, 0.0, 0.48) == statuses(history, 1.01, 2.0) == {200}
    loads = history.residency["at_s"][history.residency["event"] == Residency.LOADING]
    assert loads == pytest.approx([NETWORK_DELAY_S * 2, 1.01 + NETWORK_DELAY_S * 2])
    assert history.attempts["cold"][history.first_attempts()[sent_between(history, 1.01, 1.05)]].all()


def test_behind_a_closed_way_a_backend_lives_on() -> None:
    policy = OneBackend()
    history = run(bare(policy), scenario(step_of(Down), load=LONG, server=COLD_SERVER))
    inside = history.first_attempts()[sent_between(history, 0.485, 0.505)]
    assert set(history.attempts["ending"][inside]) == {Ending.CLIENT_GONE}
    assert history.attempts["end_s"][inside] == pytest.approx([AT_S + 2 * NETWORK_DELAY_S] * 2)
    assert (policy.errors.count("reset"), policy.errors.count("refused")) == (2, 50)
    assert statuses(history, 0.485, 1.005) == {502}
    assert attempted(history, 0.51, 1.0) == 0
    assert statuses(history, 1.01, 2.0) == {200}
    assert history.cold_loads() == 1


def test_latency_delays_every_answer_by_exactly_that() -> None:
    calm, late = run(bare(), scenario()), run(bare(), scenario(step_of(Latency)))
    assert late.answered().all()
    delays_s = late.requests["end_s"] - calm.requests["end_s"]
    during = sent_between(calm, 0.51, 1.0)
    assert delays_s[during] == pytest.approx([0.2] * 49)
    assert delays_s[~during & (calm.requests["intended_s"] != 1.0)] == pytest.approx([0.0] * 150)
    assert np.array_equal(late.attempts["end_s"], calm.attempts["end_s"]), "the backend itself is as quick as ever"


def test_attempts_into_a_blackhole_time_out() -> None:
    policy = OneBackend()
    history = run(bare(policy, timeout_s=0.2), scenario(step_of(Blackhole)))
    during = sent_between(history, 0.51, 0.805)
    assert attempted(history, 0.51, 1.005) == 0
    assert statuses(history, 0.51, 0.805) == {504}
    waited_s = history.requests["end_s"][during] - history.requests["sent_s"][during]
    assert waited_s == pytest.approx([0.2 + 2 * NETWORK_DELAY_S] * 30)
    assert policy.errors.count("timeout") == 30
    assert statuses(history, 1.01, 2.0) == {200}


def test_what_a_blackhole_holds_is_closed_when_it_heals() -> None:
    """Two answers are lost and later requests never arrive; all of them stay open until the heal."""
    policy = OneBackend()
    history = run(bare(policy), scenario(step_of(Blackhole), load=LONG))
    held = sent_between(history, 0.485, 1.005)
    assert history.requests["end_s"][held] == pytest.approx([HEALED_S + 2 * NETWORK_DELAY_S] * 52)
    assert policy.errors.count("reset") == 52
    assert statuses(history, 0.485, 1.005) == {502}
    assert statuses(history, 1.01, 2.0) == {200}


@pytest.mark.parametrize("fault", [Down("gpu-0", 0.805), Kill("gpu-0", 0.805)], ids=str)
def test_what_a_blackhole_holds_ends_with_its_connections(fault: Step) -> None:
    policy = OneBackend()
    history = run(bare(policy), scenario(Blackhole("gpu-0", AT_S, 1.0), fault, load=LONG))
    assert history.requests["end_s"][sent_between(history, 0.485, 0.805)] == pytest.approx(
        [0.805 + 2 * NETWORK_DELAY_S] * 32
    )
    assert policy.errors.count("reset") == 32
    assert policy.errors.count("refused") == 119, "a closed link is not silent"


def test_answers_do_not_leave_a_blackhole() -> None:
    history = run(bare(timeout_s=0.2), scenario(step_of(Blackhole), load=LONG))
    inside = history.first_attempts()[sent_between(history, 0.485, 0.505)]
    assert set(history.attempts["ending"][inside]) == {Ending.ANSWERED}
    assert statuses(history, 0.485, 0.505) == {504}


def test_connections_are_reset() -> None:
    policy = OneBackend()
    history = run(bare(policy), scenario(step_of(Reset), load=LONG))
    inside = history.first_attempts()[sent_between(history, 0.485, 0.505)]
    assert set(history.attempts["ending"][inside]) == {Ending.CLIENT_GONE}
    assert attempted(history, 0.51, 1.005) == 0
    assert statuses(history, 0.485, 1.005) == {502}
    assert (policy.errors.count("reset"), policy.errors.count("refused")) == (52, 0)
    assert statuses(history, 1.01, 2.0) == {200}


@pytest.mark.parametrize("kind", [Kill, Down, Reset])
def test_a_fault_just_after_a_client_left(kind: type[Any]) -> None:
    """The attempt is cancelled at 100.1 ms, the backend sees that at 100.2 ms; the fault begins in between."""
    load = stream(requests=1, output_tokens=2000, timeout_s=0.1)
    gateway = bare()
    history = run(gateway, scenario(kind("gpu-0", 0.1 + 1.5 * NETWORK_DELAY_S), load=load))
    assert history.died is None
    assert [event.error for _, event in gateway.heard if isinstance(event, AttemptEnded)] == ["aborted"]


# --- health checks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "logged", "failed_s"),
    [
        (None, 5, None),
        (Kill("gpu-0", AT_S, FOR_S), 4, 1.0 + 2 * NETWORK_DELAY_S),
        (Down("gpu-0", AT_S, FOR_S), 4, 1.0 + 2 * NETWORK_DELAY_S),
        (Reset("gpu-0", AT_S, FOR_S), 4, 1.0 + 2 * NETWORK_DELAY_S),
        (Blackhole("gpu-0", AT_S, FOR_S), 4, 1.5),
        (Latency("gpu-0", AT_S, 0.6, FOR_S), 4, 1.5),
        (Latency("gpu-0", AT_S, 0.2, FOR_S), 5, None),
    ],
)
def test_health_checks_are_recorded_apart(step: Step | None, logged: int, failed_s: float | None) -> None:
    """The bare gateway checks at 0, 0.5, 1.0, ... s with a timeout of 0.5 s."""
    gateway = bare(timeout_s=0.3)
    history = run(gateway, scenario(*([step] if step else []), load=stream(requests=210)))
    asked_s = history.health_checks["at_s"]
    assert len(asked_s) == logged
    assert set(asked_s.round(3)) == {0.0, 0.5, 1.5, 2.0} | ({1.0} if logged == 5 else set())
    assert set(history.health_checks["status"]) == {200}
    results = [(at_s, event) for at_s, event in gateway.heard if isinstance(event, HealthCheckResult)]
    assert [at_s for at_s, event in results if not event.ok] == pytest.approx([failed_s] if failed_s else [])
    assert all((event.report is not None) == event.ok for _, event in results)
    assert len(history.attempts) <= 210, "a health check is no attempt"


# --- the shells' promise ----------------------------------------------------------------------------------


def test_every_attempt_ends_exactly_once() -> None:
    """Under all faults at once, with clients that give up and an attempt timeout that expires."""
    steps: list[Step] = [
        Latency("gpu-0", 0.1, 0.03, 0.2),
        Blackhole("gpu-0", 0.4, 0.2),
        Kill("gpu-0", 0.7, 0.2),
        Reset("gpu-0", 1.0, 0.2),
        Down("gpu-0", 1.3, 0.2),
    ]
    gateway = bare(timeout_s=0.04)
    react = gateway.react
    sent: list[int] = []

    def overhear(event: Any, now_s: float) -> list[Any]:
        actions = react(event, now_s)
        sent.extend(action.attempt_id for action in actions if isinstance(action, Send))
        return actions

    gateway.react = overhear
    history = run(gateway, scenario(*steps, load=stream(output_tokens=40, timeout_s=0.05)))
    ended = [event for _, event in gateway.heard if isinstance(event, AttemptEnded)]
    assert sorted(event.attempt_id for event in ended) == sorted(sent)
    assert len(sent) == 200
    assert {event.error for event in ended} == {None, "refused", "reset", "timeout"}
    assert len(history.all_attempts().unfinished()) == np.count_nonzero(sent_between(history, 0.68, 0.7))
