"""Scenarios as data: scaled durations, digests, and members after changes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import pytest

from harness.claims.features import Backoff, Breaker, Ejection, HealthChecks
from harness.scenario.fast_dataclass import canonical, scale_durations
from harness.scenario.faults import (
    Blackhole,
    Down,
    FailingStatus,
    Join,
    Kill,
    Latency,
    Leave,
    OverCapacity,
    Reset,
    Slow,
    Step,
    is_fault,
)
from harness.scenario.model import Connections, Keys, Kind, Load, Method, ModelServer, Phase, Scenario, Stream
from mockgpu.faults.selection import FaultError


def scenario() -> Scenario:
    """A scenario with a value in every field, numbers distinct where it matters."""
    streams = (
        Stream(
            "first",
            0.25,
            80.0,
            400,
            keys=Keys(30, "zipf", 1.5),
            arrivals="poisson",
            kind=Kind.INFERENCE,
            methods=(Method.POST, Method.GET),
            connections=Connections.ONE,
            timeout_s=3.0,
        ),
        Stream("second", 2.0, 10.0, 20, kind=Kind.UPDATE),
    )
    return Scenario(
        "whole",
        backends=3,
        load=Load(streams, "json:model"),
        spare=1,
        server=ModelServer(weights_mb=500, load_s=0.5),
        timeline=(
            Kill("gpu-0", 1.0, for_s=0.5),
            Down("gpu-1", 1.5),
            Latency("gpu-1", 2.0, latency_s=0.05, for_s=1.0),
            Blackhole("gpu-2", 2.5, for_s=0.75),
            Reset("gpu-2", 3.0),
            FailingStatus("gpu-1", 3.0, 503, share=0.25, retry_after_s=0.5),
            OverCapacity("gpu-1", 3.0, rate_per_s=20.0, burst=5, for_s=1.0),
            Slow("gpu-1", 3.0, factor=3.0),
            Leave("gpu-0", 3.5),
            Join("gpu-3", 4.0),
        ),
        phases=(Phase("before", 0.0, 1.0), Phase("after", 1.0, 9.0)),
        intervals_s=(0.5, 1.0),
        off=frozenset({"retry", "hedge"}),
    )


# --- stretching -------------------------------------------------------------------------------------------


def test_stretching_scales_durations_and_rates_and_nothing_else() -> None:
    """The expectation is written out field by field, so that a forgotten field fails."""
    first, second = scenario().load.streams
    expected = replace(
        scenario(),
        load=Load(
            (
                replace(first, start_s=1.0, rate_per_s=20.0, timeout_s=12.0),
                replace(second, start_s=8.0, rate_per_s=2.5, timeout_s=40.0),
            ),
            "json:model",
        ),
        server=ModelServer(
            weights_mb=500, load_s=2.0, update_s=0.004, prefill_tokens_per_s=4000.0, decode_step_s=0.002
        ),
        timeline=(
            Kill("gpu-0", 4.0, for_s=2.0),
            Down("gpu-1", 6.0),
            Latency("gpu-1", 8.0, latency_s=0.2, for_s=4.0),
            Blackhole("gpu-2", 10.0, for_s=3.0),
            Reset("gpu-2", 12.0),
            FailingStatus("gpu-1", 12.0, 503, share=0.25, retry_after_s=2.0),
            OverCapacity("gpu-1", 12.0, rate_per_s=5.0, burst=5, for_s=4.0),
            Slow("gpu-1", 12.0, factor=3.0),
            Leave("gpu-0", 14.0),
            Join("gpu-3", 16.0),
        ),
        phases=(Phase("before", 0.0, 4.0), Phase("after", 4.0, 36.0)),
        intervals_s=(2.0, 4.0),
    )
    assert scale_durations(scenario(), 4.0) == expected
    assert scale_durations(scenario(), 4.0).end_s == 4.0 * scenario().end_s


def test_claims_stretch_alike() -> None:
    breaker = Breaker(failures=5, open_s=2.0, probes=1, backoff=Backoff(multiplier=2.0, max_s=60.0, jitter=0.2))
    longer = replace(
        breaker, open_s=4.0, window_s=2 * breaker.window_s, backoff=Backoff(multiplier=2.0, max_s=120.0, jitter=0.2)
    )
    assert scale_durations(breaker, 2.0) == longer
    ejection, checks = scale_durations(
        (Ejection(failures=3, open_s=1.0), HealthChecks(interval_s=0.5, timeout_s=1.0)), 2.0
    )
    assert (ejection.failures, ejection.open_s) == (3, 2.0)
    assert (checks.interval_s, checks.timeout_s) == (1.0, 2.0)


def test_twice_and_half_is_as_before() -> None:
    again = scale_durations(scale_durations(scenario(), 2.0), 0.5)
    assert again == scenario()
    assert again.digest() == scenario().digest()


def test_stretching_by_one_changes_nothing() -> None:
    assert scale_durations(scenario(), 1.0) == scenario()


@pytest.mark.parametrize("value", [3.0, "text", None, Kind.UPDATE, frozenset({"retry"})])
def test_what_has_no_durations_is_left_alone(value: object) -> None:
    assert scale_durations(value, 2.0) is value


def test_a_value_without_durations_is_the_same_object() -> None:
    keys = Keys(3)
    assert scale_durations(keys, 2.0) is keys


# --- digests ----------------------------------------------------------------------------------------------


def test_scenarios_built_apart_have_equal_digests() -> None:
    assert scenario() is not scenario()
    assert scenario().digest() == scenario().digest()
    assert len(scenario().digest()) == 16


def test_equal_numbers_have_equal_digests() -> None:
    whole, decimal = Stream("s", 1, 50, 100), Stream("s", 1.0, 50.0, 100)
    assert whole == decimal
    assert Scenario("s", 2, Load((whole,))).digest() == Scenario("s", 2, Load((decimal,))).digest()


def test_the_digest_is_the_same_in_every_process() -> None:
    """The order of a set of strings differs between processes unless the hash seed is set."""
    script = (
        "from harness.scenario.model import Load, Scenario\n"
        "print(Scenario('s', 2, Load(()), off=frozenset({'retry', 'hedge', 'breaker', 'ejection'})).digest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1


def others(value: Any) -> list[Any]:
    """Copies of `value` that differ in one field each, for every field; without those that cannot be made."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = []
        for item in dataclasses.fields(value):
            for other in others(getattr(value, item.name)):
                with contextlib.suppress(FaultError):
                    found.append(replace(value, **{item.name: other}))
        return found
    match value:
        case Enum():
            return [other for other in type(value) if other is not value]
        case tuple():
            places = [(index, other) for index, item in enumerate(value) for other in others(item)]
            return [value[:-1], *((*value[:index], other, *value[index + 1 :]) for index, other in places)]
        case frozenset():
            return [value - {next(iter(value))}, value | {"breaker"}]
        case str():
            return [value + "x"]
        case None:
            return [7]
        case _:
            return [value + 1, None]


