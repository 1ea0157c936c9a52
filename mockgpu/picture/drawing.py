"""SVG picture of small simulated fleets: resident models, loads, evictions and queue lengths of each GPU.

The text is the same for the same arguments. It follows the viewer's light or dark scheme and needs no script.
All lengths are in pixels of a picture 900 wide.
"""

from __future__ import annotations

import colorsys
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean

from mockgpu.gpu.setup import Setup
from mockgpu.picture.fleets import (
    ResidencySpan,
    Track,
    affinity,
    arrivals,
    fleet_setup,
    lane_size_mb,
    round_robin,
    simulate,
)

WIDTH = 900
LEFT, RIGHT = 62, 18
HEAD = 92
LANE = 10
QUEUE = 22
GAP = 13
BETWEEN = 14
PANEL_HEAD = 46
PANEL_FOOT = 34
MIN_LABEL_WIDTH = 13
GOLDEN_ANGLE = 0.381966
"""Fraction of the colour circle between models of consecutive rank, so that they differ clearly."""

STYLE = """
text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;font-size:12px}
.title{font-size:17px;font-weight:600}.head{font-size:14px;font-weight:600}
.small{font-size:10.5px}.label{font-size:9.5px;font-weight:600;fill:#fff;text-anchor:middle}
.end{text-anchor:end}.middle{text-anchor:middle}
.ground{fill:#ffffff}.ink{fill:#1f2328}.soft{fill:#59636e}.bed{fill:#f0f2f5}
.grid{stroke:#d1d9e0;stroke-width:1;fill:none}.queue{fill:#0969da;fill-opacity:.75}
.stripe{stroke:#ffffff;stroke-width:2.6;stroke-opacity:.62}.evicted{stroke:#cf222e;stroke-width:1.7;fill:none}
@media (prefers-color-scheme:dark){
.ground{fill:#0d1117}.ink{fill:#f0f6fc}.soft{fill:#9198a1}.bed{fill:#1b2129}
.grid{stroke:#3d444d}.queue{fill:#4493f8}
.stripe{stroke:#0d1117}.evicted{stroke:#ff7b72}
}
"""

MARKS = (
    '<pattern id="loading" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path class="stripe" d="M1.5 0V6"/></pattern>'
    '<path id="evicted" class="evicted" d="M-2.6-2.6 2.6 2.6M-2.6 2.6 2.6-2.6"/>'
)


@dataclass(frozen=True, slots=True)
class Panel:
    """One fleet: its routing policy as title, and a track per backend."""

    title: str
    tracks: Sequence[Track]


@dataclass(frozen=True, slots=True)
class Scale:
    """Conversion of seconds, lanes and queue lengths to pixels. ``max_queue``: longest queue of the whole picture."""

    seconds: float
    lanes: int
    max_queue: int

    def x(self, at_s: float) -> float:
        """Pixels from the left."""
        return LEFT + at_s / self.seconds * (WIDTH - LEFT - RIGHT)

    @property
    def track_height(self) -> int:
        """Height of a backend: its memory and, below it, its queue."""
        return self.lanes * LANE + GAP + QUEUE

    def panel_height(self, backends: int) -> int:
        """Height of a fleet, with its title and time axis."""
        return PANEL_HEAD + backends * self.track_height + (backends - 1) * BETWEEN + PANEL_FOOT


def picture(backends: int = 3, seconds: float = 60.0, seed: int = 1) -> str:
    """SVG of two fleets of ``backends`` (at least 1) under the same load for ``seconds`` (above 0)."""
    setup = fleet_setup(backends)
    jobs = arrivals(setup, backends, seconds, seed)
    panels = [
        Panel(title, simulate(setup, jobs, backends, route(backends), seconds))
        for title, route in (("Round robin", round_robin), ("Affinity", affinity))
    ]
    max_queue = max(depth for panel in panels for track in panel.tracks for _, depth in track.waiting)
    scale = Scale(seconds, setup.gpu.memory_mb // lane_size_mb(setup), max(max_queue, 1))
    height = HEAD + sum(scale.panel_height(backends) for _ in panels)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-labelledby="name">',
        f'<title id="name">{escape(_headline(setup, backends, seconds))}</title>',
        f"<style>{STYLE}{''.join(_colours(setup))}</style><defs>{MARKS}</defs>",
        f'<rect class="ground" width="{WIDTH}" height="{height}" rx="8"/>',
        *_legend(setup, backends, seconds, len(jobs)),
    ]
    for number, panel in enumerate(panels):
        lines += _panel(panel, scale, HEAD + number * scale.panel_height(backends), setup)
    return "\n".join([*lines, "</svg>\n"])


