"""Command-line syntax of faults."""

from __future__ import annotations

import typing
from dataclasses import fields

import pytest

from harness.live.faults.command_words import KINDS, describe, duration, kind_of, options_of, parse, usage_of
from harness.scenario.faults import (
    BadMetrics,
    FailingStatus,
    Hang,
    Kill,
    Latency,
    LimitData,
    OutOfMemory,
    Restart,
    Step,
    Weigh,
    WrongLength,
)
from harness.scenario.model import ClaimsError

EXAMPLES = {"float": "0.5", "int": "500", "bool": None, "str": "frozen"}


def test_every_step_of_the_timeline_is_a_kind() -> None:
    assert set(KINDS.values()) == set(typing.get_args(Step))
    assert {"kill", "slow-close", "limit-data", "failing-status", "out-of-memory", "leave", "drain"} <= set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_said_with_all_its_options(kind: str) -> None:
    words = []
    for option in options_of(KINDS[kind]):
        example = "3s" if option.is_duration else EXAMPLES[option.type.__name__]
        if option.field not in ("first", "every"):  # not beside a share
            words += [f"--{option.stem}"] if example is None else [f"--{option.stem}", example]
    step = parse("gpu-1", kind, words)
    assert (step.backend, kind_of(step)) == ("gpu-1", kind)
    assert all(f"--{option.stem}" in usage_of(KINDS[kind]) for option in options_of(KINDS[kind]))
    assert describe(step).startswith(kind)


@pytest.mark.parametrize(
    ("kind", "words", "step"),
    [
        ("kill", [], Kill("g", 0.0)),
        ("kill", ["--for", "2m"], Kill("g", 0.0, 120.0)),
        ("restart", [], Restart("g", 0.0)),
        ("latency", ["--latency-ms", "800", "--for", "10s"], Latency("g", 0.0, 0.8, 10.0)),
        ("latency", ["--latency-s=0.8", "--jitter", "20ms"], Latency("g", 0.0, 0.8, None, 0.02)),
        ("latency", ["--latency", "1.5s", "--jitter-ms=0", "--for-ms", "500"], Latency("g", 0.0, 1.5, 0.5, 0.0)),
        ("failing-status", ["--status", "503", "--share", "0.5"], FailingStatus("g", 0.0, 503, share=0.5)),
        ("out-of-memory", ["--dead", "--for-s", "1"], OutOfMemory("g", 0.0, dead=True, for_s=1.0)),
        ("hang", ["--every", "3", "--after", "10"], Hang("g", 0.0, every=3, after=10)),
        ("limit-data", ["--limit-bytes", "100"], LimitData("g", 0.0, 100)),
        ("wrong-length", ["--by", "-5"], WrongLength("g", 0.0, -5)),
        ("bad-metrics", ["--how", "garbage"], BadMetrics("g", 0.0, "garbage")),
        ("weigh", ["--weight", "3"], Weigh("g", 0.0, 3)),
    ],
)
def test_words_become_steps(kind: str, words: list[str], step: Step) -> None:
    made = parse("g", kind, words)
    assert made == step
    assert {item.name: type(getattr(made, item.name)) for item in fields(made)} == {
        item.name: type(getattr(step, item.name)) for item in fields(step)
    }


@pytest.mark.parametrize(
    ("kind", "words", "said"),
    [
        ("latancy", [], "no fault 'latancy'; did you mean latency?"),
        ("latency", [], "latency needs --latency 800ms: steelyard fault add gpu-2 latency --latency 800ms"),
        ("latency", ["--latancy-ms", "8"], "has no option '--latancy-ms'; did you mean --latency-ms"),
        ("latency", ["--latency", "800"], "--latency '800': expected a duration with its unit, as in 800ms, 10s or 2m"),
        ("latency", ["--latency", "-1s"], "--latency '-1s': expected a duration with its unit"),
        ("latency", ["--latency-ms", "fast"], "--latency-ms 'fast': expected a number"),
        ("latency", ["--latency-ms", "0"], "--latency-ms: expected a number above 0, not 0"),
        ("latency", ["--latency-ms", "nan"], "expected a number above 0"),
        ("latency", ["--latency-ms", "8", "--jitter-ms", "-1"], "--jitter-ms: expected a number from 0 on"),
        ("latency", ["--latency-ms"], "--latency-ms needs a value, as in --latency 800ms"),
        ("latency", ["--latency-ms", "8", "--latency", "8ms"], "--latency: latency is given twice"),
        ("latency", ["800"], "latency has no option '800'"),
        ("limit-data", ["--limit-bytes", "1.5"], "--limit-bytes '1.5': expected a whole number"),
        ("out-of-memory", ["--dead=no"], "--dead takes no value; leave 'no' out"),
        ("failing-status", ["--status", "200"], "failing-status: "),
        ("bad-metrics", ["--how", "odd"], "bad-metrics: "),
        ("slow", ["--factor", "2", "--seed", "1"], "slow has no option '--seed'"),
        ("evict", ["--for", "1s"], "evict takes no options, not '--for'"),
        ("leave", ["now"], "leave takes no options, not 'now'"),
    ],
)
def test_mistakes_are_named_with_what_is_near(kind: str, words: list[str], said: str) -> None:
    with pytest.raises(ClaimsError) as error:
        parse("gpu-2", kind, words)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_steps_are_told_in_words() -> None:
    assert describe(Latency("g", 0.0, 0.8, 10.0, 0.02)) == "latency 800 ms, jitter 20 ms"
    assert describe(Latency("g", 0.0, 0.8)) == "latency 800 ms"
    assert describe(Kill("g", 0.0, 3.0)) == "kill"
    assert describe(FailingStatus("g", 0.0, 503, share=0.5)) == "failing-status status 503, share 0.5"
    assert describe(OutOfMemory("g", 0.0, dead=True)) == "out-of-memory dead"
    assert [duration(value) for value in (0.0, 0.0125, 0.8, 1.0, 90.0)] == ["0 s", "12.5 ms", "800 ms", "1 s", "90 s"]
