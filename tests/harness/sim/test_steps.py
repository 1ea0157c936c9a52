"""Steps one by one in virtual time: pauses, restarts, closed and slow connections, weights and drains.

Steps come at 0.505 s, between two requests, and heal at 1.005 s, as in test_faults.
"""

from __future__ import annotations

import numpy as np
import pytest

from harness.evidence.history import History
from harness.gateway.protocol import AttemptEnded, HealthCheckResult, MembershipChanged
from harness.scenario.fault_schedule import RESTART_S
from harness.scenario.faults import (
    Bandwidth,
    CutOff,
    Down,
    Drain,
    Fault,
    Hang,
    Join,
    Kill,
    Latency,
    Leave,
    LimitData,
    Pause,
    Restart,
    SlowClose,
    Step,
    Timeout,
    Weigh,
)
from harness.scenario.model import Ending, Failure, Keys, Residency
from harness.sim.event_queue import NETWORK_DELAY_S
from tests.harness.sim.rig import COLD_SERVER, OneBackend, bare, run, scenario, sent_between, stream

AT_S, FOR_S, HEALED_S = 0.505, 0.5, 1.005
LONG = stream(output_tokens=40, keys=Keys(1))
WAY_S = 4 * NETWORK_DELAY_S


def took_s(history: History, start_s: float, end_s: float) -> list[float]:
    """Seconds from sending to the end of the answer, for the requests due in between."""
    rows = history.requests[sent_between(history, start_s, end_s)]
    return list(rows["end_s"] - rows["sent_s"])


def rows_of(history: History, start_s: float, end_s: float) -> np.ndarray:
    """First attempts of the requests due in between."""
    rows: np.ndarray = history.attempts[history.first_attempts()[sent_between(history, start_s, end_s)]]
    return rows


# --- pause ------------------------------------------------------------------------------------------------


def test_a_paused_backend_answers_all_at_once_when_it_goes_on() -> None:
    """Two are in service at the pause and finish at its end; later arrivals are read only then."""
    history = run(bare(), scenario(Pause("gpu-0", AT_S, FOR_S), load=LONG, server=COLD_SERVER))
    assert history.answered().all()
    inside, came = rows_of(history, 0.485, 0.505), rows_of(history, 0.505, 1.0)
    assert inside["end_s"] == pytest.approx([HEALED_S] * 2)
    assert inside["service_asked_s"] == pytest.approx(rows_of(history, 0.3, 0.32)["service_asked_s"])
    assert set(came["start_s"]) == {HEALED_S}
    assert (came["end_s"] > HEALED_S + 0.02).all()
    assert history.cold_loads() == 1, "its memory is as it was"


def test_who_left_meanwhile_is_not_served() -> None:
    history = run(bare(), scenario(Pause("gpu-0", AT_S, FOR_S), load=stream(output_tokens=40, timeout_s=0.1)))
    waiting = sent_between(history, 0.505, 0.9)
    assert set(history.requests["failure"][waiting]) == {Failure.TIMEOUT}
    assert set(history.first_attempts()[waiting]) == {-1}
    inside = rows_of(history, 0.485, 0.505)
    assert set(inside["ending"]) == {Ending.CLIENT_GONE}
    assert inside["end_s"] == pytest.approx([HEALED_S] * 2)
    assert history.answered()[sent_between(history, 0.93, 2.0)].all()


def test_health_checks_of_a_paused_backend_time_out_or_wait() -> None:
    """The bare gateway checks every 0.5 s with a timeout of 0.5 s: the check of 1.0 s is answered at the resume."""
    gateway = bare()
    history = run(gateway, scenario(Pause("gpu-0", 0.4, 0.605), load=stream(requests=210)))
    assert history.health_checks["at_s"].round(3).tolist() == [0.0, 1.005, 1.5, 2.0]
    results = [(round(at_s, 3), event.ok) for at_s, event in gateway.heard if isinstance(event, HealthCheckResult)]
    assert results == [(0.0, True), (1.0, False), (1.005, True), (1.5, True), (2.0, True)]


def test_a_pause_without_an_end_leaves_attempts_open() -> None:
    history = run(bare(), scenario(Pause("gpu-0", AT_S), load=stream(output_tokens=40, timeout_s=0.1)))
    assert set(rows_of(history, 0.485, 0.505)["ending"]) == {Ending.OPEN}
    assert not history.answered()[sent_between(history, 0.485, 2.0)].any()


