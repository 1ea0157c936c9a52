"""The time series of a run on the terminal: as a table, in failure texts, and with -v for chaos properties."""

from __future__ import annotations

from dataclasses import replace

from reports.failure import failure_text
from reports.run_timeseries import run_timeseries
from reports.terminal import as_text
from reports.timeline import timeseries_text
from tests.reports.test_run_timeseries import run
from tests.reports.test_texts import RECORD
from tests.suites.histories import lost

TIMESERIES = run_timeseries(lost(run(), range(30, 40)))
CHAOS = replace(RECORD, property="chaos.node-crash.recovers")


def test_a_row_for_each_stretch_with_what_happened() -> None:
    lines = timeseries_text(TIMESERIES, 80).splitlines()
    assert len(lines) == 2 + 8
    assert " ".join(lines[0].split()) == "from s req/s lost p50 ms p99 ms % by backend what happened"
    assert lines[3].split()[:3] == ["0.25", "100", "10"]
    assert lines[6].endswith("1.00 s kill gpu-1")
    assert max(map(len, lines)) <= 80


def test_a_failure_shows_it() -> None:
    text = failure_text(CHAOS, "pytest x", TIMESERIES)
    assert timeseries_text(TIMESERIES) in text and text.endswith("pytest x")
    assert "what happened" not in failure_text(RECORD, "pytest x")


def test_verbose_shows_it_once_for_all_properties_of_a_run() -> None:
    contained = replace(CHAOS, property="chaos.node-crash.contained")
    other = replace(CHAOS, property="breaker.trip.at-count", history="cd" * 32)
    text = as_text(
        [CHAOS, contained, other],
        100,
        colours=False,
        notes=True,
        timeseries={CHAOS.history: TIMESERIES, "cd" * 32: TIMESERIES},
    )
    assert text.count("what happened") == 1
    assert "chaos.node-crash[live], nginx 1.31.3, seed 7" in text
    assert "what happened" not in as_text([CHAOS], 100, colours=False, timeseries={CHAOS.history: TIMESERIES})
