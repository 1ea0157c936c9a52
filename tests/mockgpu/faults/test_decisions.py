from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mockgpu.faults.decisions import AnswerStatus, Change, FaultDecision, Hold, RequestFaults, Serve
from mockgpu.faults.json_form import HERE, from_json, to_json
from mockgpu.faults.kinds import (
    CORRUPTIONS,
    IMMEDIATE,
    KINDS,
    BadMetrics,
    Corruption,
    CutOff,
    Drip,
    Evict,
    FailingStatus,
    Garbage,
    Hang,
    NotAlive,
    NotReady,
    OutOfMemory,
    OverCapacity,
    QueueFull,
    RequestFault,
    Slow,
    Stall,
    StreamError,
    Truncated,
    WrongLength,
    Zombie,
)
from mockgpu.faults.selection import SelectiveFault
from mockgpu.gpu.events import State
from tests.mockgpu.fault_samples import SAMPLES

STATE = State(True, 1000, 300, 100, 2, 4, 50, ("m",))


def under(*faults: RequestFault, name: str = "gpu-0") -> RequestFaults:
    made = RequestFaults(name)
    made.change(0.0, Change(set=faults))
    return made


def decisions(faults: RequestFaults, count: int, at_s: float = 0.0) -> list[FaultDecision]:
    return [faults.arrive(at_s, number, 10) for number in range(count)]


def hit(faults: RequestFaults, count: int) -> list[int]:
    """Positions of the requests that a fault answered."""
    return [
        position for position, decision in enumerate(decisions(faults, count)) if isinstance(decision, AnswerStatus)
    ]


# --- one by one -------------------------------------------------------------------------------------------


def test_without_faults_all_are_served() -> None:
    assert decisions(RequestFaults("gpu-0"), 3) == [Serve()] * 3
    assert RequestFaults("gpu-0").report() == []
    assert RequestFaults("gpu-0").reported_state(STATE) is STATE


def test_a_status_answers_all_or_the_first_ones() -> None:
    assert decisions(under(FailingStatus(*HERE, 500, retry_after_s=1.5)), 2) == [AnswerStatus(500, 1.5)] * 2
    assert hit(under(FailingStatus(*HERE, 500, first=3)), 10) == [0, 1, 2]
    assert hit(under(FailingStatus(*HERE, 500, first=0)), 10) == []


def test_a_selection_is_every_kth_and_after_some() -> None:
    assert hit(under(FailingStatus(*HERE, 500, every=3)), 10) == [2, 5, 8]
    assert hit(under(FailingStatus(*HERE, 500, every=1)), 3) == [0, 1, 2]
    assert hit(under(FailingStatus(*HERE, 500, first=2, after=3)), 10) == [3, 4]
    assert hit(under(FailingStatus(*HERE, 500, every=2, after=3)), 8) == [4, 6]
    assert hit(under(FailingStatus(*HERE, 500, after=7)), 10) == [7, 8, 9]
    shifted = hit(under(FailingStatus(*HERE, 500, share=0.4, after=5)), 55)
    assert shifted == [5 + position for position in hit(under(FailingStatus(*HERE, 500, share=0.4)), 50)]


SELECTIVE = [kind for kind, made in KINDS.items() if issubclass(made, SelectiveFault)]


@pytest.mark.parametrize("kind", SELECTIVE)
def test_every_selective_kind_applies_to_the_selected_and_counts(kind: str) -> None:
    faults = under(from_json({**to_json(SAMPLES[kind]), "first": 1}))
    hit_one, other = decisions(faults, 2)
    assert hit_one != Serve()
    assert other == Serve()
    assert [fault["hits"] for fault in faults.report()] == [1]


def test_setting_a_status_again_begins_anew() -> None:
    faults = under(FailingStatus(*HERE, 500, first=2))
    assert hit(faults, 5) == [0, 1]
    assert faults.report()[0]["hits"] == 2
    faults.change(1.0, Change(set=(FailingStatus(*HERE, 502, first=1),)))
    assert decisions(faults, 2) == [AnswerStatus(502), Serve()]
    assert [fault["hits"] for fault in faults.report()] == [1]


@given(seed=st.integers(), share=st.floats(0, 1), name=st.sampled_from(["gpu-0", "gpu-1"]))
def test_a_share_is_a_matter_of_seed_name_and_position(seed: int, share: float, name: str) -> None:
    fault = FailingStatus(*HERE, 500, share=share, seed=seed)
    first = hit(under(fault, name=name), 200)
    assert hit(under(fault, name=name), 200) == first
    late = under(fault, name=name)
    slow_decisions = [late.arrive(position * 17.3, position, 5) for position in range(200)]
    assert [position for position, decision in enumerate(slow_decisions) if isinstance(decision, AnswerStatus)] == first
    # A larger share selects all requests that a smaller one does.
    assert set(first) <= set(hit(under(replace(fault, share=(1 + share) / 2), name=name), 200))


