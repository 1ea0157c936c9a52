"""Statistics of an environment: figures of hand-written rows, and the display of snapshots."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from harness.evidence.records import Rows
from harness.live.evidence import LOG
from harness.live.statistics import (
    MIN_MISSED,
    Attempts,
    Client,
    ObservedBackend,
    ObservedRequest,
    Snapshot,
    Tail,
    attempts_of,
    by_backend,
    client_of,
    missed,
    shares,
)
from harness.up.view import banner, plain, state_of, summary, title_of, view
from mockgpu.server.attempt_log import RowKind, RowOutcome

NOW_S = 100.0


def rows(*entries: tuple[RowKind, float, float | None, RowOutcome, int], model: str = "m") -> Rows:
    """Rows of a log: kind, arrival, end (None: not yet), outcome, status."""
    made = np.zeros(len(entries), LOG)
    for row, (kind, arrival_s, end_s, outcome, status) in zip(made, entries, strict=True):
        row["kind"], row["arrival_s"], row["outcome"], row["status"] = kind, arrival_s, outcome, status
        row["end_s"] = math.nan if end_s is None else end_s
        row["model"] = model.encode()
    return made


def good(arrival_s: float, took_s: float = 0.1) -> tuple[RowKind, float, float, RowOutcome, int]:
    return (RowKind.INFERENCE, arrival_s, arrival_s + took_s, RowOutcome.ANSWERED, 200)


def inside(arrival_s: float) -> tuple[RowKind, float, None, RowOutcome, int]:
    return (RowKind.INFERENCE, arrival_s, None, RowOutcome.OPEN, 0)


# --- figures ----------------------------------------------------------------------------------------------


def test_attempts_are_those_of_the_window() -> None:
    seen = attempts_of(
        rows(good(90), good(96, 0.1), good(97, 0.3), (RowKind.UPDATE, 98, 98.2, RowOutcome.ANSWERED, 200)), 100, 5
    )
    assert (seen.started, seen.errors, seen.in_flight, seen.last_s) == (3, 0, 0, 98)
    assert seen.p50_s == pytest.approx(0.2)
    assert seen.p99_s == pytest.approx(0.298)


def test_health_checks_and_residency_are_no_attempts() -> None:
    log = rows(
        (RowKind.HEALTH_CHECK, 99, 99.1, RowOutcome.ANSWERED, 503),
        (RowKind.RESIDENCY_LOADED, 99, 99, RowOutcome.ANSWERED, 0),
    )
    seen = attempts_of(log, NOW_S, 5)
    assert (seen.started, seen.errors, seen.in_flight) == (0, 0, 0)
    assert math.isnan(seen.p50_s) and math.isnan(seen.last_s)


@pytest.mark.parametrize(
    ("outcome", "status", "errors"),
    [
        (RowOutcome.ANSWERED, 200, 0),
        (RowOutcome.ANSWERED, 404, 0),
        (RowOutcome.ANSWERED, 500, 1),
        (RowOutcome.REFUSED, 503, 1),
        (RowOutcome.CUT, 200, 1),
        (RowOutcome.CLIENT_GONE, 0, 1),
    ],
)
def test_errors(outcome: RowOutcome, status: int, errors: int) -> None:
    seen = attempts_of(rows((RowKind.INFERENCE, 99, 99.5, outcome, status)), NOW_S, 5)
    assert seen.errors == errors
    assert math.isnan(seen.p50_s) == bool(errors)


def test_what_is_open_is_in_flight_however_old() -> None:
    assert attempts_of(rows(inside(1), good(99), inside(99)), NOW_S, 5).in_flight == 2


def test_what_a_death_cut_off_is_an_error_of_that_moment_and_no_longer_in_flight() -> None:
    log = rows(inside(97), inside(99.5))
    seen = attempts_of(log, NOW_S, 5, ended_s=98)
    assert (seen.in_flight, seen.errors) == (1, 1)
    assert attempts_of(log, 104, 5, ended_s=98).errors == 0
    assert attempts_of(log, NOW_S, 5, ended_s=98, alive=False).in_flight == 0


def test_client_figures_count_what_got_no_good_answer() -> None:
    answers = [
        ObservedRequest(99, 0.1, 200, "gpu-0"),
        ObservedRequest(99, 0.3, 404, "gpu-1"),
        ObservedRequest(99, 9, 502, ""),
        ObservedRequest(99, 9, 0, ""),
    ]
    seen = client_of(answers)
    assert (seen.ended, seen.errors) == (4, 2)
    assert seen.p50_s == pytest.approx(0.2)
    assert {name: figures.ended for name, figures in by_backend(answers, ["gpu-0", "gpu-1", "gpu-2"]).items()} == {
        "gpu-0": 1,
        "gpu-1": 1,
        "gpu-2": 0,
    }


def test_shares() -> None:
    assert shares({"a": 3, "b": 1}) == {"a": 0.75, "b": 0.25}
    assert shares({"a": 0, "b": 0}) == {"a": 0.0, "b": 0.0}


# --- the tail of a log ------------------------------------------------------------------------------------


def test_a_tail_reads_on_from_the_first_row_that_still_matters() -> None:
    tail = Tail()
    whole = rows(good(1), inside(2), good(3), good(99))
    tail.take(whole, NOW_S, 5)
    assert (tail.first, tail.count, tail.last_s) == (1, 4, 99)
    whole = np.concatenate((whole, rows(good(101))))
    whole[1] = rows((RowKind.INFERENCE, 2, 101, RowOutcome.ANSWERED, 200))[0]
    tail.take(whole[tail.first :], 102, 5)
    assert (tail.first, tail.count, tail.last_s) == (1, 5, 101)  # it ended within the window
    assert attempts_of(tail.rows, 102, 5).in_flight == 0
    tail.take(whole[tail.first :], 200, 5)
    assert (tail.first, tail.count, tail.last_s) == (5, 5, 101)
    tail.take(whole[5:], 201, 5)
    assert (tail.first, tail.count, len(tail.rows)) == (5, 5, 0)


def test_a_tail_keeps_no_row_for_a_request_that_died_with_its_process() -> None:
    tail = Tail()
    tail.take(rows(inside(1)), NOW_S, 5, ended_s=50)
    assert tail.first == 1


def test_a_tail_knows_which_models_are_in_memory() -> None:
    tail = Tail()
    log = np.concatenate(
        [
            rows((RowKind.RESIDENCY_LOADING, 1, 1, RowOutcome.ANSWERED, 0), model="a"),
            rows((RowKind.RESIDENCY_LOADED, 2, 2, RowOutcome.ANSWERED, 0), model="a"),
            rows((RowKind.RESIDENCY_LOADING, 3, 3, RowOutcome.ANSWERED, 0), model="b"),
            rows(inside(4)),
        ]
    )
    tail.take(log, NOW_S, 5)
    assert tail.resident() == {"a": True, "b": False}
    assert tail.resident(ended_s=2.5) == {"b": False}
    more = rows((RowKind.RESIDENCY_EVICTED, 5, 5, RowOutcome.ANSWERED, 0), model="a")
    tail.take(np.concatenate([log, more])[tail.first :], NOW_S, 5)
    assert tail.resident() == {"b": False}


def test_what_a_silent_backend_has_missed_goes_by_its_share_before() -> None:
    own, other = Tail(), Tail()
    own.take(rows(*(good(95 + number / 100) for number in range(10))), NOW_S, 5)
    other.take(rows(*(good(95 + number / 100) for number in range(40)), *(good(97) for _ in range(20))), NOW_S, 5)
    assert missed(own, [other], own.last_s) == pytest.approx((20 + 30) * 10 / 10)
    assert missed(own, [other], 96.0) == pytest.approx(20 * 10 / 40)
    assert missed(Tail(), [own, other], 96.0) == 0.0  # it never had any
    assert missed(own, [Tail()], 96.0) == 0.0
    late = Tail()
    late.take(rows(*(good(97) for _ in range(30))), NOW_S, 5)
    assert missed(own, [late, Tail()], 96.0) == pytest.approx(30 / 2)  # it had all of them before
    assert missed(Tail(), [late], 96.0) == 0.0  # nobody had any


# --- display ----------------------------------------------------------------------------------------------

CALM = Attempts(started=25, errors=0, in_flight=2, p50_s=0.037, p99_s=0.04, last_s=99.9)
NONE = Attempts(0, 0, 0, math.nan, math.nan, math.nan)
SEEN = ObservedBackend("gpu-0", "alive", CALM, Client(25, 0, 0.038, 0.045), 0.25, 0.1, 0.0)


@pytest.mark.parametrize(
    ("seen", "words", "colour"),
    [
        (SEEN, "healthy", "green"),
        (replace(SEEN, attempts=replace(CALM, errors=1)), "answers with errors", "red"),
        (replace(SEEN, attempts=replace(CALM, started=0, in_flight=0)), "idle", "dim"),
        (replace(SEEN, faults=("latency 800 ms",)), "faulted: latency 800 ms", "yellow"),
        (replace(SEEN, process="dead", faults=("kill",)), "dead; faulted: kill", "red"),
        (replace(SEEN, silent_s=4.2, missed=MIN_MISSED), "no traffic for 4 s: ejected or open", "red"),
        (replace(SEEN, attempts=NONE, silent_s=None, missed=9 * MIN_MISSED), "idle", "dim"),
        (replace(SEEN, attempts=NONE, silent_s=None, faults=("down",)), "faulted: down", "yellow"),
        (replace(SEEN, silent_s=4.2, missed=MIN_MISSED - 0.1), "healthy", "green"),
        (replace(SEEN, silent_s=0.9, missed=MIN_MISSED), "healthy", "green"),
        (replace(SEEN, silent_s=4.2, missed=MIN_MISSED, membership="left"), "left", "yellow"),
        (replace(SEEN, silent_s=4.2, missed=MIN_MISSED, membership="draining"), "draining", "yellow"),
        (replace(SEEN, membership="weight 3"), "weight 3", "yellow"),
    ],
)
def test_states(seen: ObservedBackend, words: str, colour: str) -> None:
    message, painted = state_of(seen)
    assert message == words
    if seen.membership == "":
        assert painted == colour


def shown(snapshot: Snapshot, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(view(snapshot, title_of("nginx", "1", 2), width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


SICK = replace(
    SEEN,
    name="gpu-1",
    faults=("kill",),
    process="dead",
    attempts=Attempts(0, 3, 0, math.nan, math.nan, 96.0),
    client=Client(),
    share=0.0,
)
WARM = replace(SEEN, share=1.0, models=("a", "b loading"), used_mb=200, total_mb=2_000)
SNAPSHOT = Snapshot(12.0, 5.0, (WARM, SICK), Client(100, 2, 0.04, 0.9))


def test_the_view_has_a_row_for_each_backend_and_a_line_for_all() -> None:
    lines = shown(SNAPSHOT, 140)
    assert lines[0].startswith("nginx 1 over 2 backends, up for 12 s")
    (warm,) = (line.split() for line in lines if line.startswith("gpu-0") and "healthy" in line)
    assert warm == ["gpu-0", "100%", "█████", "5.0", "2", "0.0", "37/40", "38/45", "healthy"]
    (sick,) = (line.split() for line in lines if line.startswith("gpu-1") and "dead" in line)
    assert sick == ["gpu-1", "0%", "0.0", "0", "0.6", "-", "-", "dead;", "faulted:", "kill"]
    assert "gpu-0  200 of 2,000 MB: a, b loading" in [line.rstrip() for line in lines]
    assert summary(SNAPSHOT) in lines


def test_without_an_own_load_nothing_is_said_of_clients() -> None:
    lines = shown(replace(SNAPSHOT, client=None), 140)
    assert not any("at client" in line or "own load" in line for line in lines)


def test_the_view_fits_a_plain_terminal() -> None:
    lines = shown(replace(SNAPSHOT, backends=(WARM, replace(SICK, silent_s=4.2, missed=50.0))), 80)
    assert max(len(line) for line in lines) <= 80
    words = " ".join(lines).split()
    for word in ("dead;", "kill;", "ejected", "open"):
        assert word in words, lines


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (85, "backend share att./s in flight err./s p50/p99 ms at client seen from outside"),
        (80, "backend share att./s in flight err./s p50/p99 ms at client seen from outside"),
        (70, "backend share att./s in flight err./s at client seen from outside"),
        (60, "backend share att./s in flight err./s seen from outside"),
    ],
)
def test_a_narrow_terminal_keeps_the_words_rather_than_the_bar_and_latencies(width: int, headings: str) -> None:
    lines = shown(replace(SNAPSHOT, backends=(WARM, replace(SICK, silent_s=4.2, missed=50.0))), width)
    rule = next(number for number, line in enumerate(lines) if "─" in line)
    assert sorted(" ".join(lines[lines.index("") + 1 : rule]).split()) == sorted(headings.split()), lines
    assert any("█" in line for line in lines) == (width == 85)
    words = " ".join(lines[rule + 1 :]).split()
    assert {"healthy", "dead;", "faulted:", "kill;", "ejected", "open"} <= set(words), lines


@pytest.mark.parametrize("width", [40, 80, 100, 120, 160])
def test_many_models_take_no_room_from_the_names(width: int) -> None:
    full = tuple(
        replace(
            SEEN,
            name=name,
            models=tuple(f"family/model-{number:02}" for number in range(20)),
            used_mb=79_000,
            total_mb=80_000,
        )
        for name in ("gpu-0", "gpu-17")
    )
    lines = shown(replace(SNAPSHOT, backends=full), width)
    memories = [line.rstrip() for line in lines[lines.index("in GPU memory") + 1 :] if line.startswith("gpu-")]
    assert [line.split()[0] for line in memories] == ["gpu-0", "gpu-17"], lines
    for line in memories:
        assert "79,000 of 80,000 MB: " in line and line.endswith("…") and len(line) <= width
    assert width < 80 or all("family/model-00, " in line for line in memories)


def test_a_version_that_is_not_known_is_left_out() -> None:
    assert title_of("nginx", "1.31.3", 4) == "nginx 1.31.3 over 4 backends"
    assert title_of("python:least:LeastPicked", "unknown", 2) == "python:least:LeastPicked over 2 backends"


def test_the_line_for_all() -> None:
    assert summary(SNAPSHOT) == (
        "backends: 5.0 attempts/s, 0.6 errors/s, 2 in flight; "
        "own load: 20.0 requests/s, 98.0% answered, 0.4 errors/s, p50/p99 40/900 ms"
    )
    assert "the log of gpu-1 is full" in summary(replace(SNAPSHOT, log_full=("gpu-1",)))


def test_a_plain_line() -> None:
    assert plain(replace(SNAPSHOT, client=None)) == (
        "12 s: backends: 5.0 attempts/s, 0.6 errors/s, 2 in flight | gpu-0 100%, 2 in flight, healthy | "
        "gpu-1 0%, 0 in flight, dead; faulted: kill"
    )


def test_the_banner_names_all_urls_and_an_example() -> None:
    text = banner("nginx", "http://b", None, "http://c", "", "gpu-2")
    assert "admin" not in text and "http://b" in text and "http://c" in text
    assert "steelyard fault add gpu-2 latency --latency-ms 800 --for 10s" in text
    named = banner("reference", "http://b", "http://a", "http://c", "two", "gpu-0")
    assert "http://a" in named and "steelyard fault add --name two gpu-0 latency" in named
