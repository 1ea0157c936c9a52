"""Scenarios as JSON and as Python: both give back the very same scenario, and wrong files are one line."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path
from typing import Any

import pytest

from harness.claims import Failover
from harness.model import Scenario
from harness.programmes import PROGRAMMES
from harness.property import catalogue
from harness.scenario_text import from_json, to_json, to_python
from harness.swarm import random_programme
from harness.targets.reference import ReferenceTarget
from suites.chaos_evidence import under

NAMES = ("gpu-0", "gpu-1", "gpu-2", "gpu-3")
CLAIMS = ReferenceTarget().claims


def scenarios() -> list[Scenario]:
    """Every scenario of the suites, every named programme and twenty drawn ones."""
    found = [item.scenario(CLAIMS) for item in catalogue()]
    found += [under(name, make(NAMES, 0.75, 1.0), 4, CLAIMS) for name, make in PROGRAMMES.items()]
    return found + [under("random", random_programme(seed, NAMES, 4.0), 4, CLAIMS) for seed in range(20)]


def pasted(source: str, folder: Path) -> Any:
    """What `SCENARIO` is in a file with this source."""
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


def spoilt(**changes: Any) -> str:
    document = json.loads(to_json(under("x", PROGRAMMES["node-crash"](NAMES, 0.75, 1.0), 4, CLAIMS)))
    document["timeline"][0] |= changes
    return json.dumps(document)


def never_sent() -> str:
    document = json.loads(spoilt())
    document["load"]["streams"][0]["rate_per_s"] = 0.0
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not valid JSON"),
        ("[]", 'expected an object with "is": "Scenario"'),
        ("{}", '"is" says None'),
        ('{"is": "Scenaro"}', "did you mean Scenario"),
        ('{"is": "Scenario"}', "scenario.name: saw"),
        (spoilt(**{"is": "Kil"}), "scenario.timeline[0]: \"is\" says 'Kil'; did you mean Kill"),
        (spoilt(at="x"), "Kill has no 'at'; did you mean at_s"),
        (spoilt(at_s="soon"), "scenario.timeline[0].at_s: saw 'soon'"),
        (spoilt(backend="gpu-9"), "Kill of 'gpu-9'"),
        (spoilt(at_s=-1.0), "Kill of 'gpu-1': at_s -1.0: expected a time from 0 on"),
        (spoilt(at_s=math.nan), "Kill of 'gpu-1': at_s nan: expected"),
        (never_sent(), "stream 'traffic': rate_per_s 0.0: expected a number above 0"),
    ],
)
def test_wrong_files_are_one_line(text: str, told: str) -> None:
    with pytest.raises(ValueError) as caught:
        from_json(text)
    assert told in str(caught.value) and "\n" not in str(caught.value)
