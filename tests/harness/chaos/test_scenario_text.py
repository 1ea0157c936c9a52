"""Scenarios as JSON and Python: both round-trip exactly, and invalid files are errors of one line."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path
from typing import Any

import pytest

from harness.chaos.fault_plans import FAULT_PLANS
from harness.chaos.scenario_text import from_json, to_python
from harness.chaos.swarm import random_fault_plan
from harness.claims.features import Failover
from harness.property.declare import catalogue
from harness.scenario.arrival_rates import OnOff, Recorded
from harness.scenario.faults import Kill, Latency, Leave, Slicer, Slow, Step, Weigh
from harness.scenario.model import Chats, Keys, Load, Scenario, Stream
from harness.scenario.request_mix import Content, Empirical, Fixed, LongTail, Replay, Sessions
from harness.scenario.text_form import to_json
from harness.targets.reference import ReferenceTarget
from suites.chaos.scenarios import under

NAMES = ("gpu-0", "gpu-1", "gpu-2", "gpu-3")
CLAIMS = ReferenceTarget().claims


def scenarios() -> list[Scenario]:
    """Every scenario of the suites, every named fault plan and twenty random ones."""
    found = [item.scenario(CLAIMS) for item in catalogue()]
    found += [under(name, make(NAMES, 0.75, 1.0), 4, CLAIMS) for name, make in FAULT_PLANS.items()]
    return found + [under("random", random_fault_plan(seed, NAMES, 4.0), 4, CLAIMS) for seed in range(20)]


def pasted(source: str, folder: Path) -> Any:
    """The value of `SCENARIO` in a file with this source."""
    (folder / "ready.py").write_text(source, encoding="utf-8")
    return runpy.run_path(str(folder / "ready.py"))["SCENARIO"]


def test_both_give_back_the_same_scenario(tmp_path: Path) -> None:
    assert Failover in CLAIMS
    for scenario in scenarios():
        assert from_json(to_json(scenario)) == scenario
        source = to_python(scenario)
        again = pasted(source, tmp_path)
        assert again == scenario and again.digest() == scenario.digest()
        assert max(map(len, source.splitlines())) <= 120


def test_a_scenario_that_is_off_something_keeps_it(tmp_path: Path) -> None:
    scenario = Scenario("x", 2, scenarios()[0].load, off=frozenset({"retry", "hedge"}))
    assert from_json(to_json(scenario)).off == {"retry", "hedge"}
    assert pasted(to_python(scenario), tmp_path).off == {"retry", "hedge"}


def corrupted(**changes: Any) -> str:
    """A scenario with `changes` to its only step."""
    document = json.loads(to_json(under("x", FAULT_PLANS["node-crash"](NAMES, 0.75, 1.0), 4, CLAIMS)))
    document["timeline"][0] |= changes
    return json.dumps(document)


def with_steps(*steps: Step, spare: int = 0) -> str:
    return to_json(Scenario("x", 4, scenarios()[0].load, spare, timeline=steps))


def with_stream(**changes: Any) -> str:
    """A scenario with `changes` to its only stream, `traffic`; invalid fields are written unchanged."""
    document = json.loads(to_json(Scenario("x", 4, Load((Stream("traffic", 0.0, 100.0, 20, keys=Keys(5)),)))))
    document["load"]["streams"][0] |= changes
    return json.dumps(document)


def with_scenario(**changes: Any) -> str:
    return json.dumps(json.loads(corrupted()) | changes)


def keys(**changes: Any) -> dict[str, Any]:
    return {"keys": {"is": "Keys", "count": 5} | changes}


def chats(**changes: Any) -> dict[str, Any]:
    return {"chats": {"is": "Chats", "count": 3, "think_s": 0.1, "duration_s": 2.0} | changes}


def content(**changes: Any) -> dict[str, Any]:
    return {"content": {"is": "Content"} | changes}


SPIKE = {"is": "Spike", "rate_per_s": 5.0, "peak_per_s": 50.0, "at_s": 1.0, "for_s": 2.0, "duration_s": 2.5}
BURSTS = {"is": "Bursts", "rate_per_s": 1.0, "size": 5.0, "every_s": 1e-8, "burst_s": 1e-9, "duration_s": 100.0}
LONG = {"is": "Fixed", "length": 10**9}
STREAM = "scenario.load.streams[0]."
DRAWN = "scenario.load.streams[0]: its requests cannot be generated: "
FAULT = "scenario.timeline[0]: "
AT = "scenario.timeline[0]."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("1" * 5000, "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 700 + "]" * 700, "nested too deeply"),
        ("[]", 'expected an object with "is": "Scenario"'),
        ("{}", '"is" says None'),
        ('{"is": "Scenaro"}', "did you mean Scenario"),
        ('{"is": "Scenario"}', "scenario.name is missing; expected text"),
        (corrupted(**{"is": "Kil"}), "scenario.timeline[0]: \"is\" says 'Kil'; did you mean Kill"),
        (corrupted(at="x"), "Kill has no 'at'; did you mean at_s"),
        (corrupted(at_s="soon"), "scenario.timeline[0].at_s: saw 'soon', expected a number"),
        (corrupted(at_s="1"), "scenario.timeline[0].at_s: saw '1', expected a number"),
        (corrupted(at_s=True), "scenario.timeline[0].at_s: saw true, expected a number"),
        (with_stream(kind=False), "scenario.load.streams[0].kind: saw false, expected a number"),
        (with_stream(kind=7), "scenario.load.streams[0].kind: saw 7, expected one of 0, 1"),
        (with_stream(connections="ketp"), "scenario.load.streams[0].connections: saw 'ketp'; did you mean kept"),
        (corrupted(backend="gpu-9"), FAULT + "Kill of 'gpu-9'"),
        (corrupted(at_s=-1.0), AT + "at_s: saw -1.0, expected a number of at least 0 (Kill of 'gpu-1')"),
        (corrupted(at_s=math.nan), AT + "at_s: saw nan, expected a finite number of at least 0"),
        (corrupted(for_s=-1.0), AT + "for_s: saw -1.0, expected a number from 0 to 1000000000 (Kill of"),
        (with_steps(Latency("gpu-1", 1.0, -0.1)), AT + "latency_s: saw -0.1, expected a number from 0 to"),
        (with_steps(Latency("gpu-1", 1.0, math.inf)), AT + "latency_s: saw inf, expected a number from 0 to"),
        (with_steps(Slicer("gpu-1", 1.0, 0, 0.1)), AT + "slice_bytes: saw 0, expected a number from 1 to"),
        (with_steps(Weigh("gpu-1", 1.0, 0)), AT + "weight: saw 0, expected a number from 1 to"),
        (
            with_steps(Weigh("gpu-1", 1.0, 10**12)),
            AT + "weight: saw 1000000000000, expected a number from 1 to 1000000000",
        ),
        (with_steps(Leave("gpu-1", 1.0), Leave("gpu-1", 2.0)), "Leave of 'gpu-1' at 2 s: it is not a member then"),
        (
            with_steps(Leave("gpu-4", 1.0), spare=1),
            "Leave of 'gpu-4' at 1 s: it is not a member then; let it join first",
        ),
        (with_steps(Kill("gpu-1", 1.0, 1.0), Slow("gpu-1", 1.5, 2.0)), "scenario.timeline: Slow of gpu-1 at 1.5 s"),
        (with_steps(Kill("gpu-1", 4000.0)), "scenario: it lasts 4000 s, expected 3600 s at most"),
        (with_scenario(backends=0), "scenario.backends: saw 0, expected a whole number from 1 to 28"),
        (with_scenario(spare=-1), "scenario.spare: saw -1, expected a whole number from 0 to 28"),
        (
            with_scenario(load={"is": "Load", "streams": []}),
            "scenario.load.streams: saw [], expected a list of at least 1",
        ),
        (with_scenario(backends=25, spare=4), "28 in all at most"),
        (with_scenario(intervals_s=[0.5, 0.0]), "scenario.intervals_s[1]: saw 0.0, expected a number above 0"),
        (
            with_scenario(phases=[{"is": "Phase", "name": "a", "start_s": 2.0, "end_s": 1.0}]),
            "scenario.phases[0]: from",
        ),
        (with_stream(rate_per_s=0.0), STREAM + "rate_per_s: saw 0.0, expected a number above 0 (stream 'traffic')"),
        (with_stream(start_s=-1.0), STREAM + "start_s: saw -1.0, expected a number of at least 0"),
        (with_stream(timeout_s=0.0), STREAM + "timeout_s: saw 0.0, expected a number above 0"),
        (with_stream(prompt_tokens=-3), STREAM + "prompt_tokens: saw -3, expected a whole number from 0 to 1000000"),
        (with_stream(output_tokens=-1), STREAM + "output_tokens: saw -1, expected a whole number from 0"),
        (with_stream(prompt_tokens=10**9), "prompt_tokens: saw 1000000000, expected a whole number from 0 to 1000000"),
        (with_stream(**content(prompt=LONG)), "a request of 1000000000 tokens: expected 1000000 at most"),
        (with_stream(**chats(), **content(output=LONG)), "a request of 1000000000 tokens"),
        (with_stream(methods=[]), STREAM + "methods: saw [], expected a list of at least 1"),
        (
            with_stream(requests=10**12),
            STREAM + "requests: saw 1000000000000, expected a whole number from 0 to 200000",
        ),
        (with_stream(requests=-1), STREAM + "requests: saw -1, expected"),
        (with_stream(arrivals="sometimes"), DRAWN + "arrivals 'sometimes': expected constant or poisson"),
        (with_stream(shape=SPIKE), "scenario.load.streams[0].shape: the spike ends at 3 s, after duration_s 2.5"),
        (with_stream(shape=SPIKE | {"duration_s": 1e7}), STREAM + "shape: 50000090 requests: expected"),
        (with_stream(shape=BURSTS), STREAM + "shape: 200001 pieces: expected 0 to 200000"),
        (with_stream(**keys(count=0)), STREAM + "keys.count: saw 0, expected a whole number from 1 to 200000"),
        (with_stream(**keys(count=10**9)), STREAM + "keys.count: saw 1000000000, expected"),
        (with_stream(**keys(pick="best")), DRAWN + "keys picked by 'best': expected sweep"),
        (with_stream(**keys(pick="zipf", zipf_exponent=1e9)), DRAWN),
        (with_stream(**keys(names=["a"])), DRAWN + "1 names for 5 keys"),
        (with_stream(**chats(count=0)), STREAM + "chats.count: saw 0, expected a whole number from 1 to 10000"),
        (with_stream(**chats(count=10**9)), STREAM + "chats.count: saw 1000000000, expected"),
        (with_stream(**chats(duration_s=0.0)), STREAM + "chats.duration_s: saw 0.0, expected a number above 0"),
        (with_stream(**chats(think_s=-1.0)), DRAWN + "stream 'traffic': 3 chats that think -1 s"),
        (with_stream(**chats(), requests=0), DRAWN + "stream 'traffic': 3 chats"),
        (with_stream(**content(prompt={"is": "Fixed", "length": -3})), "content.prompt: length must be 0 or more"),
        (with_stream(**content(high_share=2.0)), "streams[0].content: high_share must be from 0 to 1, not 2"),
        (with_stream(**content(replay={"is": "Replay", "keys": [1, 2]})), DRAWN + "replay: 2 keys for 20 requests"),
        (
            with_stream(**content(replay={"is": "Replay", "keys": [9] * 20}), **keys(names=list("abcde"))),
            DRAWN + "tuple index out of range",
        ),
        (
            with_stream(**content(sessions={"is": "Sessions", "count": 10**9, "turns": 2})),
            "content.sessions.count: saw 1000000000, expected a whole number from 1 to",
        ),
        (
            with_stream(**content(sessions={"is": "Sessions", "count": 2, "turns": 10**9})),
            "content.sessions.turns: saw 1000000000, expected a whole number from 1 to 1000",
        ),
        (
            with_scenario(load={"is": "Load", "streams": [], "key_carrier": "head"}),
            "scenario.load.key_carrier: saw 'head', expected header:NAME, json:PATH",
        ),
    ],
)
def test_wrong_files_are_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        from_json(text)
    assert message in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 250


def test_of_what_a_stream_asks_for_nothing_gets_lost(tmp_path: Path) -> None:
    """Lengths, sessions, shapes and chats are defined in other modules than scenarios."""
    content = Content(prompt=LongTail(20.0), output=Empirical((1, 2)), payload_bytes=Fixed(9), sessions=Sessions(2, 3))
    shaped = Stream("shaped", 0.0, 100.0, 20, shape=OnOff(50.0, 0.2, 0.2, 2.0), content=content)
    closed = Stream("crowd", 0.0, 100.0, 20, chats=Chats(5, 0.1, 2.0), content=content)
    replayed = Stream("old", 0.0, 1.0, 2, shape=Recorded((0.5, 1.0)), content=Content(replay=Replay((3, 4))))
    scenario = Scenario("x", 2, Load((shaped, closed, replayed)))
    assert from_json(to_json(scenario)) == scenario
    assert pasted(to_python(scenario), tmp_path) == scenario


def test_the_longest_chaos_of_the_command_line_is_not_too_long() -> None:
    steps = random_fault_plan(1, NAMES, 600.0)
    scenario = under("random", steps, 8, CLAIMS)
    assert from_json(to_json(scenario)) == scenario