def _headline(setup: Setup, backends: int, seconds: float) -> str:
    total_gb = sum(model.weights_mb for model in setup.models) / 1000
    room_gb = setup.gpu.memory_mb / 1000
    gpus = f"{backends} GPU{'s' if backends > 1 else ''} of {room_gb:g} GB"
    return f"{len(setup.models)} models, {total_gb:g} GB in all, on {gpus}: {seconds:g} seconds"


def _colours(setup: Setup) -> Iterator[str]:
    """A CSS class for each model."""
    for number, model in enumerate(setup.models):
        red, green, blue = colorsys.hls_to_rgb(number * GOLDEN_ANGLE % 1, 0.43 + 0.06 * (number % 2), 0.52)
        yield f".m{model.name}{{fill:#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}}}"


def _legend(setup: Setup, backends: int, seconds: float, requests: int) -> Iterator[str]:
    """Title, description of the load, and legend."""
    yield _text(LEFT - 46, 30, escape(_headline(setup, backends, seconds)), "title ink")
    large, small = setup.models[0], setup.models[1]
    load = (
        f"The same {requests} requests through both fleets; model 1 is requested most (Zipf). "
        f"{large.weights_mb / 1000:g} GB load in {large.load_s:.1f} s, "
        f"{small.weights_mb / 1000:g} GB in {small.load_s:.1f} s, one at a time."
    )
    yield _text(LEFT - 46, 52, load, "soft")
    x = LEFT - 46
    for symbol, label, width in (
        (f'<rect class="m{large.name}" x="{x}" y="64" width="26" height="14" rx="2"/>', "in memory, by rank", 190),
        ('<rect class="m1" x="{x}" y="64" width="26" height="14" rx="2"/>{stripes}', "loading", 112),
        ('<use href="#evicted" x="{cross}" y="71"/>', "evicted", 112),
        ('<path class="queue" d="M{x} 78v-5h9v-6h9v3h8v8z"/>', "waiting requests", 0),
    ):
        stripes = f'<rect fill="url(#loading)" x="{x}" y="64" width="26" height="14" rx="2"/>'
        yield symbol.format(x=x, stripes=stripes, cross=x + 18)
        yield _text(x + 33, 75, label, "ink")
        x += width


def _panel(panel: Panel, scale: Scale, top: int, setup: Setup) -> Iterator[str]:
    """One fleet: title with figures, a track for each backend, and the time axis."""
    waits_s = [wait_s for track in panel.tracks for wait_s in track.waits_s]
    loads = sum(len(track.spans) for track in panel.tracks)
    evictions = sum(span.evicted_s is not None for track in panel.tracks for span in track.spans)
    warm = sum(track.warm for track in panel.tracks) / max(len(waits_s), 1)
    figures = (
        f"{loads} loads, {evictions} evictions, {warm:.0%} of requests found their model in memory, "
        f"mean wait {fmean(waits_s or [0.0]):.1f} s"
    )
    yield f'<text x="{LEFT - 46}" y="{top + 32}"><tspan class="head ink">{panel.title}</tspan>'
    yield f'<tspan class="soft" dx="10">{figures}</tspan></text>'
    y = top + PANEL_HEAD
    for number, track in enumerate(panel.tracks):
        yield from _track(track, f"gpu-{number}", scale, y, setup)
        y += scale.track_height + BETWEEN
    yield from _time_axis(scale, y - BETWEEN + 14)


