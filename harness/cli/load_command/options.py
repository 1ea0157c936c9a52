"""The options of `steelyard load`, and the parsing of their values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class EngineChoice(StrEnum):
    """The engine that sends the requests."""

    AIOHTTP = "aiohttp"
    LOCUST = "locust"


Target = Annotated[
    str,
    typer.Option(metavar="URL", help="http://HOST:PORT of the balancer; a path is prefixed to every request's path."),
]


def _list_on_help(profile: str | None) -> str | None:
    """Print all profiles and exit if `profile` is help; else return it unchanged."""
    if profile != "help":
        return profile
    from harness.load.workloads.profiles import PROFILES

    for one in PROFILES.values():
        print(f"{one.name:<10} {one.about}")
    raise typer.Exit


Profile = Annotated[
    # Eager: `--profile help` needs no target.
    str | None,
    typer.Option(
        metavar="NAME",
        help="Shape of the load, poisson by default; `help` lists them.",
        callback=_list_on_help,
        is_eager=True,
    ),
]
Trace = Annotated[Path | None, typer.Option(metavar="FILE", help="Replay a trace (CSV, JSON lines) instead.")]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="MEANING=NAME",
        help="A trace column with another name, such as time=sent_at; MEANING: time, input, output, model, session, "
        "blocks. Repeatable.",
    ),
]
TimeUnit = Annotated[
    str | None, typer.Option(metavar="UNIT", help="Unit of a trace's times: s, ms, us or ns; by default the column's.")
]
Scale = Annotated[
    float | None,
    typer.Option(
        metavar="FACTOR",
        help="Scales the requests of a trace in the same time: 0.5 drops half of its sessions, 2 adds a copy of each.",
    ),
]
Rate = Annotated[float | None, typer.Option(help="Requests per second on average; 50, or a trace's own.")]
ChatCount = Annotated[
    int | None,
    typer.Option(
        "--chats",
        min=1,
        metavar="N",
        help="A closed loop: N virtual users, each of which waits for its answer, thinks, and sends its next request.",
    ),
]
ThinkTime = Annotated[
    str | None, typer.Option(metavar="TIME", help="Mean think time of a virtual user, 1s by default; may be 0.")
]
Duration = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Length, such as 10s or 2m, 30s by default; with --search the least length of a run, 5s by default.",
    ),
]
Timeout = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Client timeout for the complete answer: 10s; chat, long-tail, payloads 60s; --trace 120s.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same load.")]
Protocol = Annotated[str, typer.Option(help="Form of the requests: http, openai, chat or kserve.")]
ByEngine = Annotated[EngineChoice, typer.Option(help="Engine that sends the same load and writes the same records.")]
Out = Annotated[Path, typer.Option(metavar="FILE", help="JSON file for the summary.")]
Records = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a binary record of every request.")]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CONDITION",
        help="Threshold: exit with 1 if it is true, such as 'p99 > 500ms', 'errors > 1%'. Repeatable.",
    ),
]
SearchFor = Annotated[
    str, typer.Option(metavar="BOUND", help="Find the highest rate within a bound such as 'p99 <= 200ms'.")
]
From = Annotated[float, typer.Option("--from", help="Lowest rate of the search.")]
To = Annotated[float, typer.Option("--to", help="Highest rate of the search.")]
ErrorRate = Annotated[float, typer.Option(min=1e-6, max=0.2, help="Probability of a wrong result of the search.")]


def seconds_of(option: str, text: str | None, or_zero: bool = False) -> float | None:
    """The time in `text` in seconds, which is also the default unit; None for None.

    ClaimsError unless it is above 0, or 0 if `or_zero`.
    """
    from harness.live.faults.command_words import QUANTITY, UNITS_S
    from harness.scenario.model import ClaimsError

    if text is None:
        return None
    found = QUANTITY.fullmatch(text.strip())
    try:
        value = float(found[1]) * UNITS_S[found[2]] if found else float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf and not (or_zero and value == 0):
        least = "of at least 0" if or_zero else "above 0"
        raise ClaimsError(
            f"{option} {text!r}: expected a time {least}, in seconds or with its unit, as in 500ms, 10s, 2m"
        )
    return value


def columns_of(texts: Sequence[str]) -> dict[str, str]:
    """Column names by meaning, from texts such as `time=sent_at`. ClaimsError for invalid ones."""
    from harness.load.workloads.traces import ALIASES
    from harness.scenario.model import ClaimsError
    from harness.scenario.validation import nearest

    found: dict[str, str] = {}
    for text in texts:
        meaning, equals, name = text.partition("=")
        if not equals or not name:
            raise ClaimsError(f"--column {text!r}: expected MEANING=NAME, as in time=sent_at")
        if meaning not in ALIASES:
            raise ClaimsError(f"--column {text!r}: {meaning!r} is no meaning of a column; {nearest(meaning, ALIASES)}")
        if meaning in found:
            raise ClaimsError(f"--column {text!r}: {meaning} is given as {found[meaning]!r} already; give one of them")
        found[meaning] = name
    return found
