"""Faults as JSON objects, and the messages for invalid ones."""

import json

import pytest

from mockgpu.faults.decisions import Change
from mockgpu.faults.json_form import HERE, from_json, to_json
from mockgpu.faults.kinds import (
    KINDS,
    FailingStatus,
    Garbage,
    OutOfMemory,
    OverCapacity,
    QueueFull,
    RequestFault,
    Stall,
    Truncated,
    WrongLength,
)
from mockgpu.faults.selection import FaultError
from tests.mockgpu.fault_samples import SAMPLES

FAULTS: tuple[RequestFault, ...] = (
    *SAMPLES.values(),
    FailingStatus(*HERE, 503, first=3, retry_after_s=2.5),
    FailingStatus(*HERE, 429, share=0.25, seed=7),
    FailingStatus(*HERE, 502, every=3, after=2),
    QueueFull(*HERE, 1.0, first=2),
    OutOfMemory(*HERE, dead=True),
    Stall(*HERE, 0, every=2),
    Garbage(*HERE, share=0.5),
    WrongLength(*HERE, -2),
)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_json_comes_back_as_it_was(fault: RequestFault) -> None:
    assert from_json(json.loads(json.dumps(to_json(fault)))) == fault


def test_what_scenarios_leave_out_has_its_default_in_json_too() -> None:
    assert from_json({"kind": "truncated"}) == Truncated(*HERE, 1)
    assert from_json({"kind": "capacity", "rate_per_s": 2}) == OverCapacity(*HERE, 2.0, 1)


def test_a_change_comes_back_as_it_was() -> None:
    change = Change(FAULTS, frozenset({"slow", "cut"}))
    assert Change.from_json(json.loads(json.dumps(change.to_json()))) == change
    assert Change.from_json({}) == Change()
    assert Change.from_json({"clear": "all"}) == Change(clear=frozenset(KINDS))


ALL = ", ".join(KINDS)
AIM = "first, every, share, after, seed"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"set": [{"kind": "melt"}]}, f"unknown fault 'melt', expected one of: {ALL}"),
        ({"set": [{}]}, f"unknown fault None, expected one of: {ALL}"),
        ({"set": [{"kind": ["slow"]}]}, f"unknown fault ['slow'], expected one of: {ALL}"),
        ({"set": ["slow"]}, f"a fault is 'slow', expected an object with a kind: {ALL}"),
        ({"set": {"kind": "slow"}}, f"set is {{'kind': 'slow'}}, expected a list of faults; kinds: {ALL}"),
        ({"clear": ["melt"]}, f"unknown fault 'melt', expected one of: {ALL}"),
        ({"clear": "slow"}, f"clear is 'slow', expected \"all\" or a list of: {ALL}"),
        ({"heal": []}, "a change of faults has no 'heal', expected set or clear"),
        ({"set": [{"kind": "slow"}]}, f"fault slow needs factor; its fields: factor, {AIM}"),
        ({"set": [{"kind": "hang", "for_s": 1}]}, f"fault hang has no for_s; its fields: {AIM}"),
        ({"set": [{"kind": "not-ready", "for_s": 1}]}, "fault not-ready has no for_s; its fields: none"),
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
        ({"set": [{"kind": "capacity", "rate_per_s": 10**400, "burst": 1}]}, "expected a number from 0"),
        ({"set": [{"kind": "slow", "factor": 1e300}]}, "factor is 1e+300, expected a number above 0, at most 1000000"),
        ({"set": [{"kind": "hang", "every": 0}]}, "every is 0, expected a whole number from 1"),
        ({"set": [{"kind": "hang", "every": 2, "first": 1}]}, "fault hang: every is 2, expected none beside first"),
        ({"set": [{"kind": "zombie", "after": -1}]}, "after is -1, expected a whole number from 0"),
        ({"set": [{"kind": "queue-full", "retry_after_s": -1}]}, "retry_after_s is -1, expected a number from 0"),
        ({"set": [{"kind": "out-of-memory", "dead": 1}]}, "dead is 1, expected true or false"),
        ({"set": [{"kind": "stall", "after_tokens": -1}]}, "fault stall: after_tokens is -1, expected a whole number"),
        ({"set": [{"kind": "drip", "backend": "gpu-0"}]}, "fault drip has no backend; its fields: gap_s, first"),
        ({"set": [{"kind": "stream-error", "after_tokens": -1}]}, "fault stream-error: after_tokens is -1, expected a"),
        ({"set": [{"kind": "drip", "gap_s": 4000}]}, "gap_s is 4000, expected a number from 0 to 3600"),
        ({"set": [{"kind": "wrong-length", "by": 0}]}, "by is 0, expected a whole number from -1000000000 to"),
        ({"set": [{"kind": "metrics", "how": "late"}]}, "how is 'late', expected garbage, missing or frozen"),
    ],
)
def test_nonsense_is_told_in_one_line(data: dict[str, object], message: str) -> None:
    with pytest.raises(FaultError) as caught:
        Change.from_json(data)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
