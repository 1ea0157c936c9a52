"""Effects of each request fault in the simulator: on attempts, on clients, and on the gateway's events."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from harness.evidence.history import History
from harness.gateway.protocol import (
    Action,
    AttemptEnded,
    Cancel,
    Commit,
    Event,
    FirstByte,
    HealthCheckResult,
    MembershipChanged,
    Reply,
    RequestArrived,
    ResponseHead,
    Send,
)
from harness.scenario.faults import (
    Blackhole,
    CutOff,
    FailingStatus,
    Garbage,
    Hang,
    Kill,
    NotReady,
    OverCapacity,
    Pause,
    Slow,
    Step,
)
from harness.scenario.model import Echo, Ending, Failure, Keys, Kind
from harness.sim.event_queue import NETWORK_DELAY_S
from tests.harness.sim.rig import SERVICE_S, Listening, OneBackend, bare, run, scenario, sent_between, stream

AT_S, FOR_S, HEALED_S = 0.505, 0.5, 1.005
DURING = (0.505, 1.005)
WAY_S = 4 * NETWORK_DELAY_S


def endings(history: History, start_s: float, end_s: float) -> Counter[tuple[int, int]]:
    """Ending and status of the first attempts of the requests due in between."""
    rows = history.attempts[history.first_attempts()[sent_between(history, start_s, end_s)]]
    return Counter((int(row["ending"]), int(row["status"])) for row in rows)


def took_s(history: History, start_s: float, end_s: float) -> Any:
    """Seconds from sending to the end of the answer, for the requests due in between."""
    rows = history.requests[sent_between(history, start_s, end_s)]
    return rows["end_s"] - rows["sent_s"]


# --- status -----------------------------------------------------------------------------------------------


def test_a_failing_status_is_answered_at_once() -> None:
    policy = OneBackend()
    history = run(bare(policy), scenario(FailingStatus("gpu-0", AT_S, 418, for_s=FOR_S)))
    assert endings(history, *DURING) == {(Ending.ANSWERED, 418): 50}
    assert set(history.requests["status"][sent_between(history, *DURING)]) == {418}
    assert set(history.requests["echo"][sent_between(history, *DURING)]) == {Echo.NONE}
    assert took_s(history, *DURING) == pytest.approx([WAY_S] * 50)
    assert Counter(policy.errors) == {None: 150, "status:418": 50}


def test_the_first_ones_fail_and_no_more() -> None:
    history = run(bare(), scenario(FailingStatus("gpu-0", AT_S, 500, first=7, for_s=FOR_S)))
    failed = np.flatnonzero(history.requests["status"] == 500)
    assert failed.tolist() == list(range(51, 58))


def test_a_share_fails_the_same_ones_by_seed() -> None:
    what = scenario(FailingStatus("gpu-0", 0.0, 500, share=0.3))
    one, again, other = run(bare(), what, 1), run(bare(), what, 1), run(bare(), what, 2)
    assert one.digest() == again.digest()
    assert 30 <= np.count_nonzero(one.requests["status"] == 500) <= 90
    assert not np.array_equal(one.requests["status"], other.requests["status"])


def test_two_backends_fail_different_ones() -> None:
    """Otherwise a retry on the other backend would always fail with the first attempt."""
    failed = []
    for sick in ("gpu-0", "gpu-1"):
        turn: Step = FailingStatus(sick, 0.0, 500, share=0.5)
        policy = OneBackend()
        gateway = bare(policy)
        react = gateway.react

        def first_is_sick(event: Event, now_s: float, react: Any = react, sick: str = sick) -> list[Action]:
            if isinstance(event, MembershipChanged):
                event = MembershipChanged(tuple(item for item in event.backends if item.id == sick))
            actions: list[Action] = react(event, now_s)
            return actions

        gateway.react = first_is_sick
        failed.append(run(gateway, scenario(turn, backends=2)).requests["status"] == 500)
    assert not np.array_equal(*failed)


def test_retry_after_reaches_the_gateway_in_whole_seconds() -> None:
    gateway = bare()
    run(gateway, scenario(FailingStatus("gpu-0", 1.0, 429, retry_after_s=2.5)))
    heads = Counter(
        (event.status, event.retry_after_s) for _, event in gateway.heard if isinstance(event, ResponseHead)
    )
    assert heads == {(200, None): 100, (429, 3.0): 100}


def test_updates_meet_faults_too() -> None:
    load = stream(kind=Kind.UPDATE)
    history = run(bare(), scenario(FailingStatus("gpu-0", AT_S, 500, for_s=FOR_S), load=load))
    assert endings(history, *DURING) == {(Ending.ANSWERED, 500): 50}


# --- capacity ---------------------------------------------------------------------------------------------


def test_what_exceeds_the_capacity_is_refused_at_once() -> None:
    history = run(bare(), scenario(OverCapacity("gpu-0", AT_S, rate_per_s=20.0, burst=3, for_s=FOR_S)))
    counted = endings(history, *DURING)
    assert set(counted) == {(Ending.ANSWERED, 200), (Ending.REFUSED, 503)}
    assert counted[(Ending.ANSWERED, 200)] == 3 + 9  # the tenth would be due at 1.005 s
    assert endings(history, 0.505, 0.535) == {(Ending.ANSWERED, 200): 3}
    refused = history.requests["status"] == 503
    assert (history.requests["end_s"] - history.requests["sent_s"])[refused] == pytest.approx(WAY_S)


# --- slow -------------------------------------------------------------------------------------------------


def test_slow_service_takes_that_many_times_as_long() -> None:
    history = run(bare(), scenario(Slow("gpu-0", AT_S, 10.0, FOR_S)))
    assert history.answered().all()
    assert took_s(history, *DURING) == pytest.approx([10 * SERVICE_S + WAY_S] * 50)
    asked_s = history.attempts["service_asked_s"]
    assert asked_s[history.first_attempts()[sent_between(history, *DURING)]] == pytest.approx([10 * SERVICE_S] * 50)
    assert took_s(history, 1.01, 2.0) == pytest.approx([SERVICE_S + WAY_S] * 99)


def test_who_was_inside_before_is_served_as_ever() -> None:
    load = stream(output_tokens=40, keys=Keys(1))
    calm, slow = (run(bare(), scenario(*steps, load=load)) for steps in ((), (Slow("gpu-0", AT_S, 10.0, FOR_S),)))
    assert took_s(slow, 0.485, 0.505) == pytest.approx(took_s(calm, 0.485, 0.505))


# --- hang -------------------------------------------------------------------------------------------------


def test_a_hanging_attempt_is_open_until_its_client_leaves() -> None:
    history = run(bare(), scenario(Hang("gpu-0", AT_S, FOR_S), load=stream(timeout_s=0.1)))
    during = sent_between(history, 0.51, 0.9)
    assert endings(history, 0.51, 0.9) == {(Ending.CLIENT_GONE, 0): 39}
    assert set(history.requests["failure"][during]) == {Failure.TIMEOUT}
    rows = history.attempts[history.first_attempts()[during]]
    assert rows["end_s"] == pytest.approx(history.requests["sent_s"][during] + 0.1 + 2 * NETWORK_DELAY_S)
    assert np.isnan(rows["first_byte_s"]).all()


def test_healing_resets_those_that_hang() -> None:
    policy = OneBackend()
    history = run(bare(policy), scenario(Hang("gpu-0", AT_S, FOR_S)))
    assert endings(history, *DURING) == {(Ending.CUT, 0): 50}
    rows = history.attempts[history.first_attempts()[sent_between(history, *DURING)]]
    assert set(rows["end_s"]) == {HEALED_S}
    assert set(history.requests["status"][sent_between(history, *DURING)]) == {502}
    assert Counter(policy.errors) == {None: 150, "reset": 50}


def test_a_hang_without_an_end_leaves_attempts_open() -> None:
    history = run(bare(timeout_s=30.0), scenario(Hang("gpu-0", AT_S), load=stream(timeout_s=30.0)))
    assert len(history.all_attempts().unfinished()) == 0, "the balancer's own time limit comes first"
    assert endings(history, 0.51, 2.0) == {(Ending.CLIENT_GONE, 0): 149}


def test_the_hanging_show_in_reports_as_queued() -> None:
    gateway = bare()
    run(gateway, scenario(Hang("gpu-0", AT_S, FOR_S)))
    reports = [event.report for _, event in gateway.heard if isinstance(event, HealthCheckResult)]
    assert [report.queue_depth for report in reports if report is not None][:4] == [0, 0, 49, 0]
    assert [report.pending_tokens for report in reports if report is not None][2] == 49 * 12


def test_a_blackhole_swallows_the_reset() -> None:
    policy = OneBackend()
    run(bare(policy, 0.7), scenario(Hang("gpu-0", 0.5, 0.2), Blackhole("gpu-0", 0.6, 1.0), load=stream(requests=60)))
    assert Counter(policy.errors) == {None: 50, "timeout": 10}


# --- cut --------------------------------------------------------------------------------------------------


def test_a_cut_answer_breaks_the_clients_transfer() -> None:
    gateway = bare()
    history = run(gateway, scenario(CutOff("gpu-0", AT_S, for_s=FOR_S)))
    during = sent_between(history, *DURING)
    rows = history.requests[during]
    assert {*zip(rows["status"], rows["failure"], rows["answered_by"], strict=True)} == {(200, Failure.TRUNCATED, 0)}
    assert took_s(history, *DURING) == pytest.approx([SERVICE_S + WAY_S] * 50)
    assert not history.answered()[during].any()
    assert endings(history, *DURING) == {(Ending.CUT, 200): 50}
    assert history.answered()[~during].all()
    about = [event for _, event in gateway.heard if isinstance(event, ResponseHead | AttemptEnded)]
    heads = [event.attempt_id for event in about if isinstance(event, ResponseHead)]
    cut = [event.attempt_id for event in about if isinstance(event, AttemptEnded) and event.error == "reset"]
    assert (len(heads), len(cut)) == (200, 50)
    for attempt_id in cut:  # the head first, then the end, and only one
        assert [type(event) for event in about if event.attempt_id == attempt_id] == [ResponseHead, AttemptEnded]


def test_a_cut_shows_only_to_who_takes_the_body() -> None:
    """A gateway that cancels after the head, as with the loser of a hedge, gets no event of the cut."""

    def react(event: Event, now_s: float) -> list[Action]:
        match event:
            case RequestArrived(request):
                return [Send(request.id, request.id, "gpu-0", 1.0)]
            case ResponseHead(attempt_id):
                return [Cancel(attempt_id), Reply(attempt_id, 503, "no")]
        return []

    gateway = Listening(react)
    history = run(gateway, scenario(CutOff("gpu-0", 0.0)))
    assert {event.error for _, event in gateway.heard if isinstance(event, AttemptEnded)} == {"aborted"}
    assert set(history.requests["status"]) == {503}
    assert set(history.attempts["ending"]) == {Ending.CUT}


@pytest.mark.parametrize(("after_tokens", "heard"), [(0, "reset"), (1, "first byte")])
def test_a_gateway_that_waits_for_the_first_byte(after_tokens: int, heard: str) -> None:
    """Cut before the first byte, an attempt fails before its commit; cut later, it is committed and breaks off."""
    events: list[str] = []

    def react(event: Event, now_s: float) -> list[Action]:
        match event:
            case RequestArrived(request):
                return [Send(request.id, request.id, "gpu-0", 1.0)]
            case FirstByte(attempt_id):
                events.append("first byte")
                return [Commit(attempt_id, attempt_id)]
            case AttemptEnded(attempt_id, error):
                events.append(str(error))
                return [] if "first byte" in events else [Reply(attempt_id, 502, "reset")]
        return []

    history = run(Listening(react), scenario(CutOff("gpu-0", 0.0, after_tokens), load=stream(requests=1)))
    assert events[0] == heard and events[-1] == "reset"
    (row,) = history.requests
    assert (row["status"], row["failure"]) == ((502, Failure.NONE) if after_tokens == 0 else (200, Failure.TRUNCATED))


# --- not ready --------------------------------------------------------------------------------------------


def test_not_ready_is_told_to_health_checks_only() -> None:
    gateway = bare()
    history = run(gateway, scenario(NotReady("gpu-0", AT_S, FOR_S)))
    assert history.health_checks["status"].tolist()[:4] == [200, 200, 503, 200]
    assert [event.ok for _, event in gateway.heard if isinstance(event, HealthCheckResult)][:4] == [
        True,
        True,
        False,
        True,
    ]
    assert history.answered().all()


# --- together ---------------------------------------------------------------------------------------------


def test_faults_combine_in_their_order() -> None:
    """Two fail by status; three of the rest are within capacity, and these are slow and cut."""
    steps = (
        Slow("gpu-0", 0.0, 3.0),
        CutOff("gpu-0", 0.0),
        OverCapacity("gpu-0", 0.0, rate_per_s=0.0, burst=3),
        FailingStatus("gpu-0", 0.0, 500, first=2),
    )
    history = run(bare(), scenario(*steps, load=stream(requests=8)))
    assert history.requests["status"].tolist() == [500, 500, 200, 200, 200, 503, 503, 503]
    assert history.attempts["ending"].tolist() == [Ending.ANSWERED] * 2 + [Ending.CUT] * 3 + [Ending.REFUSED] * 3
    assert took_s(history, 0.02, 0.05) == pytest.approx([3 * SERVICE_S + WAY_S] * 3)


def test_a_new_process_has_no_faults() -> None:
    steps = (FailingStatus("gpu-0", 0.1, 500), Kill("gpu-0", 0.505, 0.2))
    history = run(bare(), scenario(*steps))
    assert set(history.requests["status"][sent_between(history, 0.1, 0.5)]) == {500}
    assert set(history.requests["status"][sent_between(history, 0.71, 2.0)]) == {200}


def test_a_kill_ends_a_hang() -> None:
    history = run(bare(), scenario(Hang("gpu-0", 0.305, 1.0), Kill("gpu-0", 0.505, 0.2)))
    assert endings(history, 0.31, 0.5) == {(Ending.OPEN, 0): 19}
    assert set(history.requests["status"][sent_between(history, 0.71, 2.0)]) == {200}


def test_what_a_fault_has_struck_is_counted() -> None:
    """A fault ends by its heal, its process's end, the next of its kind, or the run's end."""
    steps = (
        FailingStatus("gpu-0", 0.005, 500, first=3),
        Slow("gpu-0", 0.105, 2.0, 0.1),
        FailingStatus("gpu-0", 0.305, 500),
        Kill("gpu-0", 0.405, 0.1),
        NotReady("gpu-0", 0.705, 0.1),
        Garbage("gpu-0", 1.905),
    )
    history = run(bare(), scenario(*steps))
    assert [(step.kind, step.hits) for step in history.steps] == [
        ("FailingStatus", 3),
        ("Slow", 10),
        ("FailingStatus", 10),
        ("Kill", None),
        ("NotReady", 0),
        ("Garbage", 9),
    ]
    ended_s = [step.healed_s for step in history.steps]
    assert ended_s[:5] == pytest.approx([0.305, 0.205, 0.405, 0.505, 0.805])


def test_who_is_stopped_tells_no_counts() -> None:
    steps = (Slow("gpu-0", 0.105, 2.0), Pause("gpu-0", 0.305), Kill("gpu-0", 0.405, 0.1))
    for ends in (2, 3):
        assert [step.hits for step in run(bare(), scenario(*steps[:ends])).steps] == [None] * ends


def test_every_attempt_ends_exactly_once() -> None:
    """Under all of them, with clients that give up and an attempt timeout that expires; deterministic."""
    steps: tuple[Step, ...] = (
        FailingStatus("gpu-0", 0.0, 500, share=0.2),
        OverCapacity("gpu-0", 0.1, 60.0, 5),
        Slow("gpu-0", 0.3, 20.0, 0.3),
        Hang("gpu-0", 0.7, 0.03),
        Hang("gpu-0", 0.8, 0.3),
        CutOff("gpu-0", 1.2, for_s=0.3),
        Kill("gpu-0", 1.6, 0.1),
    )
    digests = set()
    for _ in range(2):
        gateway = bare(timeout_s=0.045)
        history = run(gateway, scenario(*steps, load=stream(timeout_s=0.05)))
        ended = Counter(event.attempt_id for _, event in gateway.heard if isinstance(event, AttemptEnded))
        assert set(ended.values()) == {1} and len(ended) == 200
        digests.add(history.digest())
    assert len(digests) == 1