@pytest.mark.parametrize("end", [Kill("gpu-0", 0.8, 0.7), Restart("gpu-0", 0.8, 0.7)], ids=str)
def test_a_paused_backend_can_be_killed(end: Step) -> None:
    """Deferred attempts are reset; the resume comes too late for them."""
    policy = OneBackend()
    history = run(bare(policy), scenario(Pause("gpu-0", AT_S, FOR_S), end, load=LONG))
    assert policy.errors.count("reset") == 2 + 29
    assert set(rows_of(history, 0.485, 0.505)["ending"]) == {Ending.OPEN}
    assert set(history.requests["status"][sent_between(history, 0.485, 1.495)]) == {502}
    assert history.answered()[sent_between(history, 1.51, 2.0)].all()


def test_connections_to_a_paused_backend_can_be_cut() -> None:
    policy = OneBackend()
    history = run(bare(policy), scenario(Pause("gpu-0", AT_S, FOR_S), Down("gpu-0", 0.8, 0.1), load=LONG))
    assert policy.errors.count("reset") == 2 + 29
    assert (history.first_attempts()[sent_between(history, 0.51, 0.79)] == -1).all(), "nobody waits for an answer"
    assert history.answered()[sent_between(history, 0.91, 2.0)].all()


# --- restart ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("for_s", "away_s"), [(0.0, RESTART_S), (0.7, 0.7)])
def test_a_restart_takes_its_time_and_comes_back_cold(for_s: float, away_s: float) -> None:
    policy = OneBackend()
    history = run(bare(policy), scenario(Restart("gpu-0", AT_S, for_s), load=LONG, server=COLD_SERVER))
    (step,) = history.steps
    assert (step.kind, step.asked_s, step.effective_s, step.healed_s) == ("Restart", AT_S, AT_S, AT_S + away_s)
    assert policy.errors.count("reset") == 2
    assert set(history.requests["status"][sent_between(history, AT_S, AT_S + away_s)]) == {502}
    assert history.answered()[sent_between(history, AT_S + away_s, 2.0)].all()
    loads_s = history.residency["at_s"][history.residency["event"] == Residency.LOADING]
    assert len(loads_s) == 2 and loads_s[1] > AT_S + away_s


# --- closed connections -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Kill("gpu-0", AT_S, FOR_S), Restart("gpu-0", AT_S)], ids=str)
def test_an_end_shows_later_on_a_way_that_closes_slowly(fault: Fault) -> None:
    gateway = bare()
    run(gateway, scenario(SlowClose("gpu-0", 0.1, 0.2), fault, load=LONG))
    resets_s = [at_s for at_s, event in gateway.heard if isinstance(event, AttemptEnded) and event.error == "reset"]
    assert resets_s == pytest.approx([AT_S + 0.2 + NETWORK_DELAY_S] * 2)


def test_what_hung_is_reset_later_too() -> None:
    gateway = bare()
    run(gateway, scenario(SlowClose("gpu-0", 0.1, 0.2), Hang("gpu-0", AT_S, 0.01)))
    resets_s = [at_s for at_s, event in gateway.heard if isinstance(event, AttemptEnded) and event.error == "reset"]
    assert resets_s == pytest.approx([AT_S + 0.01 + 0.2 + NETWORK_DELAY_S])


def test_a_broken_answer_is_broken_by_whatever_ends_it_first() -> None:
    """The close is visible after 0.2 s; the attempt timeout is 0.1 s."""
    steps = (SlowClose("gpu-0", AT_S, 0.2, FOR_S), CutOff("gpu-0", AT_S, for_s=FOR_S))
    for timeout_s, took in ((1.0, 0.2), (0.1, 0.1)):
        policy = OneBackend()
        history = run(bare(policy, timeout_s=timeout_s), scenario(*steps))
        during = sent_between(history, 0.505, 0.8)
        assert set(history.requests["failure"][during]) == {Failure.TRUNCATED}
        assert set(history.requests["status"][during]) == {200}
        assert took_s(history, 0.505, 0.8) == pytest.approx([took] * 29, abs=0.005)
        assert set(policy.errors) == {None, "reset" if timeout_s == 1.0 else "timeout"}