def test_a_share_is_about_that_share() -> None:
    assert hit(under(FailingStatus(*HERE, 500, share=0.0)), 100) == []
    assert hit(under(FailingStatus(*HERE, 500, share=1.0)), 100) == list(range(100))
    for seed in range(3):  # four standard deviations
        assert (
            abs(len(hit(under(FailingStatus(*HERE, 500, share=0.3, seed=seed)), 10_000)) - 3000)
            < 4 * (10_000 * 0.21) ** 0.5
        )
    assert hit(under(FailingStatus(*HERE, 500, share=0.5)), 50) != hit(
        under(FailingStatus(*HERE, 500, share=0.5, seed=1)), 50
    )
    assert hit(under(FailingStatus(*HERE, 500, share=0.5)), 50) != hit(
        under(FailingStatus(*HERE, 500, share=0.5), name="gpu-1"), 50
    )


@given(
    rate_per_s=st.floats(0, 1000),
    burst=st.integers(1, 20),
    gaps_s=st.lists(st.floats(0, 1), min_size=1, max_size=150),
)
def test_no_window_admits_more_than_burst_and_rate(rate_per_s: float, burst: int, gaps_s: list[float]) -> None:
    faults = under(OverCapacity(*HERE, rate_per_s, burst))
    admitted_s: list[float] = []
    now_s = 0.0
    for number, gap_s in enumerate(gaps_s):
        now_s += gap_s
        if isinstance(faults.arrive(now_s, number, 1), Serve):
            admitted_s.append(now_s)
    for first, start_s in enumerate(admitted_s):
        for last in range(first, len(admitted_s)):
            most = burst + rate_per_s * (admitted_s[last] - start_s)
            assert last - first + 1 <= most + 1e-6


@given(burst=st.integers(1, 20), rate_per_s=st.sampled_from([1, 2, 8, 64]))
def test_a_steady_flood_gets_all_that_there_is(burst: int, rate_per_s: int) -> None:
    """Steps of 1/1024 s, which add up exactly and divide the time between two tokens."""
    faults = under(OverCapacity(*HERE, rate_per_s, burst))
    served = sum(isinstance(faults.arrive(tick / 1024, tick, 1), Serve) for tick in range(2 * 1024 + 1))
    assert served == burst + 2 * rate_per_s


def test_capacity_refuses_with_503_and_time_does_not_run_backwards() -> None:
    faults = under(OverCapacity(*HERE, 1.0, 1))
    faults.change(5.0, Change(set=(OverCapacity(*HERE, 1.0, 1),)))
    assert [faults.arrive(at_s, 0, 1) for at_s in (5.0, 4.0, 5.5, 6.0)] == [
        Serve(),
        AnswerStatus(503, refused=True),
        AnswerStatus(503, refused=True),
        Serve(),
    ]


def test_slow_and_cut_go_together() -> None:
    assert decisions(under(Slow(*HERE, 3.0)), 1) == [Serve(3.0)]
    assert decisions(under(CutOff(*HERE, 2)), 1) == [Serve(1.0, 2)]
    assert decisions(under(CutOff(*HERE, 0), Slow(*HERE, 3.0)), 1) == [Serve(3.0, 0)]


def test_the_hanging_are_queued_until_they_leave_or_are_freed() -> None:
    faults = under(Hang(*HERE))
    assert decisions(faults, 3) == [Hold()] * 3
    reported = faults.reported_state(STATE)
    assert reported == replace(STATE, queue_depth=2 + 3, pending_tokens=50 + 30)
    faults.leave(1)
    faults.leave(99)
    assert faults.reported_state(STATE).queue_depth == 2 + 2
    assert faults.change(1.0, Change(set=(Hang(*HERE),))) == ()
    assert faults.change(2.0, Change(clear=frozenset({"slow"}))) == ()
    assert faults.change(3.0, Change(clear=frozenset({"hang"}))) == (0, 2)
    assert faults.reported_state(STATE) == STATE
    assert decisions(faults, 1) == [Serve()]


def test_not_ready_shows_in_the_state_only() -> None:
    faults = under(NotReady(*HERE))
    assert faults.reported_state(STATE) == replace(STATE, ready=False)
    assert decisions(faults, 1) == [Serve()]
    assert faults.report() == [{"kind": "not-ready", "hits": 1}]


def test_a_full_queue_and_a_full_memory_refuse() -> None:
    assert decisions(under(QueueFull(*HERE)), 1) == [AnswerStatus(503, refused=True, reason="queue_full")]
    assert decisions(under(QueueFull(*HERE, 2.5)), 1) == [AnswerStatus(503, 2.5, True, "queue_full")]
    faults = under(OutOfMemory(*HERE, first=1))
    assert decisions(faults, 2) == [AnswerStatus(500, refused=True, reason="out_of_memory"), Serve()]
    assert faults.reported_state(STATE).ready


