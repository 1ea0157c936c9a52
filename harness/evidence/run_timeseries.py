"""The course of a run in plain JSON types, for reports: what clients saw from stretch to stretch, and what happened.

Computed from the history alone, so that it can go with a record to another process or into a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from harness.evidence.history import History
from harness.scenario.faults import Step

STRETCHES_S = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
MOST_STRETCHES = 20


def run_timeseries(history: History) -> dict[str, Any]:
    """The course of a run.

    `stretches`: rows of start_s, end_s, requests sent, lost (no complete 2xx answer), p50_ms and p99_ms of the
    answered ones from their intended time (None without any), and `shares`, the part of the first attempts that each
    of `backends` had (None without any). `marks`: pairs of a time in seconds and what happened then.
    """
    width_s = next((s for s in STRETCHES_S if history.scenario.end_s <= s * MOST_STRETCHES), STRETCHES_S[-1])
    # A request that was never sent is lost when it was due.
    sent_s = np.where(np.isnan(history.requests["sent_s"]), history.requests["intended_s"], history.requests["sent_s"])
    last_s = max(history.scenario.end_s, float(sent_s.max(initial=0.0)) + 1e-9)
    answered, first = history.answered(), history.first_backends()
    latencies_ms = (history.requests["end_s"] - history.requests["intended_s"]) * 1000
    stretches: list[dict[str, Any]] = []
    for number in range(math.ceil(last_s / width_s - 1e-9)):
        start_s, end_s = number * width_s, (number + 1) * width_s
        mine = (sent_s >= start_s) & (sent_s < end_s)
        good = latencies_ms[mine & answered]
        p50_ms, p99_ms = (
            (round(float(value), 2) for value in np.percentile(good, [50, 99])) if len(good) else (None, None)
        )
        reached = first[mine & (first >= 0)]
        shares = [round(float((reached == place).mean()), 3) if len(reached) else None for place in _places(history)]
        stretches.append(
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
        "stretches": stretches,
        "marks": [[round(at_s, 3), text] for at_s, text in sorted(_marks(history))],
    }


def _places(history: History) -> range:
    return range(len(history.scenario.backend_ids))


def _marks(history: History) -> Iterator[tuple[float, str]]:
    """When each step took effect, and when it was healed."""
    for seen in history.steps:
        told = f"{in_words(seen.kind)} {history.scenario.backend_ids[seen.backend]}"
        if not seen.took_effect:
            yield seen.asked_s, f"{told} (no effect)"
            continue
        yield seen.effective_s, f"{told} (struck nothing)" if seen.hits == 0 else told
        if not math.isnan(seen.healed_s):
            yield seen.healed_s, f"{told} over"


def in_words(kind: str) -> str:
    """A step's kind in words: "FailingStatus" is "failing status"."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in kind).strip()


def settings_of(step: Step) -> str:
    """What a step is set to beside its place and time: "factor 200, share 0.3"."""
    told = []
    for item in fields(step):
        value = getattr(step, item.name)
        if item.name in ("backend", "at_s", "for_s") or value is None or value == item.default:
            continue
        is_time = item.name.endswith("_s") and not item.name.endswith("_per_s")
        told.append(f"{item.name.removesuffix('_s')} {value:g} s" if is_time else f"{item.name} {value}")
    return ", ".join(told)


def plan_of(steps: Sequence[Step]) -> list[tuple[str, str, str, str]]:
    """Rows of a plan: when, for how long, what, where."""
    rows = []
    for step in sorted(steps, key=lambda step: step.at_s):
        for_s = getattr(step, "for_s", None)
        settings = settings_of(step)
        kind = in_words(type(step).__name__)
        what = f"{kind} ({settings})" if settings else kind
        rows.append((f"{step.at_s:.2f} s", f"{for_s:.2f} s" if for_s else "", what, step.backend))
    return rows


def is_course(value: object) -> bool:
    """Whether `value` is what `run_timeseries` makes, as far as a report has to know."""
    return isinstance(value, Mapping) and {"backends", "stretches", "marks"} <= set(value)
