"""The options of `steelyard load`, and what their words mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class EngineChoice(StrEnum):
    """What sends the requests."""

    AIOHTTP = "aiohttp"
    LOCUST = "locust"


Target = Annotated[
    str,
    typer.Option(metavar="URL", help="http://HOST:PORT of the balancer; a path is put before every request's own."),
]


def _listed(profile: str | None) -> str | None:
    """Show what loads there are, and leave, where that is asked for; else the name as it is."""
    if profile != "help":
        return profile
    from harness.load.workloads.profiles import PROFILES

    for one in PROFILES.values():
        print(f"{one.name:<10} {one.about}")
    raise typer.Exit


Profile = Annotated[
    # Eager: who asks what there is has no target yet.
    str | None,
    typer.Option(
        metavar="NAME",
        help="Shape of the load, poisson by default; `help` lists them.",
        callback=_listed,
        is_eager=True,
    ),
]
Trace = Annotated[Path | None, typer.Option(metavar="FILE", help="Replay a trace (CSV, JSON lines) instead.")]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="MEANING=NAME",
        help="A trace's column that is not known by its name, as time=sent_at; MEANING: time, input, output, model, "
        "session, blocks. Repeat for more.",
    ),
]
TimeUnit = Annotated[
    str | None, typer.Option(metavar="UNIT", help="Unit of a trace's times: s, ms, us or ns; by its column else.")
]
Scale = Annotated[
    float | None,
    typer.Option(
        metavar="FACTOR",
        help="So many times the requests of a trace in the same time: 0.5 leaves half of its sessions out, 2 adds one "
        "like it for each.",
    ),
]
Rate = Annotated[float | None, typer.Option(help="Requests per second on average; 50, or a trace's own.")]
ChatCount = Annotated[
    int | None,
    typer.Option(
        "--chats",
        min=1,
        metavar="N",
        help="A closed loop instead: N chats, each of which waits for its answer, thinks, and asks again.",
    ),
]
ThinkTime = Annotated[
    str | None, typer.Option(metavar="TIME", help="How long a chat thinks on average, 1s by default; 0 for not at all.")
]
Duration = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Length, as 10s or 2m, 30s by default; least length of a run with --search, 5s."),
]
Timeout = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="How long a client waits for its whole answer: 10s; chat, long-tail, payloads 60s; --trace 120s.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same load.")]
Protocol = Annotated[str, typer.Option(help="Form of the requests: http, openai, chat or kserve.")]
ByEngine = Annotated[EngineChoice, typer.Option(help="What sends them: the same load and records from both.")]
Out = Annotated[Path, typer.Option(metavar="FILE", help="JSON file for the summary.")]
Records = Annotated[Path | None, typer.Option(metavar="FILE", help="A binary record of every request, too.")]
FailIf = Annotated[
    list[str] | None,
    typer.Option(metavar="CONDITION", help="Exit with 1 if it is true: 'p99 > 500ms', 'errors > 1%'. Repeat for more."),
]
SearchFor = Annotated[str, typer.Option(metavar="BOUND", help="Find the highest rate with, say, 'p99 <= 200ms'.")]
From = Annotated[float, typer.Option("--from", help="Lowest rate of the search.")]
To = Annotated[float, typer.Option("--to", help="Highest rate of the search.")]
ErrorRate = Annotated[float, typer.Option(min=1e-6, max=0.2, help="Chance of a wrong answer of the search.")]


def seconds_of(option: str, text: str | None, or_zero: bool = False) -> float | None:
    """The time that `text` says, in seconds if it names no unit; None for none.

    ClaimsError unless it is one above 0, or 0 where `or_zero` allows it.
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
    """Names of columns by what they mean, from words such as `time=sent_at`. ClaimsError for others."""
    from harness.claims.validation import nearest
    from harness.load.workloads.traces import ALIASES
    from harness.scenario.model import ClaimsError

    found: dict[str, str] = {}
    for text in texts:
        meaning, equals, name = text.partition("=")
        if not equals or not name:
            raise ClaimsError(f"--column {text!r}: expected MEANING=NAME, as in time=sent_at")
        if meaning not in ALIASES:
            raise ClaimsError(f"--column {text!r}: {meaning!r} is no meaning of a column; {nearest(meaning, ALIASES)}")
        if meaning in found:
            raise ClaimsError(
                f"--column {text!r}: {meaning} is said to be {found[meaning]!r} already; give one of them"
            )
        found[meaning] = name
    return found
