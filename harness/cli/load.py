"""`steelyard load`: a load against any URL, conditions that fail it, the highest rate that keeps a bound."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from harness.cli.load_options import (
    ByEngine,
    ChatCount,
    Columns,
    Duration,
    EngineChoice,
    ErrorRate,
    FailIf,
    From,
    Out,
    Profile,
    Protocol,
    Rate,
    Records,
    Scale,
    SearchFor,
    Seed,
    Target,
    ThinkTime,
    Timeout,
    TimeUnit,
    To,
    Trace,
    columns_of,
    seconds_of,
)

GENERATOR_LATE = 2


def load(
    target: Target,
    profile: Profile = None,
    trace: Trace = None,
    column: Columns = None,
    time_unit: TimeUnit = None,
    scale: Scale = None,
    rate: Rate = None,
    chats: ChatCount = None,
    think_time: ThinkTime = None,
    duration: Duration = None,
    timeout: Timeout = None,
    seed: Seed = 1,
    protocol: Protocol = "http",
    engine: ByEngine = EngineChoice.AIOHTTP,
    out: Out = Path("steelyard-load.json"),
    records: Records = None,
    fail_if: FailIf = None,
    search: SearchFor = "",
    from_per_s: From = 50.0,
    to_per_s: To = 2000.0,
    error_rate: ErrorRate = 0.01,
) -> None:
    """Send an open-loop load to a balancer, or the closed loop of --chats, and say what came of it.

    Requests leave at their times whatever became of those before, and latency counts from when they were due. Exit
    code: 0, 1 if no request was good or a --fail-if was true (or no rate keeps the bound of a --search), 2 for wrong
    usage, an unreachable target, or a --fail-if that only the generator's own lateness decides, 130 after Ctrl-C, 143
    after SIGTERM.
    """
    from harness.cli.load_search import flat, search_of, searched
    from harness.load.results.thresholds import threshold_of
    from harness.scenario.model import HarnessError

    options = {"--rate": rate, "--trace": trace, "--fail-if": fail_if, "--chats": chats, "--records": records}
    of_chats = {"--think-time": think_time}
    of_traces = {"--column": column, "--time-unit": time_unit, "--scale": scale}
    _check_together(options, {"--profile": profile, "--search": search}, of_chats, of_traces)
    thresholds = [threshold_of(text) for text in fail_if or []]
    duration_s, timeout_s = seconds_of("--duration", duration), seconds_of("--timeout", timeout)
    about = {"target": target, "protocol": protocol, "seed": seed, "engine": engine.value}
    named = profile or "poisson"
    try:
        if search:
            found = search_of(search, from_per_s, to_per_s, error_rate, duration_s)
            make = flat(named, lambda made: _waiting(made, timeout_s))
            _prepare(out, None, named, about)
            code = searched(found, make, named, about, out)
        else:
            if trace is not None:
                made, said = _replayed(trace, columns_of(column or []), time_unit, scale, rate, duration_s, seed)
            elif chats is not None:
                made, said = _talking(named, chats, seconds_of("--think-time", think_time, or_zero=True), duration_s)
            else:
                made, said = _named(named, rate, duration_s)
            made = _waiting(made, timeout_s)
            said["timeout_s"] = max(stream.timeout_s for stream in made.streams)
            _prepare(out, records, named if trace is None else "", about)
            code = _played(made, said, thresholds, about, out, records)
    except HarnessError as error:
        print(f"steelyard: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(1) from None
    raise typer.Exit(code)


def _check_together(
    options: Mapping[str, Any], kinds: Mapping[str, Any], of_chats: Mapping[str, Any], of_traces: Mapping[str, Any]
) -> None:
    """ClaimsError for options that say nothing beside each other, or nothing alone."""
    from harness.scenario.model import ClaimsError

    trace, chats = options["--trace"], options["--chats"]
    if trace is not None and kinds["--profile"] is not None:
        profile = kinds["--profile"]
        raise ClaimsError(f"--trace {trace} says all that --profile {profile} would; leave one of them out")
    if kinds["--search"]:
        _leave_out("--search chooses rates by itself and keeps no records", options)
    if chats is not None:
        beside = {name: options[name] for name in ("--rate", "--trace")}
        _leave_out("--chats ask whenever they have been answered, at no rate and at no given times", beside)
    else:
        _leave_out("without --chats nobody thinks", of_chats)
    if trace is None:
        _leave_out("without --trace there are no rows to read", of_traces)


def _leave_out(why: str, options: Mapping[str, Any]) -> None:
    from harness.scenario.model import ClaimsError

    given = [name for name, value in options.items() if value not in (None, [])]
    if given:
        raise ClaimsError(f"{why}; leave out {' and '.join(given)}")


Said = dict[str, Any]
"""What a load is, for the files and the title."""


def _named(profile: str, rate_per_s: float | None, duration_s: float | None) -> tuple[Any, Said]:
    from harness.load.workloads.profiles import load_of

    _check_rate(rate_per_s)
    rate_per_s, duration_s = rate_per_s or 50.0, duration_s or 30.0
    said = {"profile": profile, "rate_per_s": rate_per_s, "duration_s": duration_s}
    return load_of(profile, rate_per_s, duration_s), said


def _talking(profile: str, count: int, think_s: float | None, duration_s: float | None) -> tuple[Any, Said]:
    from harness.load.workloads.profiles import crowd_of

    think_s, duration_s = 1.0 if think_s is None else think_s, duration_s or 30.0
    said = {"profile": profile, "chats": count, "think_s": think_s, "duration_s": duration_s}
    return crowd_of(profile, count, think_s, duration_s), said


def _replayed(
    trace: Path,
    columns: Mapping[str, str],
    unit: str | None,
    scale: float | None,
    rate_per_s: float | None,
    duration_s: float | None,
    seed: int,
) -> tuple[Any, Said]:
    from harness.load.workloads import traces

    _check_rate(rate_per_s)
    rows = traces.read(trace, columns, unit)
    if scale is not None:
        rows = traces.scaled(rows, rate_scale=scale, seed=seed)
    lasts_s = rows[-1].at_s if rows else 0.0
    if rate_per_s is not None and lasts_s > 0:
        rows = traces.scaled(rows, time_scale=len(rows) / rate_per_s / lasts_s)
    if duration_s is not None:
        rows = [row for row in rows if row.at_s < duration_s]
    made = traces.load_of_rows(rows)
    (stream,) = made.streams
    scaling = {} if scale is None else {"scale": scale}
    return made, {"trace": str(trace), **scaling, "rate_per_s": stream.rate_per_s, "duration_s": stream.end_s}


def _check_rate(rate_per_s: float | None) -> None:
    from harness.scenario.model import ClaimsError

    if rate_per_s is not None and not 0 < rate_per_s < float("inf"):
        raise ClaimsError(f"--rate {rate_per_s:g}: expected a number above 0")


def _waiting(made: Any, timeout_s: float | None) -> Any:
    """The load `made` with clients that wait so long; None: as they are."""
    if timeout_s is None:
        return made
    return replace(made, streams=tuple(replace(stream, timeout_s=timeout_s) for stream in made.streams))


def _prepare(out: Path, records: Path | None, profile: str, about: Mapping[str, Any]) -> None:
    """What can be known to be wrong before anything is sent. `profile`: empty for a trace."""
    from harness.claims.features import PROTOCOLS
    from harness.claims.validation import nearest
    from harness.cli.load_file import check_writable
    from harness.live.load.ad_hoc import reach
    from harness.load.wire import forms_of, request_of
    from harness.load.workloads.profiles import PROFILES
    from harness.scenario.arrivals import draw
    from harness.scenario.model import ClaimsError

    protocol = about["protocol"]
    if protocol not in PROTOCOLS:
        raise ClaimsError(f"--protocol {protocol!r} is unknown; {nearest(protocol, PROTOCOLS)}")
    if profile in PROFILES:
        # Enough to have every form of request in it; chats ask in the same forms.
        part = PROFILES[profile].make(100.0, 10.0)
        try:
            for arrival in forms_of(draw(part, 1)):
                request_of(arrival, part.key_carrier, 1, 1, protocol)
        except ValueError as error:
            raise ClaimsError(f"--profile {profile} with --protocol {protocol}: {error}") from None
    for option, path in (("--out", out), ("--records", records)):
        if path is not None:
            check_writable(option, path)
    reach(about["target"])


def _played(
    made: Any, said: Said, thresholds: list[Any], about: dict[str, Any], out: Path, records: Path | None
) -> int:
    """Play one load, show and write what came of it; the exit code."""
    from harness.cli.load_file import write_summary
    from harness.cli.load_view import View, closing_line, summary_lines, threshold_line, title_of
    from harness.evidence.records import write_requests
    from harness.live.load.ad_hoc import generator
    from harness.load.results.figures import figures_of, on_time

    with generator(about["engine"]) as generating, View(title_of(said), said["duration_s"]) as view:
        news_s = max(1.0, said["duration_s"] / 60) if not sys.stderr.isatty() else 0.5
        played = generating.play(made, about["target"], about["seed"], about["protocol"], view.look, news_s)
    leaving, closed = played.about["leaving"], "chats" in said
    figures = figures_of(played.rows, leaving, closed)
    punctual = figures_of(on_time(played.rows), leaving, closed)
    late = [item for item in thresholds if item.only_late(figures, punctual)]
    broken = [item for item in thresholds if item.fails(figures) and item not in late]
    print("\n".join(summary_lines(figures, said)))
    for threshold in thresholds:
        print(threshold_line(threshold, figures, punctual))
    results = [
        {
            "condition": item.text,
            "value": _known(item.value(figures)),
            "value_on_time": _known(item.value(punctual)),
            "broken": item in broken,
            "only_generator_late": item in late,
        }
        for item in thresholds
    ]
    interrupted = played.interrupted != 0
    if records is not None:
        told = {**about, **said, **played.about, "interrupted": interrupted}
        told["url"] = told.pop("target")  # as in the records that Locust writes
        write_requests(records, played.rows, told)
    write_summary(out, about, {**said, "interrupted": interrupted, "figures": figures.summary(), "thresholds": results})
    if (line := closing_line(figures, said["timeout_s"], interrupted, broken, late)) is not None:
        print(line)
    if interrupted:
        return 128 + played.interrupted
    if broken or not figures.good:
        return 1
    return GENERATOR_LATE if late else 0


def _known(value: float) -> float | None:
    return value if value == value else None
