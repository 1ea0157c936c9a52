"""How `steelyard load` shows a load: a bar or plain lines while it runs, and a summary in the end."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from harness.load.results.figures import QUANTILES, SERIES, Figures
from harness.load.results.search import RateResult, Search
from harness.load.results.thresholds import Threshold

SHOWN_TIMES = (*QUANTILES, "max")
LABELS = {"latency": "latency", "service": "service", "ttft": "first byte", "lateness": "lateness"}


class View:
    """Shows on standard error how far a load of `duration_s` is: a bar on a terminal, else a line for each news."""

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

    def look(self, at_s: float, news: dict[str, Any] | None) -> None:
        """Show the time, and the news if there are some."""
        if news is not None:
            self._line = news_line(news, self._duration_s)
        if self._bar is not None:
            waiting = "waiting for answers" if at_s > self._duration_s else f"{at_s:.0f}/{self._duration_s:.0f} s"
            line = self._line or waiting  # before the first news
            self._bar.update(self._task, completed=min(at_s, self._duration_s), line=line)
        elif news is not None:
            print(self._line, file=sys.stderr, flush=True)


def news_line(news: dict[str, Any], duration_s: float) -> str:
    """One line of what an engine told (harness.load.asyncio_engine) of a load whose sending takes `duration_s`."""
    begin = f"{news['at_s']:.0f}/{duration_s:.0f} s"
    if news["at_s"] > duration_s:
        left = news["sent"] - news["ended"]
        begin = f"waiting for {left:,} answer{'s' if left != 1 else ''}"
    times = ", ".join(f"p{name[1:-2]} {_ms(news[name])}" for name in ("p50_s", "p99_s"))
    failed = f"{news['failed']:,} failed" + (f" (+{news['failed_now']:,})" if news["failed_now"] else "")
    dropped = f", {news['dropped']:,} not sent" if news["dropped"] else ""
    return f"{begin}  {news['per_s']:.0f}/s  {times}  {failed}{dropped}"


def title_of(said: Mapping[str, Any]) -> str:
    """What is played, from what the file of the summary says of it."""
    what = said.get("profile") or f"trace {said['trace']}"
    if "chats" in said:
        return f"{what}, {_chats(said)}, for {said['duration_s']:.4g} s"
    return f"{what}, {said['rate_per_s']:.4g}/s for {said['duration_s']:.4g} s"


def _chats(said: Mapping[str, Any]) -> str:
    return f"{said['chats']:,} chat{'s' if said['chats'] != 1 else ''} that think {said['think_s']:.4g} s"


def summary_lines(figures: Figures, said: Mapping[str, Any]) -> Iterator[str]:
    """The summary of a load as text: counts, errors by kind, a table of times; `said` is what the load was."""
    share = "" if math.isnan(figures.error_share) else f" ({figures.error_share * 100:.3g} %)"
    unsent = f", {figures.not_sent:,} of {figures.planned:,} not sent" if figures.not_sent else ""
    left = f", {figures.given_up:,} given up on purpose" if figures.given_up else ""
    yield f"requests    {figures.sent:,} sent, {figures.good:,} good, {figures.failed:,} failed{share}{left}{unsent}"
    if figures.closed:
        yield f"closed loop {_chats(said)} on average and wait for their answers; latency from when one meant to ask"
    if figures.sent:
        offered = "" if figures.closed else f" of {figures.offered_per_s:.1f} requests/s"
        yield f"throughput  {figures.throughput_per_s:.1f} good answers/s{offered}"
    yield f"timeout     {said['timeout_s']:g} s is the longest that a client waits for its whole answer"
    if figures.errors:
        yield f"errors      {_counted(figures.errors)}"
    yield f"{'ms':<10}" + "".join(f"{name:>10}" for name in SHOWN_TIMES)
    for series in SERIES:
        cells = "".join(f"{_bare_ms(figures.time(series, name)):>10}" for name in SHOWN_TIMES)
        yield f"{LABELS[series]:<10}{cells}"
    if figures.generator_late:
        late, latency, service = (_ms(figures.time(series, "p99")) for series in ("lateness", "latency", "service"))
        yield f"LATE        the generator itself, not the target: {late} of {latency} latency at p99; service {service}"


def none_good_line(figures: Figures, timeout_s: float) -> str:
    """Why no request of a load was good."""
    if not figures.sent:
        return f"no request was good: none was sent, of {figures.planned:,}"
    left = {"given up on purpose": figures.given_up} if figures.given_up else {}
    longer = f"; to wait longer than {timeout_s:g} s, give --timeout" if "timeout" in figures.errors else ""
    return f"no request was good: {_counted({**figures.errors, **left})}{longer}"


def threshold_line(threshold: Threshold, figures: Figures, on_time: Figures) -> str:
    """What became of a `--fail-if`; `on_time`: the figures without the generator's own lateness."""
    said = threshold.said(threshold.value(figures))
    if threshold.only_late(figures, on_time):
        without = threshold.said(threshold.value(on_time))
        return f"LATE    {threshold.text}: it is {said}, but {without} without the generator's own lateness: undecided"
    match threshold.holds(figures):
        case True:
            return f"BROKEN  {threshold.text}: it is {said}"
        case False:
            return f"kept    {threshold.text}: it is {said}"
        case None:
            return f"BROKEN  {threshold.text}: nobody knows, as there was no request to tell"


