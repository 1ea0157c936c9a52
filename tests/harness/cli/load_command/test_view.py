"""Output of `steelyard load`: progress, a bar, summaries, the result of a search."""

from __future__ import annotations

import os
import select
import sys
from typing import Any

import pytest

from harness.cli.load_command.view import (
    View,
    found_line,
    none_good_line,
    progress_line,
    step_line,
    summary_lines,
    title_of,
)
from harness.evidence.run_events import LoadProgressed
from harness.load.results.figures import figures_of
from harness.load.results.search import RateResult, RateVerdict, Search, goal_of
from harness.load.results.thresholds import threshold_of
from harness.scenario.model import Failure
from tests.harness.load.rows import rows_of, unsent

PATIENCE_S = 60.0


def test_a_search_in_words() -> None:
    def found(*seen: tuple[float, RateVerdict, str]) -> str:
        made = Search(goal_of(threshold_of("p99 <= 5ms")), 40.0, 80.0)
        made.results = [RateResult(rate, 100, 1, 1.0, verdict, why) for rate, verdict, why in seen]
        return found_line(made)

    holds, broken, unknown = RateVerdict.HOLDS, RateVerdict.BROKEN, RateVerdict.OPEN
    assert "is broken at 40/s already; begin lower with --from" in found((40.0, broken, ""))
    assert "could not be shown at 40/s" in found((40.0, unknown, ""))
    assert "holds at 40/s and is broken at 80/s" in found((40.0, holds, ""), (80.0, broken, ""))
    assert "above it late" in found((40.0, holds, ""), (80.0, unknown, "late"))
    assert "could not be decided at 40/s: 3 unsent; begin lower" in found((40.0, unknown, "3 unsent"))
    assert "does not depend on the rate alone" in found((80.0, holds, ""), (60.0, broken, ""))
    line = step_line(RateResult(40.0, 2000, 3, 1.0, holds, ""))
    assert "40/s  holds" in line and "3 of 2,000 over the bound (0.15 %)" in line


def test_generator_delay_is_named_as_the_reason() -> None:
    search = Search(goal_of(threshold_of("p50 <= 1ms")), 40.0, 80.0)
    while (step := search.next_step()) is not None:
        search.observe(rows_of([0.002] * (step.requests + 40), step.rate_per_s))  # sent 1 ms late
    line = found_line(search)
    assert "p50 <= 1ms could not be decided at 40/s: the generator delay was 1 ms; use a larger bound" in line
    assert "begin lower" not in line


def test_after_the_end_of_sending_it_says_what_it_waits_for() -> None:
    message: dict[str, Any] = {
        "at_s": 3.9,
        "sent": 89,
        "ended": 0,
        "dropped": 0,
        "failed": 0,
        "failed_now": 0,
        "per_s": 0.0,
    }
    message |= {"p50_s": None, "p99_s": None}
    assert progress_line(message, 4.0) == "4/4 s  0/s  p50 -, p99 -  0 failed"
    assert progress_line(message | {"at_s": 10.0}, 4.0).startswith("waiting for 89 answers  0/s  ")
    assert progress_line(message | {"at_s": 10.0, "ended": 88}, 4.0).startswith("waiting for 1 answer  0/s  ")


def test_a_summary_tells_the_timeout_and_who_gave_up_on_purpose() -> None:
    rows = rows_of([0.01] * 4)
    rows["failure"][:2] = Failure.TIMEOUT
    first, _, timeout, errors, *_ = summary_lines(figures_of(rows, {0}), {"timeout_s": 2.5})
    assert first == "requests    4 sent, 2 good, 1 failed (25 %), 1 given up on purpose"
    assert timeout == "timeout     2.5 s for the complete answer"
    assert errors == "errors      1 timeout"
    assert none_good_line(figures_of(rows[:2], {0}), 2.5) == (
        "no request was good: 1 timeout, 1 given up on purpose; to wait longer than 2.5 s, give --timeout"
    )
    assert none_good_line(figures_of(unsent(rows)), 2.5) == "no request was good: none was sent, of 4"


def test_a_summary_of_an_open_loop_has_its_rate_and_no_virtual_users() -> None:
    text = "\n".join(summary_lines(figures_of(rows_of([0.5] * 101)), {"timeout_s": 2.5}))
    assert "throughput  67.3 good answers/s of 100.9 requests/s" in text and "loop" not in text
    assert title_of({"profile": "chat", "chats": 1, "think_s": 0.5, "duration_s": 3.0}) == (
        "chat, 1 virtual user, think time 0.5 s, for 3 s"
    )


def until_shown(terminal: int, text: str) -> str:
    """The output to a terminal up to `text`."""
    shown = b""
    while text.encode() not in shown:
        assert select.select([terminal], [], [], PATIENCE_S)[0], f"no {text!r} in {shown!r}"
        shown += os.read(terminal, 1 << 16)
    return shown.decode()


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    message = {
        "at_s": 5.0,
        "per_s": 199.6,
        "p50_s": 0.0051,
        "p99_s": 1.234,
        "failed": 12,
        "failed_now": 2,
        "dropped": 0,
    }
    with os.fdopen(slave, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with View("spike, 200/s for 10 s", 10.0) as view:
            view.show(LoadProgressed(0.2, None))
            view.show(LoadProgressed(5.0, message))
            view.show(LoadProgressed(5.3, None))  # the last message is shown until the next one
            shown = until_shown(master, "failed (+2)")
        with View("silent", 10.0) as view:
            view.show(LoadProgressed(12.0, None))
            shown += until_shown(master, "waiting for answers")
    os.close(master)
    assert "spike, 200/s for 10 s" in shown and "━" in shown
    assert "waiting for answers" in shown
    assert "5/10 s  200/s  p50 5.1 ms, p99 1.23 s  12 failed (+2)" in shown
