import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mockgpu.events import State
from mockgpu.faults import (
    KINDS,
    Answer,
    Capacity,
    Change,
    Cut,
    Fault,
    FaultError,
    Hang,
    Hold,
    Lot,
    NotReady,
    RequestFaults,
    Serve,
    Slow,
    Status,
    from_json,
    to_json,
)

FAULTS: tuple[Fault, ...] = (
    Status(500),
    Status(503, first=3, retry_after_s=2.5),
    Status(429, share=0.25, seed=7),
    Capacity(10.0, 2),
    Slow(4.0),
    Hang(),
    Cut(3),
    NotReady(),
)
STATE = State(True, 1000, 300, 100, 2, 4, 50, ("m",))


def under(*faults: Fault, name: str = "gpu-0") -> RequestFaults:
    made = RequestFaults(name)
    made.change(0.0, Change(set=faults))
    return made


def lots(faults: RequestFaults, count: int, at_s: float = 0.0) -> list[Lot]:
    return [faults.arrive(at_s, number, 10) for number in range(count)]


def hit(faults: RequestFaults, count: int) -> list[int]:
    """Positions of those that were answered by a fault."""
    return [place for place, lot in enumerate(lots(faults, count)) if isinstance(lot, Answer)]


# --- one by one -------------------------------------------------------------------------------------------


def test_without_faults_all_are_served() -> None:
    assert lots(RequestFaults("gpu-0"), 3) == [Serve()] * 3
    assert RequestFaults("gpu-0").report() == []
    assert RequestFaults("gpu-0").seen_in(STATE) is STATE


def test_a_status_answers_all_or_the_first_ones() -> None:
    assert lots(under(Status(500, retry_after_s=1.5)), 2) == [Answer(500, 1.5)] * 2
    assert hit(under(Status(500, first=3)), 10) == [0, 1, 2]
    assert hit(under(Status(500, first=0)), 10) == []


def test_setting_a_status_again_begins_anew() -> None:
    faults = under(Status(500, first=2))
    assert hit(faults, 5) == [0, 1]
    assert faults.report()[0]["hits"] == 2
    faults.change(1.0, Change(set=(Status(502, first=1),)))
    assert lots(faults, 2) == [Answer(502), Serve()]
    assert [fault["hits"] for fault in faults.report()] == [1]


@given(seed=st.integers(), share=st.floats(0, 1), name=st.sampled_from(["gpu-0", "gpu-1"]))
def test_a_share_is_a_matter_of_seed_name_and_position(seed: int, share: float, name: str) -> None:
    fault = Status(500, share=share, seed=seed)
    first = hit(under(fault, name=name), 200)
    assert hit(under(fault, name=name), 200) == first
    late = under(fault, name=name)
    slow_lots = [late.arrive(place * 17.3, place, 5) for place in range(200)]
    assert [place for place, lot in enumerate(slow_lots) if isinstance(lot, Answer)] == first
    # A larger share hits all that a smaller one does.
    assert set(first) <= set(hit(under(replace(fault, share=(1 + share) / 2), name=name), 200))


def test_a_share_is_about_that_share() -> None:
    assert hit(under(Status(500, share=0.0)), 100) == []
    assert hit(under(Status(500, share=1.0)), 100) == list(range(100))
    for seed in range(3):  # four standard deviations
        assert abs(len(hit(under(Status(500, share=0.3, seed=seed)), 10_000)) - 3000) < 4 * (10_000 * 0.21) ** 0.5
    assert hit(under(Status(500, share=0.5)), 50) != hit(under(Status(500, share=0.5, seed=1)), 50)
    assert hit(under(Status(500, share=0.5)), 50) != hit(under(Status(500, share=0.5), name="gpu-1"), 50)


@given(
    rate_per_s=st.floats(0, 1000),
    burst=st.integers(1, 20),
    gaps_s=st.lists(st.floats(0, 1), min_size=1, max_size=150),
)
def test_no_window_admits_more_than_burst_and_rate(rate_per_s: float, burst: int, gaps_s: list[float]) -> None:
    faults = under(Capacity(rate_per_s, burst))
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
    faults = under(Capacity(rate_per_s, burst))
    served = sum(isinstance(faults.arrive(tick / 1024, tick, 1), Serve) for tick in range(2 * 1024 + 1))
    assert served == burst + 2 * rate_per_s


def test_capacity_refuses_with_503_and_time_does_not_run_backwards() -> None:
    faults = under(Capacity(1.0, 1))
    faults.change(5.0, Change(set=(Capacity(1.0, 1),)))
    assert [faults.arrive(at_s, 0, 1) for at_s in (5.0, 4.0, 5.5, 6.0)] == [
        Serve(),
        Answer(503, refused=True),
        Answer(503, refused=True),
        Serve(),
    ]


def test_slow_and_cut_go_together() -> None:
    assert lots(under(Slow(3.0)), 1) == [Serve(3.0)]
    assert lots(under(Cut(2)), 1) == [Serve(1.0, 2)]
    assert lots(under(Cut(0), Slow(3.0)), 1) == [Serve(3.0, 0)]