def closing_line(
    figures: Figures, timeout_s: float, interrupted: bool, broken: Sequence[Threshold], late: Sequence[Threshold]
) -> str | None:
    """Why a load ended as it did, where its exit code needs a reason; None elsewhere."""
    if interrupted:
        return "interrupted: the figures are of what was sent until then"
    if not figures.good:
        return none_good_line(figures, timeout_s)
    if late and not broken:
        told = " and ".join(repr(item.text) for item in late)
        slower = "fewer chats" if figures.closed else "a lower rate"
        return f"{told} could not be judged: the generator was late itself; take {slower} or a quieter machine"
    return None


def _counted(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())


def _ms(value_s: float | None) -> str:
    if value_s is None:
        return "-"
    return f"{value_s * 1e3:.3g} ms" if value_s < 0.9995 else f"{value_s:.2f} s"


def _bare_ms(value_s: float) -> str:
    return "-" if math.isnan(value_s) else f"{value_s * 1e3:.2f}"


def step_line(seen: RateResult) -> str:
    """What a run of a search showed."""
    share = seen.exceeding / seen.requests * 100 if seen.requests else math.nan
    why = f" ({seen.why})" if seen.why else ""
    counted = f"{seen.exceeding:,} of {seen.requests:,} over the bound ({share:.3g} %)"
    return f"{seen.rate_per_s:8.4g}/s  {seen.verdict.value:<9}  {counted}{why}"


def found_line(search: Search) -> str:
    """The result of a search in words."""
    holds, broken, text = search.holds_per_s, search.broken_per_s, search.goal.text
    chance = f"chance of a wrong verdict at most {search.error_rate * 100:.3g} %"
    if holds is None:
        useless = [seen for seen in search.seen if seen.why]
        if broken is None and useless:
            last = useless[-1]
            advice = "take a larger bound or a quieter machine" if last.late else "begin lower with --from"
            return f"{text} could not be decided at {search.from_per_s:.4g}/s: {last.why}; {advice} ({chance})"
        how = "is broken" if broken is not None and broken <= search.from_per_s else "could not be shown"
        return f"{text} {how} at {search.from_per_s:.4g}/s already; begin lower with --from ({chance})"
    if broken is None:
        above = [seen.why for seen in search.seen if seen.why and seen.rate_per_s > holds]
        why = f"; above it {above[-1]}" if above else ""
        none = f"no rate up to {search.to_per_s:.4g}/s was shown to break it"
        return f"{text} holds at {holds:.4g}/s; {none}{why} ({chance})"
    if broken < holds:
        return (
            f"{text} breaks at {broken:.4g}/s and holds at {holds:.4g}/s: not one limit; a rate is not all that counts"
        )
    return f"{text} holds at {holds:.4g}/s and is broken at {broken:.4g}/s ({chance})"
