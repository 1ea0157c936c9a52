"""Limits of scenario files: each number of each kind of step has a range. Messages: test_scenario_text.py."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import pytest

from harness.chaos.scenario_limits import ANY_NUMBER, check_limits
from harness.scenario import faults
from harness.scenario.model import Keys, Load, Scenario, Stream
from mockgpu.faults.selection import FaultError

LOAD = Load((Stream("traffic", 0.0, 100.0, 20, keys=Keys(5)),))
KINDS: tuple[type[Any], ...] = typing.get_args(faults.Step)

VALID = {"status": 503, "how": "frozen"}
"""Values of fields for which 1 is not valid."""


def numbers(kind: type[Any]) -> list[str]:
    """Fields of a kind of step whose values are numbers."""
    hints = typing.get_type_hints(kind)
    return [
        item.name
        for item in dataclasses.fields(kind)
        if item.name not in ANY_NUMBER and {int, float} & {hints[item.name], *typing.get_args(hints[item.name])}
    ]


def step(kind: type[Any], **values: Any) -> Any:
    """A step of this kind, with values for the fields that have no default."""
    hints = typing.get_type_hints(kind)
    needed = {
        item.name: VALID.get(item.name) or hints[item.name](1)
        for item in dataclasses.fields(kind)
        if item.default is dataclasses.MISSING and item.name != "backend"
    }
    return kind(**{"backend": "gpu-1", **needed, **values})


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in KINDS for name in numbers(kind)],
    ids=lambda it: getattr(it, "__name__", it),
)
@pytest.mark.parametrize("value", [-1, float("inf"), float("nan")])
def test_every_number_of_a_step_has_a_range(kind: type[Any], name: str, value: float) -> None:
    try:
        wrong = step(kind, **{name: value})
    except FaultError as error:  # a request fault checks its own settings
        assert str(error).startswith(f"fault {kind.kind}: {name} is {value}, expected a ")  # noqa: PT017
        return
    scenario = Scenario("mine", 4, LOAD, timeline=(wrong,))
    with pytest.raises(ValueError) as caught:
        check_limits(scenario)
    assert str(caught.value).startswith(f"scenario.timeline[0].{name}: saw {value}, expected a ")
    assert str(caught.value).endswith(f" ({kind.__name__} of 'gpu-1')")


def test_there_are_kinds() -> None:
    assert len(KINDS) > 20
    assert numbers(faults.Weigh) == ["at_s", "weight"]
