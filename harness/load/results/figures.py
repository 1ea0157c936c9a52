"""Figures of a load: throughput, latencies, errors and generator delay, from rows of requests. Pure.

Latency counts from the intended time of a request, not from the time it was sent, so neither a slow balancer nor
generator delay hides the users' waiting time. A request is **good** if its answer was complete, with a status below
400. Times are those of good requests; the others are counted beside them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.evidence.records import Rows
from harness.scenario.model import Failure

Times = npt.NDArray[np.float64]

SERIES = {
    "latency": "intended send time to end of answer",
    "service": "send time to end of answer",
    "ttft": "intended send time to first byte of answer (time to first token of a stream)",
    "lateness": "intended send time to send time: the generator delay",
}
"""The series of times, in seconds: name in files, and interval."""

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
"""Quantiles shown in a summary; `Figures.time` accepts any other, such as p95."""

MAX_DELAY_SHARE = 0.2
"""A time is not attributed to the target if the generator delay exceeds this share of it (both at p99)."""

_QUANTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")


@dataclass(frozen=True, eq=False)
class Figures:
    """Figures of one load. `sent` are `good`, `failed` or `given_up`; `not_sent` were planned but never sent.

    `given_up` are those whose clients abort on purpose, as planned by the load; they are not errors.

    `sending_s` is from second 0 to the last send, `span_s` to the end of the last good answer, if later;
    `offered_per_s` refers to the first, `throughput_per_s` to the second. `errors` counts failures by kind: names of
    harness.scenario.model.Failure in words, or `status 503`. `closed`: the load was a closed loop, without an offered
    rate.
    """

    planned: int
    sent: int
    good: int
    failed: int
    given_up: int
    not_sent: int
    sending_s: float
    span_s: float
    errors: Mapping[str, int]
    times_s: Mapping[str, Times]
    closed: bool = False

    @property
    def offered_per_s(self) -> float:
        """Requests sent per second; nan for a closed loop, whose rate depends on the target."""
        return self.sent / self.sending_s if self.sending_s > 0 and not self.closed else math.nan

    @property
    def throughput_per_s(self) -> float:
        """Good answers per second."""
        return self.good / self.span_s if self.span_s > 0 else math.nan

    @property
    def error_share(self) -> float:
        """Share of failed requests among those sent; nan if none was."""
        return self.failed / self.sent if self.sent else math.nan

    @property
    def generator_late(self) -> bool:
        """Whether the generator delay is so large that the latency cannot be attributed to the target."""
        return delay_too_large(self.time("lateness", "p99"), self.time("latency", "p99"))

    def time(self, series: str, what: str) -> float:
        """`what` (p50, p99.9, mean, max) of a series, in seconds; nan if it is empty. KeyError otherwise."""
        values = self.times_s[series]
        quantile = quantile_of(what)
        if quantile is None and what not in ("mean", "max"):
            raise KeyError(f"{what!r} of times; expected p50, p99.9, mean, max and the like")
        if not len(values):
            return math.nan
        if quantile is not None:
            return float(np.quantile(values, quantile))
        return float(values.mean() if what == "mean" else values.max())

    def summary(self) -> dict[str, Any]:
        """The figures as JSON: times in seconds, None if absent."""
        counts = {name: getattr(self, name) for name in ("planned", "sent", "good", "failed", "given_up", "not_sent")}
        rates = {
            name: _known(getattr(self, name)) for name in ("sending_s", "span_s", "offered_per_s", "throughput_per_s")
        }
        times = {
            f"{series}_s": {what: _known(self.time(series, what)) for what in (*QUANTILES, "mean", "max")}
            for series in SERIES
        }
        shares = {"error_share": _known(self.error_share), "generator_late": self.generator_late}
        return {**counts, **rates, **shares, "errors": dict(self.errors), **times}


def figures_of(rows: Rows, leaving: Collection[int] = (), closed: bool = False) -> Figures:
    """The figures of request rows (harness.evidence.records.REQUEST), including requests never sent.

    `leaving`: numbers of the requests whose clients abort on purpose, as in an engine's records.
    `closed`: the rows are those of a closed loop.
    """
    sent = rows[rows["failure"] != Failure.NOT_SENT]
    good, given_up = is_good(sent), gave_up(sent, leaving)
    answered = sent[good]
    paced = sent[_paced(sent)]
    # A request that failed before its first system call has no send time.
    left_s = np.fmax(sent["sent_s"], sent["intended_s"])
    sending_s = float(left_s.max()) if len(sent) else 0.0
    return Figures(
        planned=len(rows),
        sent=len(sent),
        good=len(answered),
        failed=len(sent) - len(answered) - int(given_up.sum()),
        given_up=int(given_up.sum()),
        not_sent=len(rows) - len(sent),
        sending_s=sending_s,
        span_s=max(sending_s, float(answered["end_s"].max())) if len(answered) else sending_s,
        errors=_errors(sent[~good & ~given_up]),
        times_s={
            "latency": answered["end_s"] - answered["intended_s"],
            "service": answered["end_s"] - answered["sent_s"],
            "ttft": answered["first_byte_s"] - answered["intended_s"],
            "lateness": paced["sent_s"] - paced["intended_s"],
        },
        closed=closed,
    )


def delay_too_large(delay_s: float, time_s: float) -> bool:
    """Whether a generator delay (p99) exceeds `MAX_DELAY_SHARE` of a time; False if either is unknown (nan)."""
    return delay_s > MAX_DELAY_SHARE * time_s


def on_time(rows: Rows) -> Rows:
    """The same requests without the generator delay: each sent at its intended time, with the same service time."""
    undelayed = rows.copy()
    delay_s = np.where(_paced(rows), rows["sent_s"] - rows["intended_s"], 0.0)
    for name in ("sent_s", "first_byte_s", "end_s"):
        undelayed[name] -= delay_s
    return undelayed


def _paced(rows: Rows) -> npt.NDArray[np.bool_]:
    """Requests sent at times of the schedule; others waited for their only connection, or were never sent."""
    paced: npt.NDArray[np.bool_] = (rows["connection"] < 0) & ~np.isnan(rows["sent_s"])
    return paced


def is_good(rows: Rows) -> npt.NDArray[np.bool_]:
    """Requests with a complete answer and a status below 400."""
    good: npt.NDArray[np.bool_] = (rows["failure"] == Failure.NONE) & (rows["status"] < 400)
    return good


def gave_up(rows: Rows, leaving: Collection[int]) -> npt.NDArray[np.bool_]:
    """Requests that ended because their client, one of `leaving`, aborted as planned."""
    among = np.isin(rows["number"], np.array(sorted(leaving), dtype=np.int64))
    left: npt.NDArray[np.bool_] = (rows["failure"] == Failure.TIMEOUT) & among
    return left


def quantile_of(what: str) -> float | None:
    """0.99 for p99, 0.999 for p99.9; None if the text is no quantile between 0 and 1."""
    found = _QUANTILE.fullmatch(what)
    share = float(found[1]) / 100.0 if found else 0.0
    return share if share > 0 else None


def _errors(rows: Rows) -> dict[str, int]:
    """Counts by kind, the most frequent first."""
    broken = rows[rows["failure"] != Failure.NONE]
    kinds = Counter(_kind(Failure(value)) for value in broken["failure"])
    kinds.update(f"status {value}" for value in rows["status"][rows["failure"] == Failure.NONE])
    return dict(kinds.most_common())


def _kind(failure: Failure) -> str:
    return "cut off or unreadable" if failure is Failure.OTHER else failure.name.lower().replace("_", " ")


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