def test_any_change_anywhere_changes_the_digest() -> None:
    changed = others(scenario())
    assert len(changed) > 100
    assert len({other.digest() for other in changed} | {scenario().digest()}) == len(changed) + 1


def test_steps_that_differ_in_kind_alone_are_told_apart() -> None:
    kinds: list[Step] = [kind("gpu-0", 1.0) for kind in (Kill, Down, Blackhole, Reset, Leave, Join)]
    assert len({Scenario("s", 1, Load(()), timeline=(step,)).digest() for step in kinds}) == len(kinds)


@dataclass(frozen=True)
class Example:
    pair: tuple[float, int]
    names: frozenset[str]
    kind: Kind
    text: Connections


def test_canonical_is_plain_and_sorted() -> None:
    plain = canonical({"b": [Example((2.0, 1), frozenset("cab"), Kind.UPDATE, Connections.ONE)], "a": None, 3: 0.5})
    assert json.loads(json.dumps(plain)) == {
        "b": [{"is": "Example", "pair": [2, 1], "names": ["a", "b", "c"], "kind": 1, "text": "one"}],
        "a": None,
        "3": 0.5,
    }


# --- members and looking up -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "members"),
    [
        ((), "0 1 2 3"),
        ((Leave("gpu-1", 1.0),), "2 3 0"),
        ((Leave("gpu-1", 1.0), Join("gpu-1", 2.0)), "3 1 0 2"),
        ((Join("gpu-4", 1.0),), "1 2 3 4 0"),
        ((Leave("gpu-0", 1.0), Leave("gpu-1", 2.0)), "2 3"),
        ((Leave("gpu-0", 1.0), Leave("gpu-1", 2.0), Leave("gpu-2", 3.0)), "3"),
        (tuple(Leave(f"gpu-{number}", 1.0) for number in range(4)), ""),
    ],
)
def test_members_rotate_with_every_change(changes: tuple[Leave | Join, ...], members: str) -> None:
    expected = tuple(f"gpu-{number}" for number in members.split())
    assert Scenario("s", backends=4, load=Load(()), spare=1).members(changes) == expected


def test_spare_backends_have_names_but_are_no_members() -> None:
    assert scenario().backend_ids == ("gpu-0", "gpu-1", "gpu-2", "gpu-3")
    assert scenario().members(()) == ("gpu-0", "gpu-1", "gpu-2")


def test_the_end_is_that_of_the_last_stream_phase_or_step() -> None:
    stream = Stream("s", 1.0, 10.0, 30)
    assert stream.end_s == 4.0
    bare = Scenario("s", 1, Load((stream,)))
    assert bare.end_s == 4.0
    assert replace(bare, phases=(Phase("late", 0.0, 6.0),)).end_s == 6.0
    assert replace(bare, timeline=(Join("gpu-0", 7.0),)).end_s == 7.0
    assert Scenario("s", 1, Load(())).end_s == 0.0


def test_streams_and_phases_are_found_by_name() -> None:
    assert scenario().load.index("second") == 1
    assert scenario().phase("after") == Phase("after", 1.0, 9.0)
    with pytest.raises(KeyError, match=r"no phase 'during'; there are .*'before', 'after'"):
        scenario().phase("during")


def test_faults_are_told_from_changes_of_membership() -> None:
    assert [is_fault(step) for step in scenario().timeline] == [True] * 8 + [False] * 2


def test_only_a_kill_needs_processes() -> None:
    assert scenario().kills
    assert not replace(scenario(), timeline=scenario().timeline[1:]).kills


def test_the_server_is_a_setup_of_the_mock() -> None:
    server = ModelServer(1000, 2, None, 3, 0.25, 400, 1.5, 100.0, 0.125)
    setup = json.loads(server.as_setup())
    message = {**setup["gpu"], **setup["default_model"]}
    assert {name: message[name] for name in dataclasses.asdict(server)} == dataclasses.asdict(server)
    assert setup["models"] == []
