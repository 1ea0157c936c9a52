"""A snapshot of a stage as something to look at: a table for terminals, a line for everything else. Pure."""

from __future__ import annotations

import math

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.live.statistics import SILENT_S, TELLING, ObservedBackend, Snapshot

BAR = 5
WORDS = 15
"""So many characters wide the last column is at the least, as long as there is a column to leave out for it."""
NOTHING = "-"
UNKNOWN = "unknown"
RATE, INSIDE, ERRORS, LATENCY, AT_CLIENT = "att./s", "in flight", "err./s", "p50/p99 ms", "at client"
FIGURE = 9
"""So wide is a column of figures at the most."""
GAP = 2
"""Between two columns, as the table is set up."""


def state_of(seen: ObservedBackend) -> tuple[str, str]:
    """What a backend looks like from outside, in words, and the colour for it."""
    parts = [] if seen.process == "alive" else [seen.process]
    parts += [f"faulted: {fault}" for fault in seen.faults]
    parts += [seen.membership] if seen.membership else []
    out = seen.membership == "left" or "draining" in seen.membership
    # One that never had traffic has no share by which it could miss some: that it gets none tells nothing.
    silent_s = 0.0 if seen.silent_s is None else seen.silent_s
    silent = not out and silent_s >= SILENT_S and seen.missed >= TELLING
    if silent:
        parts.append(f"no traffic for {math.floor(silent_s)} s: ejected or open")
    if parts:
        return "; ".join(parts), "red" if silent or seen.process != "alive" else "yellow"
    if seen.attempts.errors:
        return "answers with errors", "red"
    return ("healthy", "green") if seen.attempts.started or seen.attempts.in_flight else ("idle", "dim")


def title_of(name: str, version: str, backends: int) -> str:
    """What is up, in a few words; a version that is not known is left out."""
    return f"{name if version == UNKNOWN else f'{name} {version}'} over {backends} backends"


def view(snapshot: Snapshot, title: str, width: int) -> RenderableType:
    """The whole view for `width` characters: `title`, a row for each backend, and a line for all."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 0, 0, 1))
    bar, figures = _columns(snapshot, width)
    table.add_column("backend", no_wrap=True)
    table.add_column("share", no_wrap=True)
    for heading in figures:
        table.add_column(heading, justify="right", max_width=FIGURE)
    table.add_column("seen from outside")
    longest = max((len(seen.name) for seen in snapshot.backends), default=0)
    memories = Text(no_wrap=True, overflow="ellipsis")  # no table: its columns all give way to one that is too wide
    for seen in snapshot.backends:
        words, colour = state_of(seen)
        cells = _cells(seen, snapshot)
        share = f"{seen.share:4.0%}" + (f" {'█' * round(seen.share * bar):<{bar}}" if bar else "")
        table.add_row(Text(seen.name), Text(share), *(cells[heading] for heading in figures), Text(words, colour))
        memories.append(f"{seen.name:<{longest + GAP}}{memory(seen) or NOTHING}\n")
    head = f"{title}, up for {snapshot.up_s:.0f} s; figures of the last {snapshot.window_s:.0f} s"
    parts: list[RenderableType] = [
        Text(head, "bold"),
        Text(),
        table,
        Text(),
        Text(summary(snapshot)),
        Text(),
        Text("in GPU memory", "bold"),
    ]
    return Group(*parts, memories, Text("Ctrl-C ends it.", "dim"))


def plain(snapshot: Snapshot) -> str:
    """The same in one line, for logs and pipes."""
    parts = [f"{snapshot.up_s:.0f} s: {summary(snapshot)}"]
    for seen in snapshot.backends:
        words, _ = state_of(seen)
        parts.append(f"{seen.name} {seen.share:.0%}, {seen.attempts.in_flight} in flight, {words}")
    return " | ".join(parts)


def summary(snapshot: Snapshot) -> str:
    """What holds for all backends together, and what our own clients saw."""
    attempts = [seen.attempts for seen in snapshot.backends]
    line = (
        f"backends: {_rate(sum(item.started for item in attempts), snapshot)} attempts/s, "
        f"{_rate(sum(item.errors for item in attempts), snapshot)} errors/s, "
        f"{sum(item.in_flight for item in attempts)} in flight"
    )
    if (client := snapshot.client) is not None:
        answered = f"{1 - client.errors / client.ended:.1%}" if client.ended else NOTHING
        line += (
            f"; own load: {_rate(client.ended, snapshot)} requests/s, {answered} answered, "
            f"{_rate(client.errors, snapshot)} errors/s, p50/p99 {_latencies(client.p50_s, client.p99_s)} ms"
        )
    if snapshot.log_full:
        line += f"; the log of {', '.join(snapshot.log_full)} is full, nothing new is seen there: start anew"
    return line


def memory(seen: ObservedBackend) -> str:
    """Models in GPU memory with their size, and the room there is; nothing where models take none."""
    if not seen.used_mb:
        return "" if not seen.models else ", ".join(seen.models)
    return f"{seen.used_mb:,} of {seen.total_mb:,} MB: {', '.join(seen.models)}"


def banner(target: str, url: str, admin: str | None, control: str, name: str, example: str) -> str:
    """What is printed when all is up."""
    option = "" if not name else f" --name {name}"
    lines = [f"up: {target}", f"  balancer  {url}"]
    lines += [f"  admin     {admin}"] if admin else []
    lines += [
        f"  control   {control}",
        f"  try       steelyard fault add{option} {example} latency --latency-ms 800 --for 10s",
    ]
    return "\n".join(lines)


def _columns(snapshot: Snapshot, space: int) -> tuple[int, list[str]]:
    """How long a whole bar is, and the headings of the figures that fit beside it and the words about each backend."""
    kept = [RATE, INSIDE, ERRORS, LATENCY] + ([AT_CLIENT] if snapshot.client is not None else [])
    bar = BAR
    for dropped in ("", LATENCY, AT_CLIENT):  # the bar first
        widths = [len("backend"), max(len("share"), 5 + bar), *(min(len(heading), FIGURE) for heading in kept)]
        taken = sum(width + GAP for width in widths)
        if taken + WORDS <= space:
            break
        bar = 0
        kept = [heading for heading in kept if heading != dropped]
    return bar, kept


def _cells(seen: ObservedBackend, snapshot: Snapshot) -> dict[str, Text]:
    """The figures of a backend by their headings."""
    attempts = seen.attempts
    return {
        RATE: Text(_rate(attempts.started, snapshot)),
        INSIDE: Text(str(attempts.in_flight)),
        ERRORS: Text(_rate(attempts.errors, snapshot), "red" if attempts.errors else ""),
        LATENCY: Text(_latencies(attempts.p50_s, attempts.p99_s)),
        AT_CLIENT: Text(_latencies(seen.client.p50_s, seen.client.p99_s)),
    }


def _rate(count: int, snapshot: Snapshot) -> str:
    return f"{count / snapshot.window_s:.1f}"


def _latencies(p50_s: float, p99_s: float) -> str:
    return NOTHING if math.isnan(p50_s) else f"{p50_s * 1000:.0f}/{p99_s * 1000:.0f}"