DEAD = AnswerStatus(500, refused=True, reason="engine_dead")


def test_a_dead_engine_stays_dead_until_the_fault_is_taken_back() -> None:
    fault = OutOfMemory(*HERE, dead=True)
    assert Change((fault,)).kills and not Change((OutOfMemory(*HERE),)).kills
    faults = under(fault)
    assert not faults.reported_state(STATE).ready
    assert decisions(faults, 2) == [DEAD, DEAD]
    faults.change(1.0, Change(clear=frozenset({"slow"})))
    assert decisions(faults, 1) == [DEAD]
    faults.change(2.0, Change(clear=frozenset({"out-of-memory"})))
    assert faults.reported_state(STATE).ready
    assert decisions(faults, 1) == [Serve()]


def test_a_selective_one_kills_with_the_first_request_it_applies_to() -> None:
    fault = OutOfMemory(*HERE, dead=True, first=1, after=1)
    assert not Change((fault,)).kills
    faults = under(fault)
    assert decisions(faults, 1) == [Serve()]
    assert faults.reported_state(STATE).ready
    assert decisions(faults, 3) == [AnswerStatus(500, refused=True, reason="out_of_memory", kills=True), DEAD, DEAD]
    assert not faults.reported_state(STATE).ready
    assert faults.report()[0]["hits"] == 3
    faults.change(1.0, Change((fault,)))
    assert faults.reported_state(STATE).ready, "setting it again restarts it"
    assert decisions(faults, 1) == [Serve()]


def test_a_zombie_reports_that_some_wait_and_none_runs() -> None:
    faults = under(Zombie(*HERE))
    assert decisions(faults, 3) == [Hold()] * 3
    busy = replace(STATE, kv_blocks_total=10, kv_blocks_used=6, kv_blocks_cached=2, output_tokens_per_s=9.0)
    waiting = STATE.queue_depth + STATE.running + 3
    stuck = replace(busy, kv_blocks_used=0, kv_blocks_cached=0, output_tokens_per_s=0.0)
    assert faults.reported_state(busy) == replace(stuck, queue_depth=waiting, running=0, pending_tokens=50 + 30)
    assert faults.change(1.0, Change(clear=frozenset({"hang"}))) == ()
    assert faults.change(1.0, Change(clear=frozenset({"zombie"}))) == (0, 1, 2)
    assert faults.reported_state(busy) == busy


def test_the_stalled_are_freed_but_do_not_count_as_queued() -> None:
    faults = under(Stall(*HERE, 2))
    assert decisions(faults, 2) == [Serve(corruptions=(Stall(*HERE, 2),))] * 2
    assert faults.reported_state(STATE) == STATE
    faults.leave(0)
    assert faults.change(1.0, Change(clear=frozenset(KINDS))) == (1,)


def test_corruptions_combine_except_for_a_second_end() -> None:
    corruptions: tuple[Corruption, ...] = (
        Stall(*HERE, 1),
        Truncated(*HERE, 2),
        StreamError(*HERE, 5),
        Drip(*HERE, 0.1),
        Garbage(*HERE),
        WrongLength(*HERE, 3),
    )
    assert {type(corruption) for corruption in corruptions} == set(CORRUPTIONS)
    assert decisions(under(*corruptions[::-1]), 1) == [
        Serve(corruptions=(Stall(*HERE, 1), Drip(*HERE, 0.1), Garbage(*HERE)))
    ]
    assert decisions(under(*corruptions[1:]), 1) == [
        Serve(corruptions=(Truncated(*HERE, 2), Drip(*HERE, 0.1), Garbage(*HERE)))
    ]
    assert decisions(under(*corruptions[2:]), 1) == [
        Serve(corruptions=(StreamError(*HERE, 5), Drip(*HERE, 0.1), Garbage(*HERE)))
    ]
    assert decisions(under(*corruptions[3:]), 1) == [
        Serve(corruptions=(Drip(*HERE, 0.1), Garbage(*HERE), WrongLength(*HERE, 3)))
    ]
    faults = under(CutOff(*HERE, 4), *corruptions)
    assert decisions(faults, 1) == [Serve(1.0, 4, (Drip(*HERE, 0.1), Garbage(*HERE)))]
    assert faults.change(0.0, Change(clear=frozenset(KINDS))) == (), "a request that is cut does not stall"
    assert [fault["hits"] for fault in under(CutOff(*HERE, 4), Stall(*HERE, 1)).report()] == [0, 0]


