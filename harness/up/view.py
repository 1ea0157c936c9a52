"""Renders a snapshot of an environment: a table for terminals, one line for other outputs. Pure."""

from __future__ import annotations

import math

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.live.statistics import MIN_MISSED, SILENT_S, ObservedBackend, Snapshot

BAR = 5
WORDS = 15
"""Minimum width of the last column, as long as another column can be dropped for it."""
NOTHING = "-"
UNKNOWN = "unknown"
RATE, INSIDE, ERRORS, LATENCY, AT_CLIENT = "att./s", "in flight", "err./s", "p50/p99 ms", "at client"
FIGURE = 9
"""Maximum width of a column of figures."""
GAP = 2
"""Spaces between two columns of the table."""


def state_of(backend: ObservedBackend) -> tuple[str, str]:
    """State of a backend as observed from outside, and its colour."""
    parts = [] if backend.process == "alive" else [backend.process]
    parts += [f"faulted: {fault}" for fault in backend.faults]
    parts += [backend.membership] if backend.membership else []
    out = backend.membership == "left" or "draining" in backend.membership
    # Without earlier traffic there is no expected share, so silence is no evidence.
    silent_s = 0.0 if backend.silent_s is None else backend.silent_s
    silent = not out and silent_s >= SILENT_S and backend.missed >= MIN_MISSED
    if silent:
        parts.append(f"no traffic for {math.floor(silent_s)} s: ejected or open")
    if parts:
        return "; ".join(parts), "red" if silent or backend.process != "alive" else "yellow"
    if backend.attempts.errors:
        return "answers with errors", "red"
    return ("healthy", "green") if backend.attempts.started or backend.attempts.in_flight else ("idle", "dim")


def title_of(name: str, version: str, backends: int) -> str:
    """One-line title; an unknown version is omitted."""
    return f"{name if version == UNKNOWN else f'{name} {version}'} over {backends} backends"


def view(snapshot: Snapshot, title: str, width: int) -> RenderableType:
    """The view, `width` characters wide: `title`, a row for each backend, a summary, and GPU memory."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 0, 0, 1))
    bar, figures = _columns(snapshot, width)
    table.add_column("backend", no_wrap=True)
    table.add_column("share", no_wrap=True)
    for heading in figures:
        table.add_column(heading, justify="right", max_width=FIGURE)
    table.add_column("seen from outside")
    longest = max((len(backend.name) for backend in snapshot.backends), default=0)
    memories = Text(no_wrap=True, overflow="ellipsis")  # not a table, in which one wide column narrows all others
    for backend in snapshot.backends:
        words, colour = state_of(backend)
        cells = _cells(backend, snapshot)
        share = f"{backend.share:4.0%}" + (f" {'█' * round(backend.share * bar):<{bar}}" if bar else "")
        table.add_row(Text(backend.name), Text(share), *(cells[heading] for heading in figures), Text(words, colour))
        memories.append(f"{backend.name:<{longest + GAP}}{memory(backend) or NOTHING}\n")
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
    """The view as one line, for logs and pipes."""
    parts = [f"{snapshot.up_s:.0f} s: {summary(snapshot)}"]
    for backend in snapshot.backends:
        words, _ = state_of(backend)
        parts.append(f"{backend.name} {backend.share:.0%}, {backend.attempts.in_flight} in flight, {words}")
    return " | ".join(parts)


def summary(snapshot: Snapshot) -> str:
    """Totals of all backends, and the own load as its clients observed it."""
    attempts = [backend.attempts for backend in snapshot.backends]
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
        line += f"; the log of {', '.join(snapshot.log_full)} is full, its new attempts are not counted: restart"
    return line


def memory(backend: ObservedBackend) -> str:
    """Used and total GPU memory and the loaded models; without sizes if models take no memory."""
    if not backend.used_mb:
        return "" if not backend.models else ", ".join(backend.models)
    return f"{backend.used_mb:,} of {backend.total_mb:,} MB: {', '.join(backend.models)}"


def banner(target: str, url: str, admin: str | None, control: str, name: str, example: str) -> str:
    """The text printed when the environment is up."""
    option = "" if not name else f" --name {name}"
    lines = [f"up: {target}", f"  balancer  {url}"]
    lines += [f"  admin     {admin}"] if admin else []
    lines += [
        f"  control   {control}",
        f"  try       steelyard fault add{option} {example} latency --latency-ms 800 --for 10s",
    ]
    return "\n".join(lines)


def _columns(snapshot: Snapshot, width: int) -> tuple[int, list[str]]:
    """Length of a full bar, and the headings of the columns of figures that fit into `width` characters."""
    kept = [RATE, INSIDE, ERRORS, LATENCY] + ([AT_CLIENT] if snapshot.client is not None else [])
    bar = BAR
    for dropped in ("", LATENCY, AT_CLIENT):  # the bar first
        widths = [len("backend"), max(len("share"), 5 + bar), *(min(len(heading), FIGURE) for heading in kept)]
        taken = sum(width + GAP for width in widths)
        if taken + WORDS <= width:
            break
        bar = 0
        kept = [heading for heading in kept if heading != dropped]
    return bar, kept


def _cells(backend: ObservedBackend, snapshot: Snapshot) -> dict[str, Text]:
    """Cells of a backend by heading."""
    attempts = backend.attempts
    return {
        RATE: Text(_rate(attempts.started, snapshot)),
        INSIDE: Text(str(attempts.in_flight)),
        ERRORS: Text(_rate(attempts.errors, snapshot), "red" if attempts.errors else ""),
        LATENCY: Text(_latencies(attempts.p50_s, attempts.p99_s)),
        AT_CLIENT: Text(_latencies(backend.client.p50_s, backend.client.p99_s)),
    }


def _rate(count: int, snapshot: Snapshot) -> str:
    return f"{count / snapshot.window_s:.1f}"


def _latencies(p50_s: float, p99_s: float) -> str:
    return NOTHING if math.isnan(p50_s) else f"{p50_s * 1000:.0f}/{p99_s * 1000:.0f}"
