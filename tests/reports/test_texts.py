"""Rows, figures, the failure text and the summary on the terminal."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from harness.property.verdict import Figure, FindingRow, Outcome, Record
from harness.scenario.model import World
from reports.failure import failure_text
from reports.figures import figure, milliseconds
from reports.rows import plain, record_of, row_of
from reports.terminal import as_text, render

BROKEN = FindingRow(False, 1.25, (3, 4), (0, 2), 100, "one too many")
RECORD = Record(
    property="affinity.leave.only-departed-keys-move",
    summary="Only departed keys move.",
    target="nginx",
    version="1.31.3",
    world=World.LIVE,
    seed=7,
    outcome=Outcome.FAIL,
    reason="1 of 2 findings broken: one too many",
    observed=0.123456,
    bound=(0.1694, 0.3421),
    sample=1000,
    alpha=1e-4,
    findings=(FindingRow(True, 0.5, 1, 2), BROKEN),
    slack_s=0.0032,
    scenario="5243c23a5f46d939",
    history="ab" * 32,
    facts={"ports": (20000, 20100)},
)
UNSURE = replace(RECORD, outcome=Outcome.INCONCLUSIVE, reason="slack 40 ms, at most 10 ms can be trusted here")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (747, "747"),
        (1_234_567, "1234567"),
        (0.123456, "0.1235"),
        (12345.6, "1.235e+04"),
        (3.0, "3"),
        ((0.1694, 0.34219), "0.1694–0.3422"),
        ((0.25, 0.25), "0.25"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (np.float64(0.5), "0.5"),
    ],
)
def test_figures_are_short(value: Figure, text: str) -> None:
    assert figure(value) == text


def test_milliseconds() -> None:
    assert milliseconds(0.0032) == "3.2 ms"
    assert milliseconds(0.0) == "0 ms"


def test_rows_are_plain_and_lead_back() -> None:
    again = replace(RECORD, time_scale=2.0, first_try=UNSURE)
    row = row_of(again)
    assert json.loads(json.dumps(row)) == row
    assert type(row["world"]) is str
    back = record_of(row)
    assert replace(back, facts={}, first_try=None) == replace(again, facts={}, first_try=None)
    assert back.first_try is not None
    assert back.first_try.outcome is Outcome.INCONCLUSIVE
    assert back.facts == {"ports": [20000, 20100]}


def test_numbers_of_numpy_become_plain() -> None:
    values = plain((np.int64(3), np.float64(0.5), np.bool_(True), np.arange(2), frozenset({"b", "a"}), World.SIM))
    assert values == [3, 0.5, True, [0, 1], ["a", "b"], "sim"]
    assert [type(value) for value in values] == [int, float, bool, list, list, str]


def test_failure_text() -> None:
    lines = failure_text(RECORD, "pytest 'a[live]'").splitlines()
    assert lines[0] == "fail: 1 of 2 findings broken: one too many"
    assert lines[-1] == "pytest 'a[live]'"
    for line in (
        "  promise   Only departed keys move.",
        "  target    nginx 1.31.3, world live, seed 7",
        "  observed  0.1235, bound 0.1694–0.3421, sample 1000, false-alarm rate 0.0001",
        "  broken    at 1.250 s: observed 3–4, bound 0–2, sample 100 (one too many)",
        "  slack     3.2 ms at most (timing uncertainty)",
        "  scenario  5243c23a5f46d939",
        "  history   " + "ab" * 32,
    ):
        assert line in lines


def test_failure_text_shows_five_findings_and_the_first_try() -> None:
    undecided = tuple(FindingRow(None, float(number), None, None, note="dark") for number in range(8))
    text = failure_text(replace(UNSURE, findings=undecided, time_scale=2.0, first_try=UNSURE), "pytest")
    assert text.count("undecided at") == 5
    assert "and 3 more of 8 findings" in text
    assert "at 2x the time scale" in text
    assert "  first try inconclusive: slack 40 ms" in text


RECORDS = (
    RECORD,
    replace(RECORD, property="affinity.repeat.same-backend", outcome=Outcome.PASS, observed=0, bound=0),
    replace(UNSURE, property="spread.one-connection.even", first_try=UNSURE, time_scale=2.0),
    replace(RECORD, property="retry.budget.kept", outcome=Outcome.UNSUPPORTED, observed=None, bound=None, sample=None),
)


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("targets", [1, 2])
def test_the_summary_fits_and_cuts_no_name(width: int, targets: int) -> None:
    sim = replace(
        RECORD, property="a.b.c", world=World.SIM, seed=8, slack_s=0.0, target=["nginx", "reference"][targets - 1]
    )
    text = as_text((*RECORDS, sim), width, colours=False)
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= width
    for record in RECORDS:
        (line,) = [line for line in lines if line.startswith(record.property + " ") and "repeated" not in line]
        assert record.outcome.value in line
    assert "\x1b" not in text
    words = " ".join(text.split())
    assert "Slack (timing uncertainty) at most 0 ms in sim, 3.2 ms in live. Seeds 7, 8." in words
    assert "1 pass, 2 fail, 1 inconclusive, 1 unsupported." in words
    assert "Outcomes: inconclusive (not decidable), unsupported (not applicable to this target)." in words
    name = "spread.one-connection.even[live]"
    assert f"{name} was repeated at 2x the time scale; the first try was inconclusive:" in words
    assert targets == 2 or "nginx 1.31.3" in words


def test_an_unknown_version_is_left_out_and_names_keep_their_case() -> None:
    record = replace(RECORD, target="python:least:LeastPicked", version="unknown")
    words = " ".join(as_text([record], 60, colours=False).split())
    assert "Target python:least:LeastPicked, world live" in words
    assert "unknown" not in words


def test_the_summary_says_why_what_is_claimed_could_not_be_judged() -> None:
    reasons = ["cannot change membership", "cannot change membership", "not claimed: breaker"]
    records = [replace(RECORDS[3], property=f"a.b.{number}", reason=reason) for number, reason in enumerate(reasons)]
    words = " ".join(as_text(records, 100, colours=False).split())
    assert "Unsupported, though claimed: 2 cannot change membership" in words
    assert "breaker" not in words


def test_the_summary_in_colours() -> None:
    assert "\x1b[1;31mfail" in as_text(RECORDS, 100, colours=True)


def test_render_prints_on_any_console() -> None:
    console = Console(file=io.StringIO(), width=100)
    render(RECORDS, console)
    assert isinstance(console.file, io.StringIO)
    assert "0.1694–0.3421" in console.file.getvalue()