def test_faults_of_reports_leave_requests_alone() -> None:
    faults = under(NotAlive(*HERE), BadMetrics(*HERE, "garbage"), Evict(*HERE))
    assert decisions(faults, 2) == [Serve()] * 2
    assert faults.metrics_mode == "garbage"
    assert faults.hit(NotAlive.kind)
    assert not faults.hit(NotReady.kind)
    hits = {fault["kind"]: fault["hits"] for fault in faults.report()}
    assert hits == {"not-alive": 1, "metrics": 0, "evict": 1}, "an eviction acts when it is set"
    assert (Change((Evict(*HERE),)).evicts, Change((Slow(*HERE, 2.0),)).evicts) == (True, False)


def test_frozen_figures_stay_but_readiness_does_not() -> None:
    faults = under(BadMetrics(*HERE, "frozen"), Hang(*HERE))
    assert Change((BadMetrics(*HERE, "frozen"),)).freezes and not Change((BadMetrics(*HERE, "missing"),)).freezes
    decisions(faults, 1)
    frozen = faults.freeze(STATE)
    assert frozen.queue_depth == STATE.queue_depth + 1
    decisions(faults, 3)
    later = replace(STATE, queue_depth=40, ready=False)
    assert faults.reported_state(later) == replace(frozen, ready=False)
    faults.change(0.0, Change(clear=frozenset({"metrics", "hang"})))
    assert faults.reported_state(later) == later


# --- in-band faults --------------------------------------------------------------------------------------


def test_a_request_brings_faults_for_itself_alone() -> None:
    faults = RequestFaults("gpu-0")
    assert faults.arrive(0.0, 0, 10, (FailingStatus(*HERE, 503),)) == AnswerStatus(503)
    assert faults.arrive(0.0, 1, 10, (Slow(*HERE, 2.0), Garbage(*HERE))) == Serve(2.0, None, (Garbage(*HERE),))
    assert faults.arrive(0.0, 2, 10) == Serve()
    assert faults.arrive(0.0, 3, 10, (Hang(*HERE),)) == Hold()
    assert faults.report() == []
    assert faults.reported_state(STATE).queue_depth == STATE.queue_depth + 1
    assert faults.change(0.0, Change(clear=frozenset(KINDS))) == (3,)


def test_what_a_request_brings_takes_the_place_of_its_kind() -> None:
    faults = under(Slow(*HERE, 2.0), FailingStatus(*HERE, 500, first=1, after=1))
    assert faults.arrive(0.0, 0, 10, (Slow(*HERE, 5.0),)) == Serve(5.0)
    assert faults.arrive(0.0, 1, 10, (FailingStatus(*HERE, 404),)) == AnswerStatus(404)
    assert faults.arrive(0.0, 2, 10) == AnswerStatus(500), "the request before did not reach the fault that is set"
    assert [fault["hits"] for fault in faults.report()] == [0, 1]


# --- together ---------------------------------------------------------------------------------------------


def test_the_order_of_precedence_and_the_counts() -> None:
    faults = under(
        CutOff(*HERE, 1), Slow(*HERE, 2.0), Hang(*HERE), OverCapacity(*HERE, 0.0, 2), FailingStatus(*HERE, 500, first=1)
    )
    assert decisions(faults, 4) == [AnswerStatus(500), Hold(), Hold(), AnswerStatus(503, refused=True)]
    hits = {fault["kind"]: fault["hits"] for fault in faults.report()}
    assert hits == {"status": 1, "capacity": 1, "hang": 2, "slow": 0, "cut": 0}
    assert faults.change(0.0, Change(set=(Slow(*HERE, 5.0),), clear=frozenset({"hang", "capacity"}))) == (1, 2)
    assert decisions(faults, 1) == [Serve(5.0, 1)]
    hits = {fault["kind"]: fault["hits"] for fault in faults.report()}
    assert hits == {"status": 1, "slow": 1, "cut": 1}


def test_all_that_is_answered_at_once_comes_in_its_order() -> None:
    them: tuple[RequestFault, ...] = (
        FailingStatus(*HERE, 500, first=1),
        OverCapacity(*HERE, 0.0, 5),
        QueueFull(*HERE, first=1),
        OutOfMemory(*HERE, first=1),
        Hang(*HERE, first=1),
        Zombie(*HERE, first=1),
    )
    assert tuple(type(fault) for fault in them) == IMMEDIATE
    faults = under(*them[::-1])
    assert decisions(faults, 7) == [
        AnswerStatus(500),
        AnswerStatus(503, None, True, "queue_full"),
        AnswerStatus(500, None, True, "out_of_memory"),
        Hold(),
        Hold(),
        Serve(),
        AnswerStatus(503, refused=True),
    ]
    assert {fault["hits"] for fault in faults.report()} == {1}


def test_clearing_comes_before_setting() -> None:
    faults = under(Slow(*HERE, 2.0))
    faults.change(0.0, Change(set=(Slow(*HERE, 3.0),), clear=frozenset(KINDS)))
    assert decisions(faults, 1) == [Serve(3.0)]
