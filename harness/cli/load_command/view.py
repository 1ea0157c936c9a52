"""Output of `steelyard load`: a progress bar or plain lines while it runs, and a summary at the end."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from harness.evidence.run_events import LoadProgressed, RunEvent
from harness.load.results.figures import QUANTILES, SERIES, Figures
from harness.load.results.search import RateResult, Search
from harness.load.results.thresholds import Threshold

SHOWN_TIMES = (*QUANTILES, "max")
LABELS = {"latency": "latency", "service": "service", "ttft": "first byte", "lateness": "generator delay"}
LABEL_WIDTH = 17


class View:
    """Progress of a load of `duration_s` on standard error: a bar on a terminal, else a line per progress message."""

    def __init__(self, title: str, duration_s: float) -> None:
        self._duration_s = duration_s
        self._title = title
        self._line = ""
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[line]}"))
            self._bar = Progress(*columns, console=Console(stderr=True, highlight=False), transient=True)
            self._task = self._bar.add_task(title, total=duration_s, line="")

    def __enter__(self) -> View:
        if self._bar is not None:
            self._bar.start()
        else:
            print(self._title, file=sys.stderr, flush=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, event: RunEvent) -> None:
        """Show the progress of a load; other events of a run are not shown."""
        if not isinstance(event, LoadProgressed):
            return
        at_s, message = event.at_s, event.figures
        if message is not None:
            self._line = progress_line(message, self._duration_s)
        if self._bar is not None:
            waiting = "waiting for answers" if at_s > self._duration_s else f"{at_s:.0f}/{self._duration_s:.0f} s"
            line = self._line or waiting  # before the first message
            self._bar.update(self._task, completed=min(at_s, self._duration_s), line=line)
        elif message is not None:
            print(self._line, file=sys.stderr, flush=True)


def progress_line(message: Mapping[str, Any], duration_s: float) -> str:
    """One line for a progress message of an engine (harness.load.asyncio_engine) that sends for `duration_s`."""
    begin = f"{message['at_s']:.0f}/{duration_s:.0f} s"
    if message["at_s"] > duration_s:
        left = message["sent"] - message["ended"]
        begin = f"waiting for {left:,} answer{'s' if left != 1 else ''}"
    times = ", ".join(f"p{name[1:-2]} {_ms(message[name])}" for name in ("p50_s", "p99_s"))
    failed = f"{message['failed']:,} failed" + (f" (+{message['failed_now']:,})" if message["failed_now"] else "")
    dropped = f", {message['dropped']:,} not sent" if message["dropped"] else ""
    return f"{begin}  {message['per_s']:.0f}/s  {times}  {failed}{dropped}"


def title_of(info: Mapping[str, Any]) -> str:
    """A title for the load with these parameters (those in the summary file)."""
    source = info.get("profile") or f"trace {info['trace']}"
    if "chats" in info:
        return f"{source}, {_virtual_users(info)}, for {info['duration_s']:.4g} s"
    return f"{source}, {info['rate_per_s']:.4g}/s for {info['duration_s']:.4g} s"


def _virtual_users(info: Mapping[str, Any]) -> str:
    return f"{info['chats']:,} virtual user{'s' if info['chats'] != 1 else ''}, think time {info['think_s']:.4g} s"


def summary_lines(figures: Figures, info: Mapping[str, Any]) -> Iterator[str]:
    """The summary of a load as text: counts, errors by kind, a table of times; `info`: parameters of the load."""
    share = "" if math.isnan(figures.error_share) else f" ({figures.error_share * 100:.3g} %)"
    unsent = f", {figures.not_sent:,} of {figures.planned:,} not sent" if figures.not_sent else ""
    left = f", {figures.given_up:,} given up on purpose" if figures.given_up else ""
    yield f"requests    {figures.sent:,} sent, {figures.good:,} good, {figures.failed:,} failed{share}{left}{unsent}"
    if figures.closed:
        yield f"closed loop {_virtual_users(info)} on average; latency counts from intended send times"
    if figures.sent:
        offered = "" if figures.closed else f" of {figures.offered_per_s:.1f} requests/s"
        yield f"throughput  {figures.throughput_per_s:.1f} good answers/s{offered}"
    yield f"timeout     {info['timeout_s']:g} s for the complete answer"
    if figures.errors:
        yield f"errors      {_counted(figures.errors)}"
    yield f"{'ms':<{LABEL_WIDTH}}" + "".join(f"{name:>10}" for name in SHOWN_TIMES)
    for series in SERIES:
        cells = "".join(f"{_bare_ms(figures.time(series, name)):>10}" for name in SHOWN_TIMES)
        yield f"{LABELS[series]:<{LABEL_WIDTH}}{cells}"
    if figures.generator_late:
        delay, latency, service = (_ms(figures.time(series, "p99")) for series in ("lateness", "latency", "service"))
        yield f"WARNING     generator delay, not the target: {delay} of {latency} latency at p99; service {service}"


def none_good_line(figures: Figures, timeout_s: float) -> str:
    """Reason why no request of a load was good."""
    if not figures.sent:
        return f"no request was good: none was sent, of {figures.planned:,}"
    left = {"given up on purpose": figures.given_up} if figures.given_up else {}
    advice = f"; to wait longer than {timeout_s:g} s, give --timeout" if "timeout" in figures.errors else ""
    return f"no request was good: {_counted({**figures.errors, **left})}{advice}"


def threshold_line(threshold: Threshold, figures: Figures, undelayed: Figures) -> str:
    """Result of a `--fail-if`: ok, FAILED or UNDECIDED; `undelayed`: the figures without the generator delay."""
    value = threshold.with_unit(threshold.value(figures))
    if threshold.depends_on_delay(figures, undelayed):
        without = threshold.with_unit(threshold.value(undelayed))
        return f"UNDECIDED {threshold.text}: it is {value}, but {without} without the generator delay"
    match threshold.holds(figures):
        case True:
            return f"FAILED    {threshold.text}: it is {value}"
        case False:
            return f"ok        {threshold.text}: it is {value}"
        case None:
            return f"FAILED    {threshold.text}: unknown, no request to measure"


def closing_line(
    figures: Figures, timeout_s: float, interrupted: bool, failed: Sequence[Threshold], undecided: Sequence[Threshold]
) -> str | None:
    """The reason for the exit code, None if it needs none."""
    if interrupted:
        return "interrupted: the figures cover the requests sent until then"
    if not figures.good:
        return none_good_line(figures, timeout_s)
    if undecided and not failed:
        conditions = " and ".join(repr(item.text) for item in undecided)
        slower = "fewer virtual users" if figures.closed else "a lower rate"
        return f"{conditions} could not be judged because of the generator delay; use {slower} or a quieter machine"
    return None


def _counted(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())


def _ms(value_s: float | None) -> str:
    if value_s is None:
        return "-"
    return f"{value_s * 1e3:.3g} ms" if value_s < 0.9995 else f"{value_s:.2f} s"


def _bare_ms(value_s: float) -> str:
    return "-" if math.isnan(value_s) else f"{value_s * 1e3:.2f}"


def step_line(result: RateResult) -> str:
    """One line for the result of a run of a search."""
    share = result.exceeding / result.requests * 100 if result.requests else math.nan
    why = f" ({result.why})" if result.why else ""
    counted = f"{result.exceeding:,} of {result.requests:,} over the bound ({share:.3g} %)"
    return f"{result.rate_per_s:8.4g}/s  {result.verdict.value:<9}  {counted}{why}"


def found_line(search: Search) -> str:
    """One line for the result of a search."""
    holds, broken, text = search.holds_per_s, search.broken_per_s, search.goal.text
    chance = f"probability of a wrong verdict at most {search.error_rate * 100:.3g} %"
    if holds is None:
        unusable = [result for result in search.results if result.why]
        if broken is None and unusable:
            last = unusable[-1]
            advice = "use a larger bound or a quieter machine" if last.late else "begin lower with --from"
            return f"{text} could not be decided at {search.from_per_s:.4g}/s: {last.why}; {advice} ({chance})"
        how = "is broken" if broken is not None and broken <= search.from_per_s else "could not be shown"
        return f"{text} {how} at {search.from_per_s:.4g}/s already; begin lower with --from ({chance})"
    if broken is None:
        above = [result.why for result in search.results if result.why and result.rate_per_s > holds]
        why = f"; above it {above[-1]}" if above else ""
        none = f"no rate up to {search.to_per_s:.4g}/s was shown to break it"
        return f"{text} holds at {holds:.4g}/s; {none}{why} ({chance})"
    if broken < holds:
        return f"{text} is broken at {broken:.4g}/s and holds at {holds:.4g}/s: it does not depend on the rate alone"
    return f"{text} holds at {holds:.4g}/s and is broken at {broken:.4g}/s ({chance})"
