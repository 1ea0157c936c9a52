"""`steelyard load`: a load against any URL, thresholds that fail it, a search for the highest rate within a bound."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from harness.cli.load_command.options import (
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
"""Exit code if only the generator delay decides a threshold."""


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
    """Send an open-loop load to a balancer, or the closed loop of --chats, and print its results.

    Requests are sent at their intended times, independent of earlier ones, and latency counts from these times. Exit
    code: 0, 1 if no request was good or a --fail-if was true (or no rate keeps the bound of a --search), 2 for wrong
    usage, an unreachable target, or a --fail-if that only the generator delay decides, 130 after Ctrl-C, 143 after
    SIGTERM.
    """
    from harness.cli.errors import exit_on
    from harness.cli.load_command.search import constant_rate, run_search, search_of
    from harness.load.results.thresholds import threshold_of
    from harness.scenario.model import HarnessError

    options = {"--rate": rate, "--trace": trace, "--fail-if": fail_if, "--chats": chats, "--records": records}
    closed_loop_only = {"--think-time": think_time}
    trace_only = {"--column": column, "--time-unit": time_unit, "--scale": scale}
    _check_together(options, {"--profile": profile, "--search": search}, closed_loop_only, trace_only)
    thresholds = [threshold_of(text) for text in fail_if or []]
    duration_s, timeout_s = seconds_of("--duration", duration), seconds_of("--timeout", timeout)
    about = {"target": target, "protocol": protocol, "seed": seed, "engine": engine.value}
    name = profile or "poisson"
    with exit_on(HarnessError):
        if search:
            planned = search_of(search, from_per_s, to_per_s, error_rate, duration_s)
            make = constant_rate(name, lambda workload: _with_timeout(workload, timeout_s))
            _validate(out, None, name, about)
            code = run_search(planned, make, name, about, out)
        else:
            if trace is not None:
                workload, info = _replay(trace, columns_of(column or []), time_unit, scale, rate, duration_s, seed)
            elif chats is not None:
                think_s = seconds_of("--think-time", think_time, or_zero=True)
                workload, info = _closed_loop(name, chats, think_s, duration_s)
            else:
                workload, info = _open_loop(name, rate, duration_s)
            workload = _with_timeout(workload, timeout_s)
            info["timeout_s"] = max(stream.timeout_s for stream in workload.streams)
            _validate(out, records, name if trace is None else "", about)
            code = _play(workload, info, thresholds, about, out, records)
    raise typer.Exit(code)


def _check_together(
    options: Mapping[str, Any],
    kinds: Mapping[str, Any],
    closed_loop_only: Mapping[str, Any],
    trace_only: Mapping[str, Any],
) -> None:
    """ClaimsError for options that exclude or require each other."""
    from harness.scenario.model import ClaimsError

    trace, chats = options["--trace"], options["--chats"]
    if trace is not None and kinds["--profile"] is not None:
        profile = kinds["--profile"]
        raise ClaimsError(f"--trace {trace} replaces --profile {profile}; leave one of them out")
    if kinds["--search"]:
        _leave_out("--search chooses the rates itself and keeps no records", options)
    if chats is not None:
        timed = {name: options[name] for name in ("--rate", "--trace")}
        _leave_out("--chats is a closed loop, without a rate or given send times", timed)
    else:
        _leave_out("think time needs --chats", closed_loop_only)
    if trace is None:
        _leave_out("trace options need --trace", trace_only)


def _leave_out(why: str, options: Mapping[str, Any]) -> None:
    from harness.scenario.model import ClaimsError

    given = [name for name, value in options.items() if value not in (None, [])]
    if given:
        raise ClaimsError(f"{why}; leave out {' and '.join(given)}")


LoadInfo = dict[str, Any]
"""Parameters of a load, for the files and the title."""


def _open_loop(profile: str, rate_per_s: float | None, duration_s: float | None) -> tuple[Any, LoadInfo]:
    from harness.load.workloads.profiles import load_of

    _check_rate(rate_per_s)
    rate_per_s, duration_s = rate_per_s or 50.0, duration_s or 30.0
    info = {"profile": profile, "rate_per_s": rate_per_s, "duration_s": duration_s}
    return load_of(profile, rate_per_s, duration_s), info


def _closed_loop(profile: str, count: int, think_s: float | None, duration_s: float | None) -> tuple[Any, LoadInfo]:
    from harness.load.workloads.profiles import closed_loop_of

    think_s, duration_s = 1.0 if think_s is None else think_s, duration_s or 30.0
    info = {"profile": profile, "chats": count, "think_s": think_s, "duration_s": duration_s}
    return closed_loop_of(profile, count, think_s, duration_s), info


def _replay(
    trace: Path,
    columns: Mapping[str, str],
    unit: str | None,
    scale: float | None,
    rate_per_s: float | None,
    duration_s: float | None,
    seed: int,
) -> tuple[Any, LoadInfo]:
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
    workload = traces.load_of_rows(rows)
    (stream,) = workload.streams
    scaling = {} if scale is None else {"scale": scale}
    return workload, {"trace": str(trace), **scaling, "rate_per_s": stream.rate_per_s, "duration_s": stream.end_s}


def _check_rate(rate_per_s: float | None) -> None:
    from harness.scenario.model import ClaimsError

    if rate_per_s is not None and not 0 < rate_per_s < float("inf"):
        raise ClaimsError(f"--rate {rate_per_s:g}: expected a number above 0")


def _with_timeout(workload: Any, timeout_s: float | None) -> Any:
    """The load with this client timeout; unchanged for None."""
    if timeout_s is None:
        return workload
    return replace(workload, streams=tuple(replace(stream, timeout_s=timeout_s) for stream in workload.streams))


def _validate(out: Path, records: Path | None, profile: str, about: Mapping[str, Any]) -> None:
    """ClaimsError for mistakes that can be found before anything is sent. `profile`: empty for a trace."""
    from harness.claims.features import PROTOCOLS
    from harness.cli.load_command.output_files import check_writable
    from harness.live.load.ad_hoc import check_reachable
    from harness.load.wire import forms_of, request_of
    from harness.load.workloads.profiles import PROFILES
    from harness.scenario.arrivals import draw
    from harness.scenario.model import ClaimsError
    from harness.scenario.validation import nearest

    protocol = about["protocol"]
    if protocol not in PROTOCOLS:
        raise ClaimsError(f"--protocol {protocol!r} is unknown; {nearest(protocol, PROTOCOLS)}")
    if profile in PROFILES:
        # Long enough to contain every form of request; a closed loop uses the same forms.
        sample = PROFILES[profile].make(100.0, 10.0)
        try:
            for arrival in forms_of(draw(sample, 1)):
                request_of(arrival, sample.key_carrier, 1, 1, protocol)
        except ValueError as error:
            raise ClaimsError(f"--profile {profile} with --protocol {protocol}: {error}") from None
    for option, path in (("--out", out), ("--records", records)):
        if path is not None:
            check_writable(option, path)
    check_reachable(about["target"])


def _play(
    workload: Any, info: LoadInfo, thresholds: list[Any], about: dict[str, Any], out: Path, records: Path | None
) -> int:
    """Play one load, print and write its results; returns the exit code."""
    from harness.cli.load_command.output_files import write_summary
    from harness.cli.load_command.view import View, closing_line, summary_lines, threshold_line, title_of
    from harness.evidence.records import write_requests
    from harness.live.load.ad_hoc import generator
    from harness.load.results.figures import figures_of, on_time

    with generator(about["engine"]) as generating, View(title_of(info), info["duration_s"]) as view:
        progress_s = max(1.0, info["duration_s"] / 60) if not sys.stderr.isatty() else 0.5
        played = generating.play(workload, about["target"], about["seed"], about["protocol"], view.show, progress_s)
    leaving, closed = played.about["leaving"], "chats" in info
    figures = figures_of(played.rows, leaving, closed)
    undelayed = figures_of(on_time(played.rows), leaving, closed)
    undecided = [item for item in thresholds if item.depends_on_delay(figures, undelayed)]
    failed = [item for item in thresholds if item.fails(figures) and item not in undecided]
    print("\n".join(summary_lines(figures, info)))
    for threshold in thresholds:
        print(threshold_line(threshold, figures, undelayed))
    results = [
        {
            "condition": item.text,
            "value": _or_none(item.value(figures)),
            "value_on_time": _or_none(item.value(undelayed)),
            "broken": item in failed,
            "only_generator_late": item in undecided,
        }
        for item in thresholds
    ]
    interrupted = played.interrupted != 0
    if records is not None:
        metadata = {**about, **info, **played.about, "interrupted": interrupted}
        metadata["url"] = metadata.pop("target")  # the key in records written by Locust
        write_requests(records, played.rows, metadata)
    write_summary(out, about, {**info, "interrupted": interrupted, "figures": figures.summary(), "thresholds": results})
    if (line := closing_line(figures, info["timeout_s"], interrupted, failed, undecided)) is not None:
        print(line)
    if interrupted:
        return 128 + played.interrupted
    if failed or not figures.good:
        return 1
    return GENERATOR_LATE if undecided else 0


def _or_none(value: float) -> float | None:
    return value if value == value else None
