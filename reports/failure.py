"""The text for a property that did not pass: promise, observations, and the command that repeats the run."""

from __future__ import annotations

from collections.abc import Iterator

from harness.property.verdict import FindingRow, Record, explained
from reports.figures import figure, milliseconds
from reports.run_timeseries import TimeSeries
from reports.timeline import timeseries_text

SHOWN_FINDINGS = 5


def failure_text(record: Record, repeat: str, timeseries: TimeSeries | None = None) -> str:
    """Several lines; the first starts with the outcome, the last is `repeat`, the command that repeats the run.

    `timeseries` is that of the record's run, if it is to be shown.
    """
    return "\n".join(_lines(record, repeat, timeseries))


def _lines(record: Record, repeat: str, timeseries: TimeSeries | None) -> Iterator[str]:
    yield f"{explained(record.outcome)}: {record.reason or record.summary}"
    yield ""
    yield f"  promise   {record.summary}"
    yield f"  target    {record.target} {record.version}, world {record.world.value}, seed {record.seed}"
    if record.observed is not None:
        chance = f", false-alarm rate {record.alpha:.2g}" if record.alpha else ""
        sample = f", sample {record.sample}" if record.sample is not None else ""
        yield f"  observed  {figure(record.observed)}, bound {figure(record.bound)}{sample}{chance}"
    yield from _findings(record.findings)
    scale = f", at {record.time_scale:g}x the time scale" if record.time_scale != 1.0 else ""
    yield f"  slack     {milliseconds(record.slack_s)} at most{scale} (timing uncertainty)"
    if record.first_try is not None:
        yield f"  first try {record.first_try.outcome.value}: {record.first_try.reason}"
    if record.scenario:
        yield f"  scenario  {record.scenario}"
    if record.history:
        yield f"  history   {record.history}"
    if timeseries is not None:
        yield ""
        yield timeseries_text(timeseries)
    yield ""
    yield "  repeat with"
    yield repeat


def _findings(findings: tuple[FindingRow, ...]) -> Iterator[str]:
    """The first few broken findings; without any, the first few undecided ones."""
    broken = [item for item in findings if item.ok is False]
    word, chosen = ("broken", broken) if broken else ("undecided", [item for item in findings if item.ok is None])
    for item in chosen[:SHOWN_FINDINGS]:
        figures = f": observed {figure(item.observed)}, bound {figure(item.bound)}" if item.observed is not None else ""
        sample = f", sample {item.sample}" if item.sample is not None else ""
        note = f" ({item.note})" if item.note else ""
        yield f"  {word:<9} at {item.at_s:.3f} s{figures}{sample}{note}"
    if len(chosen) > SHOWN_FINDINGS:
        yield f"            and {len(chosen) - SHOWN_FINDINGS} more of {len(findings)} findings"
