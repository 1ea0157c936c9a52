"""A crash as one line, with the location in the user's code."""

from __future__ import annotations

import json

import pytest

from harness.balancer.core.loading import load_class
from harness.gateway.crash_report import crash_line
from harness.gateway.protocol import Request, TimerFired
from harness.scenario.model import Kind

HERE = "test_crash_report.py"


class Awkward:
    """Fails inside other code."""

    def pick(self, request: Request) -> str:
        """Raises in the standard library."""
        return str(json.loads("{"))

    def load(self) -> None:
        """Raises in the harness."""
        load_class("python:")


def crashed(error: BaseException) -> BaseException:
    """The error after it was raised here."""
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_what_where_and_on_which_event() -> None:
    error = crashed(ValueError("out of ideas"))
    line = crash_line(error, TimerFired(1))
    assert error.__traceback__ is not None
    assert line == f"ValueError: out of ideas ({HERE}:{error.__traceback__.tb_lineno}, on TimerFired)"
    assert crash_line(error).endswith(f"({HERE}:{error.__traceback__.tb_lineno})")


def test_it_stays_one_line() -> None:
    assert crash_line(crashed(ValueError("two\n  lines"))).startswith("ValueError: two lines (")
    assert crash_line(crashed(SystemExit())).startswith("SystemExit (")


def test_without_a_place() -> None:
    assert crash_line(ValueError("never raised")) == "ValueError: never raised"
    assert crash_line(ValueError("never raised"), TimerFired(1)) == "ValueError: never raised (on TimerFired)"


@pytest.mark.parametrize("name", ["pick", "load"])
def test_the_place_is_in_the_code_that_called_pythons_or_ours(name: str) -> None:
    method = getattr(Awkward(), name)
    with pytest.raises(Exception) as caught:
        method(*[Request(1, 1, Kind.INFERENCE, "POST", "m")] * (name == "pick"))
    body = method.__code__.co_firstlineno + 2
    assert f"({HERE}:{body})" in crash_line(caught.value)