def test_the_hanging_are_queued_until_they_leave_or_are_freed() -> None:
    faults = under(Hang())
    assert lots(faults, 3) == [Hold()] * 3
    seen = faults.seen_in(STATE)
    assert seen == replace(STATE, queue_depth=2 + 3, pending_tokens=50 + 30)
    faults.leave(1)
    faults.leave(99)
    assert faults.seen_in(STATE).queue_depth == 2 + 2
    assert faults.change(1.0, Change(set=(Hang(),))) == ()
    assert faults.change(2.0, Change(clear=frozenset({"slow"}))) == ()
    assert faults.change(3.0, Change(clear=frozenset({"hang"}))) == (0, 2)
    assert faults.seen_in(STATE) == STATE
    assert lots(faults, 1) == [Serve()]


def test_not_ready_shows_in_the_state_only() -> None:
    faults = under(NotReady())
    assert faults.seen_in(STATE) == replace(STATE, ready=False)
    assert lots(faults, 1) == [Serve()]
    assert faults.report() == [{"kind": "not-ready", "hits": 1}]


# --- together ---------------------------------------------------------------------------------------------


def test_the_order_of_precedence_and_the_counts() -> None:
    faults = under(Cut(1), Slow(2.0), Hang(), Capacity(0.0, 2), Status(500, first=1))
    assert lots(faults, 4) == [Answer(500), Hold(), Hold(), Answer(503, refused=True)]
    hits = {fault["kind"]: fault["hits"] for fault in faults.report()}
    assert hits == {"status": 1, "capacity": 1, "hang": 2, "slow": 0, "cut": 0}
    assert faults.change(0.0, Change(set=(Slow(5.0),), clear=frozenset({"hang", "capacity"}))) == (1, 2)
    assert lots(faults, 1) == [Serve(5.0, 1)]
    hits = {fault["kind"]: fault["hits"] for fault in faults.report()}
    assert hits == {"status": 1, "slow": 1, "cut": 1}


def test_clearing_comes_before_setting() -> None:
    faults = under(Slow(2.0))
    faults.change(0.0, Change(set=(Slow(3.0),), clear=frozenset(KINDS)))
    assert lots(faults, 1) == [Serve(3.0)]


# --- as JSON ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_json_comes_back_as_it_was(fault: Fault) -> None:
    assert from_json(json.loads(json.dumps(to_json(fault)))) == fault


def test_a_change_comes_back_as_it_was() -> None:
    change = Change(FAULTS[:1] + FAULTS[4:], frozenset({"slow", "cut"}))
    assert Change.from_json(json.loads(json.dumps(change.to_json()))) == change
    assert Change.from_json({}) == Change()
    assert Change.from_json({"clear": "all"}) == Change(clear=frozenset(KINDS))


def test_every_kind_has_a_case_here() -> None:
    assert {fault.kind for fault in FAULTS} == set(KINDS)


ALL = "status, capacity, slow, hang, cut, not-ready"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"set": [{"kind": "melt"}]}, f"no fault 'melt'; there are: {ALL}"),
        ({"set": [{}]}, f"no fault None; there are: {ALL}"),
        ({"set": [{"kind": ["slow"]}]}, f"no fault ['slow']; there are: {ALL}"),
        ({"set": ["slow"]}, f"a fault is 'slow', expected an object with a kind: {ALL}"),
        ({"set": {"kind": "slow"}}, f"set is {{'kind': 'slow'}}, expected a list of faults; kinds: {ALL}"),
        ({"clear": ["melt"]}, f"no fault 'melt'; there are: {ALL}"),
        ({"clear": "slow"}, f"clear is 'slow', expected \"all\" or a list of: {ALL}"),
        ({"heal": []}, "a change of faults has no 'heal', expected set or clear"),
        ({"set": [{"kind": "slow"}]}, "fault slow needs factor; its fields: factor"),
        ({"set": [{"kind": "hang", "for_s": 1}]}, "fault hang has no for_s; its fields: none"),
        ({"set": [{"kind": "slow", "factor": 0}]}, "fault slow: factor is 0, expected a number above 0"),
        ({"set": [{"kind": "slow", "factor": True}]}, "fault slow: factor is True, expected a number above 0"),
        ({"set": [{"kind": "status", "status": 200}]}, "status is 200, expected a status from 400 to 599"),
        ({"set": [{"kind": "status", "status": "500"}]}, "status is '500', expected a status from 400 to 599"),
        ({"set": [{"kind": "status", "status": 500, "share": 1.5}]}, "share is 1.5, expected a number from 0 to 1"),
        ({"set": [{"kind": "status", "status": 500, "first": -1}]}, "first is -1, expected a whole number from 0"),
        ({"set": [{"kind": "status", "status": 500, "first": 1, "share": 0.5}]}, "share is 0.5, expected none beside"),
        ({"set": [{"kind": "status", "status": 500, "retry_after_s": "x"}]}, "retry_after_s is 'x', expected a number"),
        ({"set": [{"kind": "status", "status": 500, "seed": 0.5}]}, "seed is 0.5, expected a whole number"),
        ({"set": [{"kind": "capacity", "rate_per_s": -1, "burst": 1}]}, "rate_per_s is -1, expected a number from 0"),
        ({"set": [{"kind": "capacity", "rate_per_s": 1, "burst": 0}]}, "burst is 0, expected a whole number from 1"),
        ({"set": [{"kind": "cut", "after_tokens": 1.5}]}, "after_tokens is 1.5, expected a whole number from 0"),
        ({"set": [{"kind": "capacity", "rate_per_s": float("nan"), "burst": 1}]}, "rate_per_s is nan, expected"),
    ],
)
def test_nonsense_is_told_in_one_line(data: dict[str, object], told: str) -> None:
    with pytest.raises(FaultError) as caught:
        Change.from_json(data)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
