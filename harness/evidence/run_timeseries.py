"""Time series of a run in plain JSON types, for reports: client statistics per interval, and the steps that occurred.

Computed from the history alone, so that it can be sent to another process or written to a file with a record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from harness.evidence.history import History
from harness.scenario.faults import Step, hyphenated

WIDTHS_S = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
MAX_INTERVALS = 20


def run_timeseries(history: History) -> dict[str, Any]:
    """The time series of a run.

    `stretches`: one row per interval: start_s, end_s, requests sent, lost (no complete 2xx answer), p50_ms and p99_ms
    of the answered ones from their intended time (None without any), and `shares`, the share of first attempts of each
    of `backends` (None without any). `marks`: annotations, pairs of a time in seconds and a text.
    """
    width_s = next((s for s in WIDTHS_S if history.scenario.end_s <= s * MAX_INTERVALS), WIDTHS_S[-1])
    # A request that was never sent counts as lost at its intended time.
    sent_s = np.where(np.isnan(history.requests["sent_s"]), history.requests["intended_s"], history.requests["sent_s"])
    last_s = max(history.scenario.end_s, float(sent_s.max(initial=0.0)) + 1e-9)
    backends = range(len(history.scenario.backend_ids))
    answered, first = history.answered(), history.first_backends()
    latencies_ms = (history.requests["end_s"] - history.requests["intended_s"]) * 1000
    intervals: list[dict[str, Any]] = []
    for number in range(math.ceil(last_s / width_s - 1e-9)):
        start_s, end_s = number * width_s, (number + 1) * width_s
        mine = (sent_s >= start_s) & (sent_s < end_s)
        good = latencies_ms[mine & answered]
        p50_ms, p99_ms = (
            (round(float(value), 2) for value in np.percentile(good, [50, 99])) if len(good) else (None, None)
        )
        reached = first[mine & (first >= 0)]
        shares = [round(float((reached == backend).mean()), 3) if len(reached) else None for backend in backends]
        intervals.append(
            {
                "start_s": start_s,
                "end_s": end_s,
                "sent": int(mine.sum()),
                "lost": int((mine & ~answered).sum()),
                "p50_ms": p50_ms,
                "p99_ms": p99_ms,
                "shares": shares,
            }
        )
    return {
        "backends": list(history.scenario.backend_ids),
        "stretches": intervals,
        "marks": [[round(at_s, 3), text] for at_s, text in sorted(_marks(history))],
    }


def _marks(history: History) -> Iterator[tuple[float, str]]:
    """Time and text for each step's effect and healing."""
    for step in history.steps:
        text = f"{in_words(step.kind)} {history.scenario.backend_ids[step.backend]}"
        if not step.took_effect:
            yield step.asked_s, f"{text} (no effect)"
            continue
        yield step.effective_s, f"{text} (struck nothing)" if step.hits == 0 else text
        if not math.isnan(step.healed_s):
            yield step.healed_s, f"{text} over"


def in_words(kind: str) -> str:
    """A step's kind in words: "FailingStatus" is "failing status"."""
    return hyphenated(kind).replace("-", " ")


def settings_of(step: Step) -> str:
    """A step's settings other than backend and times: "factor 200, share 0.3"."""
    settings = []
    for item in sorted(fields(step), key=lambda item: item.kw_only is True):  # those that select requests come last
        value = getattr(step, item.name)
        if item.name in ("backend", "at_s", "for_s") or value is None or value == item.default:
            continue
        is_time = item.name.endswith("_s") and not item.name.endswith("_per_s")
        settings.append(f"{item.name.removesuffix('_s')} {value:g} s" if is_time else f"{item.name} {value}")
    return ", ".join(settings)


def plan_of(steps: Sequence[Step]) -> list[tuple[str, str, str, str]]:
    """Rows of a fault plan: start, duration, step with settings, backend."""
    rows = []
    for step in sorted(steps, key=lambda step: step.at_s):
        for_s = getattr(step, "for_s", None)
        settings = settings_of(step)
        kind = in_words(type(step).__name__)
        what = f"{kind} ({settings})" if settings else kind
        rows.append((f"{step.at_s:.2f} s", f"{for_s:.2f} s" if for_s else "", what, step.backend))
    return rows


def is_timeseries(value: object) -> bool:
    """Whether `value` has the keys of a result of `run_timeseries`."""
    return isinstance(value, Mapping) and {"backends", "stretches", "marks"} <= set(value)
