"""One simulated backend alone: its attempt log, and the state after a kill."""

from __future__ import annotations

import math

import pytest

from harness.gateway.expected_answer import ExpectedAnswer
from harness.gateway.protocol import (
    Action,
    Event,
    HealthCheckResult,
    MembershipChanged,
    Reply,
    RequestArrived,
    SendHealthCheck,
)
from harness.scenario.model import Ending, ModelServer, Residency
from harness.sim.backend import AttemptRow, SimBackend
from mockgpu.gpu.events import Job
from tests.harness.sim.rig import COLD_SERVER, SERVICE_S, Listening, run, scenario


def job(number: int, model: str = "m") -> Job:
    """An inference of the default size."""
    return Job(id=number, model=model, kind="inference", prompt_tokens=8, output_tokens=4)


def arrive(backend: SimBackend, number: int, at_s: float = 0.0) -> AttemptRow:
    """Attempt `number` reaches the backend."""
    row = AttemptRow(request=number, backend=backend.number, kind=0, start_s=at_s)
    backend.arrive(at_s, number, row, job(number))
    return row


def test_an_attempt_is_served_and_logged() -> None:
    backend = SimBackend(2, ModelServer())
    row = arrive(backend, 5)
    assert backend.inside == (5,)
    backend.advance(0.0)
    assert backend.wake_s() is not None
    (answer,) = backend.advance(1.0)
    assert (answer.attempt_id, answer.status) == (5, 200)
    assert answer.at_s == row.end_s == row.first_byte_s == pytest.approx(SERVICE_S)
    assert (row.ending, row.status, row.cold, row.backend) == (Ending.ANSWERED, 200, False, 2)
    assert row.service_s == pytest.approx(SERVICE_S)
    assert backend.rows == [row]
    assert len(backend.inside) == 0


def test_waiting_and_serving_are_told_apart() -> None:
    backend = SimBackend(0, ModelServer(max_running=1))
    rows = [arrive(backend, number) for number in range(2)]
    backend.advance(1.0)
    assert [row.queue_wait_s for row in rows] == pytest.approx([0.0, SERVICE_S])
    assert [row.service_s for row in rows] == pytest.approx([SERVICE_S, SERVICE_S])


def test_a_full_queue_refuses() -> None:
    backend = SimBackend(0, ModelServer(max_running=1, queue_limit=0))
    rows = [arrive(backend, number) for number in range(2)]
    answers = backend.advance(0.0)
    assert [(answer.attempt_id, answer.status) for answer in answers] == [(1, 503)]
    assert (rows[1].ending, rows[1].status) == (Ending.REFUSED, 503)
    assert backend.inside == (0,)


def test_a_client_that_leaves_frees_its_place() -> None:
    backend = SimBackend(0, ModelServer(max_running=1))
    first, second = (arrive(backend, number) for number in range(2))
    backend.advance(0.0)
    backend.leave(0.001, 0)
    backend.leave(0.001, 99)  # unknown: nothing happens
    backend.advance(1.0)
    assert (first.ending, first.end_s, first.status) == (Ending.CLIENT_GONE, 0.001, 0)
    assert second.queue_wait_s == pytest.approx(0.001)


def test_a_death_leaves_attempts_open_and_the_cache_cold() -> None:
    backend = SimBackend(0, COLD_SERVER)
    arrive(backend, 1)
    backend.advance(1.0)
    inside = arrive(backend, 2, 1.0)
    backend.advance(1.0)
    assert list(backend.inside) == [2]
    backend.kill()
    assert list(backend.inside) == []
    assert not backend.alive and not backend.reachable
    assert inside.ending is Ending.OPEN and math.isnan(inside.end_s)
    backend.alive = True
    assert backend.advance(2.0) == []
    assert arrive(backend, 3, 2.0).ending is Ending.OPEN
    backend.advance(3.0)
    assert [row.cold for row in backend.rows] == [True, False, True]
    assert [(event, at_s) for _, event, _, at_s in backend.residency if event == Residency.LOADING] == [
        (Residency.LOADING, 0.0),
        (Residency.LOADING, 2.0),
    ]


def test_evictions_are_logged() -> None:
    backend = SimBackend(1, ModelServer(memory_mb=100, weights_mb=100, load_s=0.05))
    for number, model in enumerate("ab"):
        backend.arrive(number, number, AttemptRow(number, 1, 0, number), job(number, model))
        backend.advance(number + 0.9)
    assert [(number, event, model) for number, event, model, _ in backend.residency] == [
        (1, Residency.LOADING, "a"),
        (1, Residency.LOADED, "a"),
        (1, Residency.EVICTED, "a"),
        (1, Residency.LOADING, "b"),
        (1, Residency.LOADED, "b"),
    ]


def test_a_report_says_what_health_says() -> None:
    backend = SimBackend(0, ModelServer(memory_mb=1000, weights_mb=100, load_s=0.05, max_running=1))
    arrive(backend, 1)
    arrive(backend, 2)
    backend.advance(0.051)
    report = backend.report()
    assert (report.id, report.ready, report.loaded_models) == ("gpu-0", True, ("m",))
    assert (report.memory_total_mb, report.memory_used_mb, report.queue_depth) == (1000, 100, 1)


@pytest.mark.parametrize(
    ("expected", "good"),
    [
        (ExpectedAnswer(), True),
        (ExpectedAnswer(frozenset({204})), False),
        (ExpectedAnswer(ready_field=True), True),
        (ExpectedAnswer(body_part='"queue_depth": 0'), True),
        (ExpectedAnswer(body_part='"queue_depth": 1'), False),
    ],
)
def test_a_health_check_is_good_if_it_is_answered_as_expected(expected: ExpectedAnswer, good: bool) -> None:
    backend = SimBackend(0, ModelServer())
    assert backend.health_check("/health", expected)[:2] == (200, good)


def test_a_sign_of_life_has_no_body() -> None:
    backend = SimBackend(0, ModelServer())
    assert backend.health_check("/ping", ExpectedAnswer()) == (200, True, None)
    assert backend.health_check("/ping", ExpectedAnswer(ready_field=True)) == (200, False, None)


def test_what_a_gateway_hears_of_a_health_check_is_whether_it_was_as_expected() -> None:
    def react(event: Event, now_s: float) -> list[Action]:
        match event:
            case MembershipChanged():
                return [
                    SendHealthCheck(1, "gpu-0", 1.0),
                    SendHealthCheck(2, "gpu-0", 1.0, ExpectedAnswer(frozenset({503}))),
                ]
            case RequestArrived(request):
                return [Reply(request.id, 503, "no")]
        return []

    gateway = Listening(react)
    run(gateway, scenario())
    assert [event.ok for _, event in gateway.heard if isinstance(event, HealthCheckResult)] == [True, False]
