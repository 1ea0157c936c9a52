"""What a load came to: from rows of requests to throughput, latencies, errors and lateness. Pure.

Latency counts from when a request was due, not from when it was sent, so that neither a slow balancer nor a late
generator hides what its users waited. A request is **good** if it was answered whole, with a status below 400; times
are those of good requests, and how many were not is told beside them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.arrivals import Arrival, draw
from harness.model import Failure, Load
from harness.records import Rows

Times = npt.NDArray[np.float64]

SERIES = {
    "latency": "from when a request was due to the end of its answer",
    "service": "from when it was sent to the end of its answer",
    "ttft": "from when it was due to the first byte of its answer: the time to first token of a stream",
    "lateness": "from when it was due to when it was sent: the generator's own",
}
"""Times that figures are taken of, in seconds."""

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
"""Those that a summary shows; `Figures.time` knows any other, such as p95, too."""

_QUANTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")


@dataclass(frozen=True, eq=False)
class Figures:
    """Figures of one load. `sent` are `good`, `failed` or `given_up`; `not_sent` the planned ones that never left.

    `given_up` are those whose clients left early on purpose, as the load has it; they are no errors.

    `sending_s` is from second 0 to when the last one sent was due, `span_s` to the end of the last good answer, if
    that is later; `offered_per_s` counts in the first, `throughput_per_s` in the second. `errors` counts
    the others by kind: names of harness.model.Failure in words, or `status 503`.
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

    @property
    def offered_per_s(self) -> float:
        """Requests sent per second."""
        return self.sent / self.sending_s if self.sending_s > 0 else math.nan

    @property
    def throughput_per_s(self) -> float:
        """Good answers per second."""
        return self.good / self.span_s if self.span_s > 0 else math.nan

    @property
    def error_share(self) -> float:
        """Failed requests among those sent; nan if none was."""
        return self.failed / self.sent if self.sent else math.nan

    def time(self, series: str, what: str) -> float:
        """`what` (p50, p99.9, mean, max) of a series, in seconds; nan if it is empty. KeyError for anything else."""
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
        """The same as JSON: times in seconds, None where there is none."""
        counts = {name: getattr(self, name) for name in ("planned", "sent", "good", "failed", "given_up", "not_sent")}
        rates = {
            name: _known(getattr(self, name)) for name in ("sending_s", "span_s", "offered_per_s", "throughput_per_s")
        }
        times = {
            f"{series}_s": {what: _known(self.time(series, what)) for what in (*QUANTILES, "mean", "max")}
            for series in SERIES
        }
        return {**counts, **rates, "error_share": _known(self.error_share), "errors": dict(self.errors), **times}


def figures_of(rows: Rows, leaving: Collection[int] = ()) -> Figures:
    """The figures of request rows (harness.records.REQUEST), those never sent among them.

    `leaving`: numbers of the requests whose clients give up on purpose, see `leaving_early`.
    """
    sent = rows[rows["failure"] != Failure.NOT_SENT]
    good, given_up = is_good(sent), gave_up(sent, leaving)
    answered = sent[good]
    own_pace = sent[(sent["connection"] < 0) & ~np.isnan(sent["sent_s"])]  # others wait for their one connection
    sending_s = float(sent["intended_s"].max()) if len(sent) else 0.0
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
            "lateness": own_pace["sent_s"] - own_pace["intended_s"],
        },
    )


def is_good(rows: Rows) -> npt.NDArray[np.bool_]:
    """Which requests were answered whole, with a status below 400."""
    good: npt.NDArray[np.bool_] = (rows["failure"] == Failure.NONE) & (rows["status"] < 400)
    return good


def gave_up(rows: Rows, leaving: Collection[int]) -> npt.NDArray[np.bool_]:
    """Which requests ended because their client, one of `leaving`, waited no longer, as it meant to."""
    among = np.isin(rows["number"], np.array(sorted(leaving), dtype=np.int64))
    left: npt.NDArray[np.bool_] = (rows["failure"] == Failure.TIMEOUT) & among
    return left


def leaving_early(arrivals: Iterable[Arrival]) -> frozenset[int]:
    """Numbers of the arrivals whose clients give up before their timeout."""
    return frozenset(arrival.number for arrival in arrivals if arrival.patience_s < arrival.timeout_s)


def leaving_of(load: Load, seed: int) -> frozenset[int]:
    """The same of a load played with this seed; draws it again only if there are such clients."""
    some = any(stream.content is not None and stream.content.abort_share > 0 for stream in load.streams)
    return leaving_early(draw(load, seed)) if some else frozenset()


def quantile_of(what: str) -> float | None:
    """0.99 for p99, 0.999 for p99.9; None for what is no quantile between 0 and 1."""
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
