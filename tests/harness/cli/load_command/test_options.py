"""The options of `steelyard load`: parsing, and messages for invalid values."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.cli.load_command.options import seconds_of
from harness.load.workloads.profiles import PROFILES
from harness.scenario.model import ClaimsError


@pytest.mark.parametrize(
    ("text", "value_s"), [("10", 10.0), ("0.5", 0.5), ("10s", 10.0), ("500ms", 0.5), (" 2m", 120.0), ("1e2", 100.0)]
)
def test_times_with_and_without_a_unit(text: str, value_s: float) -> None:
    assert seconds_of("--duration", text) == pytest.approx(value_s)


def test_only_to_think_may_take_no_time() -> None:
    assert seconds_of("--think-time", "0", or_zero=True) == seconds_of("--think-time", "0ms", or_zero=True) == 0.0
    with pytest.raises(ClaimsError, match="--think-time '-1': expected a time of at least 0"):
        seconds_of("--think-time", "-1", or_zero=True)


def refused(folder: Path, *words: str) -> str:
    """The error line of a command that must end with exit code 2 and write nothing."""
    done = CliRunner().invoke(app, ["load", "--out", str(folder / "out.json"), *words])
    assert isinstance(done.exception, ClaimsError), (done.output, done.exception)
    assert not list(folder.iterdir()), "nothing was made"
    assert "\n" not in str(done.exception)
    return str(done.exception)


def test_help_lists_the_profiles() -> None:
    done = CliRunner().invoke(app, ["load", "--profile", "help"])
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.output.splitlines()] == list(PROFILES)
    assert "Five times the usual rate" in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--profile", "spyke"), "did you mean"),
        (("--fail-if", "p99 > 5"), "no unit"),
        (("--protocol", "grpc"), "--protocol 'grpc' is unknown"),
        (("--profile", "mixed", "--protocol", "openai"), "with --protocol openai: protocol openai has POST"),
        (("--trace", "nowhere.csv"), "nowhere.csv"),
        (("--trace", "t.csv", "--profile", "spike"), "--trace t.csv replaces --profile spike; leave one"),
        (("--rate", "0"), "expected a number above 0"),
        (("--duration", "0"), "--duration '0': expected a time above 0"),
        (("--duration", "nan"), "expected a time above 0"),
        (("--duration", "10x"), "or with its unit, as in 500ms"),
        (("--timeout", "-1"), "--timeout '-1': expected a time above 0"),
        (("--search", "p99 > 5ms"), "no upper bound"),
        (("--search", "p99 <= 5ms", "--from", "9", "--to", "3"), "the lower first"),
        (("--search", "p99 <= 5ms", "--rate", "3"), "leave out --rate"),
        (("--search", "p99 <= 5ms", "--profile", "spike"), "expected a constant rate"),
        (("--search", "p99 <= 5ms", "--records", "x.bin"), "keeps no records; leave out --records"),
        (("--search", "p99 <= 5ms", "--chats", "3"), "leave out --chats"),
        (("--chats", "3", "--rate", "5"), "without a rate or given send times; leave out --rate"),
        (("--chats", "3", "--trace", "t.csv"), "leave out --trace"),
        (("--chats", "3", "--profile", "spike"), "'spike' as a closed loop: expected one of constant rate"),
        (("--chats", "3", "--think-time", "-1s"), "expected a time of at least 0"),
        (("--think-time", "1s"), "think time needs --chats; leave out --think-time"),
        (("--column", "time=x"), "trace options need --trace; leave out --column"),
        (("--scale", "2", "--time-unit", "ms"), "leave out --time-unit and --scale"),
        (("--trace", "t.csv", "--column", "tine=x"), "'tine' is no meaning of a column; did you mean time"),
        (("--trace", "t.csv", "--column", "time"), "expected MEANING=NAME"),
        (("--trace", "t.csv", "--column", "time=a", "--column", "time=b"), "time is given as 'a' already"),
        (("--trace", "t.csv", "--time-unit", "mss"), "'mss' is unknown; did you mean ms"),
        (("--out", "no/such/folder/x.json"), "give a file that can be written"),
        (("--target", "https://127.0.0.1:1"), "https is not supported; expected http://HOST:PORT"),
        (("--target", "127.0.0.1:80"), "expected http://HOST:PORT"),
        (("--target", "http://127.0.0.1:99999"), "expected http://HOST:PORT"),
    ],
)
def test_wrong_usage_is_one_line(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    target = () if "--target" in words else ("--target", "http://127.0.0.1:9")
    assert message in refused(tmp_path, *words, *target)