def test_silent_connections_are_closed_in_time_and_when_that_heals() -> None:
    policy = OneBackend()
    gateway = bare(policy)
    history = run(gateway, scenario(Timeout("gpu-0", AT_S, 0.2, FOR_S), load=LONG))
    assert set(history.requests["status"][sent_between(history, 0.485, 1.005)]) == {502}
    assert (history.first_attempts()[sent_between(history, 0.51, 1.0)] == -1).all()
    assert took_s(history, 0.51, 0.8) == pytest.approx([0.2 + WAY_S] * 29)
    inside = history.requests["end_s"][sent_between(history, 0.485, 0.505)]
    assert inside == pytest.approx([AT_S + 0.2 + 2 * NETWORK_DELAY_S] * 2)
    late = history.requests["end_s"][sent_between(history, 0.81, 1.0)]
    assert late.max() == pytest.approx(HEALED_S + 2 * NETWORK_DELAY_S), "healing closes them at once"
    assert set(policy.errors) == {None, "reset"}
    assert history.answered()[sent_between(history, 1.01, 2.0)].all()


@pytest.mark.parametrize(
    ("limit_bytes", "status", "failure"),
    [
        (0, 502, Failure.NONE),
        (191, 502, Failure.NONE),
        (200, 200, Failure.TRUNCATED),
        (488, 200, Failure.TRUNCATED),
        (489, 200, Failure.NONE),
    ],
)
def test_an_answer_that_is_too_long_breaks_off(limit_bytes: int, status: int, failure: Failure) -> None:
    history = run(bare(), scenario(LimitData("gpu-0", AT_S, limit_bytes, FOR_S)))
    rows = history.requests[sent_between(history, 0.505, 1.0)]
    assert (set(rows["status"]), set(rows["failure"])) == ({status}, {failure})
    assert set(rows_of(history, 0.505, 1.0)["ending"]) == {Ending.ANSWERED}, (
        "the backend itself has answered completely"
    )


def test_health_checks_take_the_same_way() -> None:
    """A report of 319 bytes: too slow, too long, or closed before the check's timeout."""
    for fault, heard_s in (
        (Bandwidth("gpu-0", AT_S, 0.6, FOR_S), 1.5),
        (LimitData("gpu-0", AT_S, 300, FOR_S), 1.0 + 2 * NETWORK_DELAY_S),
        (Timeout("gpu-0", AT_S, 0.2, FOR_S), 1.2 + NETWORK_DELAY_S),
    ):
        gateway = bare()
        run(gateway, scenario(fault, load=stream(requests=210)))
        failed = [at_s for at_s, event in gateway.heard if isinstance(event, HealthCheckResult) and not event.ok]
        assert failed == pytest.approx([heard_s])


def test_jitter_is_drawn_for_each_backend_from_the_seed() -> None:
    what = scenario(Latency("gpu-0", 0.0, 0.1, jitter_s=0.05))
    one, again, other = run(bare(), what, 1), run(bare(), what, 1), run(bare(), what, 2)
    assert one.digest() == again.digest()
    assert not np.array_equal(one.requests["end_s"], other.requests["end_s"])
    delays_s = (
        one.all_requests().answered().latencies_s() - run(bare(), scenario(), 1).all_requests().answered().latencies_s()
    )
    assert delays_s.min() > 0.049 and delays_s.max() < 0.151 and np.ptp(delays_s) > 0.09


# --- membership -------------------------------------------------------------------------------------------


def test_the_balancer_is_told_of_weights_and_not_of_the_drained() -> None:
    gateway = bare()
    steps = (Weigh("gpu-1", 0.1, 3), Drain("gpu-0", 0.2), Join("gpu-0", 0.3), Leave("gpu-1", 0.4), Join("gpu-1", 0.5))
    history = run(gateway, scenario(*steps, backends=2))
    members = [
        {item.id: item.weight for item in event.backends}
        for _, event in gateway.heard
        if isinstance(event, MembershipChanged)
    ]
    both = {"gpu-0": 1.0, "gpu-1": 3.0}
    assert members == [{"gpu-0": 1.0, "gpu-1": 1.0}, both, {"gpu-1": 3.0}, both, {"gpu-0": 1.0}, both]
    assert [step.kind for step in history.steps] == ["Weigh", "Drain", "Join", "Leave", "Join"]
    assert all(step.effective_s == step.asked_s and np.isnan(step.healed_s) for step in history.steps)
    assert history.answered().all()