def _track(track: Track, name: str, scale: Scale, top: int, setup: Setup) -> Iterator[str]:
    """One backend: its memory over time and, below it, its queue length."""
    width, memory = WIDTH - LEFT - RIGHT, scale.lanes * LANE
    yield _text(LEFT - 8, top + memory / 2, name, "ink end")
    yield _text(LEFT - 8, top + memory / 2 + 14, f"{setup.gpu.memory_mb / 1000:g} GB", "small soft end")
    yield f'<rect class="bed" x="{LEFT}" y="{top}" width="{width}" height="{memory}"/>'
    for span in track.spans:
        yield _span(span, scale, top, setup)
    floor = top + scale.track_height
    yield _text(LEFT - 8, floor - 2, "queue", "small soft end")
    yield _queue(track.waiting, scale, floor)
    yield f'<path class="grid" d="M{LEFT} {floor}h{width}"/>'
    longest_s, longest = max(track.waiting, key=lambda item: item[1])
    x = min(max(scale.x(longest_s), LEFT + 8), WIDTH - RIGHT - 8)
    yield _text(x, floor - longest / scale.max_queue * QUEUE - 3, str(longest), "small soft middle")


def _span(span: ResidencySpan, scale: Scale, top: int, setup: Setup) -> str:
    """One residency span: a box for each run of lanes, striped while loading, with a cross at the eviction."""
    end_s = scale.seconds if span.evicted_s is None else span.evicted_s
    ready_s = end_s if span.ready_s is None else span.ready_s
    from_x, ready_x, to_x = scale.x(span.loading_s), scale.x(ready_s), scale.x(end_s)
    boxes = []
    for lowest, count in _runs(span.lanes):
        y, height = top + (scale.lanes - lowest - count) * LANE, count * LANE - 1
        boxes.append(_box(f'class="m{span.model}"', from_x, to_x, y, height))
        boxes.append(_box('fill="url(#loading)"', from_x, ready_x, y, height))
        if to_x - ready_x >= MIN_LABEL_WIDTH:
            boxes.append(_text((ready_x + to_x) / 2, y + height / 2 + 3.3, span.model, "label"))
        if span.evicted_s is not None:
            boxes.append(f'<use href="#evicted" x="{to_x - 1:.1f}" y="{y + height / 2:.1f}"/>')
    return f"<g><title>{escape(_history(span, setup))}</title>{''.join(boxes)}</g>"


def _history(span: ResidencySpan, setup: Setup) -> str:
    (weights_mb,) = (model.weights_mb for model in setup.models if model.name == span.model)
    text = f"model {span.model}, {weights_mb / 1000:g} GB: loading from {span.loading_s:.1f} s"
    text += "" if span.ready_s is None else f", ready at {span.ready_s:.1f} s"
    return text + ("" if span.evicted_s is None else f", evicted at {span.evicted_s:.1f} s")


def _runs(lanes: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of consecutive lanes in an ascending sequence, as (first lane, length)."""
    runs: list[tuple[int, int]] = []
    for lane in lanes:
        if runs and lane == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((lane, 1))
    return runs


def _queue(waiting: Sequence[tuple[float, int]], scale: Scale, floor: int) -> str:
    """Queue length over time as a step curve; the maximum per pixel column."""
    columns: dict[int, int] = {}
    previous = 0
    changes = [*waiting, (scale.seconds, 0)]
    for (at_s, depth), (until_s, _) in itertools.pairwise(changes):
        first, last = int(scale.x(at_s)), int(scale.x(until_s))
        columns[first] = max(columns.get(first, previous), depth)
        if last > first:
            columns[last] = depth
        previous = depth
    path, before = f"M{LEFT} {floor}", 0
    for x, depth in sorted(columns.items()):
        if depth != before:
            path += f"H{x}V{floor - depth / scale.max_queue * QUEUE:.1f}"
            before = depth
    return f'<path class="queue" d="{path}H{WIDTH - RIGHT}V{floor}z"/>'


def _time_axis(scale: Scale, y: int) -> Iterator[str]:
    """Time axis of a panel, with about ten labels."""
    step = next(
        step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if scale.seconds / step <= 12 or step == 1000
    )
    for number in range(int(scale.seconds / step) + 1):
        x, at_s = scale.x(number * step), number * step
        yield f'<path class="grid" d="M{x:.1f} {y - 14}v4"/>'
        yield _text(x, y, f"{at_s} s", "small soft middle")


def _box(paint: str, from_x: float, to_x: float, y: float, height: float) -> str:
    return f'<rect {paint} x="{from_x:.1f}" y="{y:g}" width="{max(to_x - from_x - 0.6, 0.1):.1f}" height="{height:g}"/>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.4g}" y="{y:.4g}">{text}</text>'
