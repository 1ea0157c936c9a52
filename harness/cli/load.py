"""`steelyard load`: a load against any URL, conditions that fail it, the highest rate that keeps a bound."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

INTERRUPTED = 130


class Engine(StrEnum):
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
    from harness.load.profiles import PROFILES

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
Rate = Annotated[float | None, typer.Option(help="Requests per second on average; 50, or a trace's own.")]
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
ByEngine = Annotated[Engine, typer.Option(help="What sends them; Locust tells nothing while it runs.")]
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


def load(
    target: Target,
    profile: Profile = None,
    trace: Trace = None,
    rate: Rate = None,
    duration: Duration = None,
    timeout: Timeout = None,
    seed: Seed = 1,
    protocol: Protocol = "http",
    engine: ByEngine = Engine.AIOHTTP,
    out: Out = Path("steelyard-load.json"),
    records: Records = None,
    fail_if: FailIf = None,
    search: SearchFor = "",
    from_per_s: From = 50.0,
    to_per_s: To = 2000.0,
    error_rate: ErrorRate = 0.01,
) -> None:
    """Send an open-loop load to a balancer and say what came of it.

    Requests leave at their times whatever became of those before, and latency counts from when they were due. Exit
    code: 0, 1 if no request was good or a --fail-if was true (or no rate keeps the bound of a --search), 2 for wrong
    usage or an unreachable target, 130 after Ctrl-C.
    """
    from harness.live.load_run import reach
    from harness.load.thresholds import threshold_of
    from harness.model import ClaimsError, HarnessError

    thresholds = [threshold_of(text) for text in fail_if or []]
    duration_s, timeout_s = _seconds("--duration", duration), _seconds("--timeout", timeout)
    if trace is not None and profile is not None:
        raise ClaimsError(f"--trace {trace} says all that --profile {profile} would; leave one of them out")
    profile = profile or "poisson"
    about = {"target": target, "protocol": protocol, "seed": seed, "engine": engine.value}
    try:
        if search:
            if thresholds or trace is not None or rate is not None:
                raise ClaimsError("--search chooses rates by itself; leave out --rate, --trace and --fail-if")
            found = _search(search, from_per_s, to_per_s, error_rate, duration_s)
            make = _flat(profile, timeout_s)
            _prepare(out, records, profile, protocol)
            reach(target)
            code = _searched(found, make, profile, about, out)
        else:
            made, said = _load(profile, trace, rate, duration_s)
            made = _waiting(made, timeout_s)
            said["timeout_s"] = max(stream.timeout_s for stream in made.streams)
            _prepare(out, records, profile if trace is None else "", protocol)
            reach(target)
            code = _played(made, said, thresholds, about, out, records)
    except HarnessError as error:
        print(f"steelyard: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(1) from None
    raise typer.Exit(code)


def _load(profile: str, trace: Path | None, rate_per_s: float | None, duration_s: float | None) -> Any:
    """The load, and what it is, for the file and the title."""
    from harness.load import traces
    from harness.load.profiles import load_of
    from harness.model import ClaimsError

    if rate_per_s is not None and not 0 < rate_per_s < float("inf"):
        raise ClaimsError(f"--rate {rate_per_s:g}: expected a number above 0")
    if trace is None:
        rate_per_s, duration_s = rate_per_s or 50.0, duration_s or 30.0
        said = {"profile": profile, "rate_per_s": rate_per_s, "duration_s": duration_s}
        return load_of(profile, rate_per_s, duration_s), said
    rows = traces.read(trace)
    lasts_s = rows[-1].at_s
    if rate_per_s is not None and lasts_s > 0:
        rows = traces.scaled(rows, time_scale=len(rows) / rate_per_s / lasts_s)
    if duration_s is not None:
        rows = [row for row in rows if row.at_s < duration_s]
    made = traces.load_of_rows(rows)
    (stream,) = made.streams
    return made, {"trace": str(trace), "rate_per_s": stream.rate_per_s, "duration_s": stream.end_s}


def _seconds(option: str, text: str | None) -> float | None:
    """The time that `text` says, in seconds if it names no unit; None for none. ClaimsError if it is none above 0."""
    from harness.live.fault_words import QUANTITY, UNITS_S
    from harness.model import ClaimsError

    if text is None:
        return None
    found = QUANTITY.fullmatch(text.strip())
    try:
        value = float(found[1]) * UNITS_S[found[2]] if found else float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ClaimsError(
            f"{option} {text!r}: expected a time above 0, in seconds or with its unit, as in 500ms, 10s, 2m"
        )
    return value


def _waiting(made: Any, timeout_s: float | None) -> Any:
    """The load `made` with clients that wait so long; None: as they are."""
    if timeout_s is None:
        return made
    return replace(made, streams=tuple(replace(stream, timeout_s=timeout_s) for stream in made.streams))


def _prepare(out: Path, records: Path | None, profile: str, protocol: str) -> None:
    """What can be known to be wrong before anything is sent. `profile`: empty for a trace."""
    from harness.arrivals import draw
    from harness.claims import PROTOCOLS, nearest
    from harness.load.profiles import PROFILES
    from harness.load.wire import forms_of, request_of
    from harness.model import ClaimsError

    if protocol not in PROTOCOLS:
        raise ClaimsError(f"--protocol {protocol!r} is unknown; {nearest(protocol, PROTOCOLS)}")
    if profile in PROFILES:
        part = PROFILES[profile].make(100.0, 10.0)  # enough to have every form of request in it
        try:
            for arrival in forms_of(draw(part, 1)):
                request_of(arrival, part.key_carrier, 1, 1, protocol)
        except ValueError as error:
            raise ClaimsError(f"--profile {profile} with --protocol {protocol}: {error}") from None
    for option, path in (("--out", out), ("--records", records)):
        if path is None:
            continue
        try:
            path.open("ab").close()
        except OSError as error:
            raise ClaimsError(f"{option} {path}: {error.strerror}; give a file that can be written") from None


def _played(
    made: Any, said: dict[str, Any], thresholds: list[Any], about: dict[str, Any], out: Path, records: Path | None
) -> int:
    """Play one load, show and write what came of it; the exit code."""
    from harness.cli.load_view import View, none_good_line, summary_lines, threshold_line
    from harness.live.load_run import Generator
    from harness.load.figures import figures_of, leaving_of
    from harness.records import write_requests

    what = said.get("profile") or f"trace {said['trace']}"
    title = f"{what}, {said['rate_per_s']:.4g}/s for {said['duration_s']:.4g} s"
    with Generator(about["engine"]) as generator, View(title, said["duration_s"]) as view:
        news_s = max(1.0, said["duration_s"] / 60) if not sys.stderr.isatty() else 0.5
        played = generator.play(made, about["target"], about["seed"], about["protocol"], view.look, news_s)
    figures = figures_of(played.rows, leaving_of(made, about["seed"]))
    broken = [item for item in thresholds if item.fails(figures)]
    print("\n".join(summary_lines(figures, said["timeout_s"])))
    for threshold in thresholds:
        print(threshold_line(threshold, figures))
    results = [
        {"condition": item.text, "value": _known(item.value(figures)), "broken": item in broken} for item in thresholds
    ]
    told = {**said, "interrupted": played.interrupted, "figures": figures.summary(), "thresholds": results}
    if records is not None:
        write_requests(records, played.rows)
    _write(out, about, told)
    if played.interrupted:
        print("interrupted: the figures are of what was sent until then")
        return INTERRUPTED
    if not figures.good:
        print(none_good_line(figures, said["timeout_s"]))
    return 1 if broken or not figures.good else 0


def _search(text: str, from_per_s: float, to_per_s: float, error_rate: float, duration_s: float | None) -> Any:
    from harness.load.search import Search, goal_of
    from harness.load.thresholds import threshold_of

    return Search(goal_of(threshold_of(text)), from_per_s, to_per_s, error_rate, least_s=duration_s or 5.0)


def _flat(profile: str, timeout_s: float | None) -> Any:
    """`(rate, seconds) -> load` of a profile whose rate does not change over time. ClaimsError for another."""
    from harness.load.profiles import load_of
    from harness.model import ClaimsError
    from harness.shapes import Constant, Poisson

    if not all(isinstance(stream.shape, Constant | Poisson) for stream in load_of(profile, 100.0, 10.0).streams):
        raise ClaimsError(f"--search with --profile {profile}: expected one of a constant rate, as poisson or steady")
    return lambda rate_per_s, lasts_s: _waiting(load_of(profile, rate_per_s, lasts_s), timeout_s)


def _searched(search: Any, make: Any, profile: str, about: dict[str, Any], out: Path) -> int:
    """Carry out a search, show and write what it found; the exit code."""
    from dataclasses import asdict

    from harness.cli.load_view import View, found_line, step_line
    from harness.live.load_run import Generator
    from harness.load.search import WARM_UP_S

    runs, interrupted = 0, False
    with Generator(about["engine"]) as generator:
        while (step := search.next_step()) is not None and not interrupted:
            lasts_s = WARM_UP_S + step.requests / step.rate_per_s
            with View(f"{step.rate_per_s:.4g}/s for {lasts_s:.3g} s", lasts_s) as view:
                made, seed = make(step.rate_per_s, lasts_s), about["seed"] + runs  # no two runs are the same sample
                played = generator.play(made, about["target"], seed, about["protocol"], view.look, 1.0)
            runs, interrupted = runs + 1, played.interrupted
            if not interrupted:
                print(step_line(search.tell(played.rows)), flush=True)
    print(found_line(search))
    told = {
        "profile": profile,
        "search": search.goal.text,
        "error_rate": search.error_rate,
        "holds_per_s": search.holds_per_s,
        "broken_per_s": search.broken_per_s,
        "interrupted": interrupted,
        "rates": [asdict(seen) for seen in search.seen],
    }
    _write(out, about, told)
    if interrupted:
        return INTERRUPTED
    return 0 if search.holds_per_s is not None else 1


def _write(out: Path, about: dict[str, Any], told: dict[str, Any]) -> None:
    import importlib.metadata

    text = json.dumps({"steelyard": importlib.metadata.version("steelyard"), **about, **told}, indent=2)
    out.write_text(f"{text}\n", encoding="utf-8")
    print(f"written to {out}")


def _known(value: float) -> float | None:
    return value if value == value else None
