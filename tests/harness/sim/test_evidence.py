"""The columns of a simulated run: complete, ordered, and limited to facts observable from outside."""

from __future__ import annotations

import numpy as np

from harness.evidence.history import StepSeen
from harness.scenario.arrivals import draw
from harness.scenario.faults import Kill, Leave
from harness.scenario.model import Echo, Ending, Failure
from harness.sim.backend import AttemptRow, SimBackend
from harness.sim.evidence import Evidence
from tests.harness.sim.rig import COLD_SERVER, bare, run, scenario, stream

WHAT = scenario(Kill("gpu-1", 0.2, 0.3), Leave("gpu-0", 0.4), load=stream(requests=3), backends=2, server=COLD_SERVER)


def evidence() -> Evidence:
    """Evidence of a run without events."""
    return Evidence(WHAT, 7, draw(WHAT.load, 7))


def row(request: int, backend: int, start_s: float) -> AttemptRow:
    """An attempt that ended with an answer."""
    return AttemptRow(request, backend, 0, start_s, Ending.ANSWERED, True, 200, 0.5, 0.6, 0.1, 0.2)


def test_nothing_happened() -> None:
    history = evidence().history([SimBackend(0, COLD_SERVER)], ())
    assert set(history.requests["failure"]) == {Failure.NOT_SENT}
    assert np.isnan(history.requests["sent_s"]).all() and np.isnan(history.requests["end_s"]).all()
    assert history.requests["intended_s"].tolist() == [0.0, 0.01, 0.02]
    assert history.requests["number"].tolist() == [0, 1, 2]
    assert (
        len(history.attempts) == len(history.health_checks) == len(history.residency) == len(history.connections) == 0
    )
    assert (history.scenario, history.seed, history.died, history.correlated) == (WHAT, 7, None, True)
    assert history.slack_s.tolist() == [0.0], "virtual time has no slack"


def test_what_clients_saw() -> None:
    collected = evidence()
    client = collected.requests[1]
    client.sent_s, client.first_byte_s, client.end_s, client.status = 0.1, 0.2, 0.3, 200
    client.failure, client.echo, client.answered_by = Failure.NONE, Echo.OWN, 1
    history = collected.history([], ())
    names = ["sent_s", "first_byte_s", "end_s", "status", "failure", "echo", "answered_by"]
    assert history.requests[names][1].tolist() == (0.1, 0.2, 0.3, 200, Failure.NONE, Echo.OWN, 1)
    assert history.requests["failure"].tolist() == [Failure.NOT_SENT, Failure.NONE, Failure.NOT_SENT]


def test_attempts_of_all_backends_are_ordered_by_time() -> None:
    first, second = SimBackend(0, COLD_SERVER), SimBackend(1, COLD_SERVER)
    first.rows = [row(2, 0, 0.1), row(1, 0, 0.4)]
    second.rows = [row(0, 1, 0.2), row(1, 1, 0.1)]
    attempts = evidence().history([first, second], ()).attempts
    assert attempts[["start_s", "request", "backend"]].tolist() == [(0.1, 1, 1), (0.1, 2, 0), (0.2, 0, 1), (0.4, 1, 0)]
    names = ["ending", "cold", "status", "first_byte_s", "end_s", "queue_wait_s"]
    assert attempts[names][0].tolist() == (Ending.ANSWERED, 1, 200, 0.5, 0.6, 0.1)
    assert attempts["service_asked_s"].tolist() == attempts["service_actual_s"].tolist() == [0.2] * 4
    assert set(attempts["carriers"]) == {15}, "in the simulator every tag survives"


def test_residency_of_all_backends_is_ordered_by_time() -> None:
    first, second = SimBackend(0, COLD_SERVER), SimBackend(1, COLD_SERVER)
    first.residency = [(0, 0, "late", 0.3)]
    second.residency = [(1, 0, "early", 0.1)]
    history = evidence().history([first, second], ())
    assert history.residency[["backend", "model", "at_s"]].tolist() == [(1, b"early", 0.1), (0, b"late", 0.3)]
    assert history.cold_loads() == 2


def test_steps_and_an_end_of_the_balancer() -> None:
    collected = evidence()
    steps = (StepSeen("Kill", 1, 0.2, 0.2, 0.45), StepSeen("Leave", 0, 0.4, 0.4))
    collected.health_checks.append((1, 503, 0.3))
    collected.died = "no more"
    history = collected.history([], steps)
    assert history.steps == steps
    assert history.health_checks.tolist() == [(1, 503, 0.3)]
    assert history.died == "no more"


def test_a_whole_run_reconciles() -> None:
    history = run(bare(), scenario(load=stream(requests=50)))
    assert history.attempts["request"].tolist() == list(range(50))
    assert (history.attempts["end_s"] < history.requests["end_s"]).all()
