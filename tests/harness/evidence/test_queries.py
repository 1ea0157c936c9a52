"""Selections of requests and attempts, on a history written by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.evidence.history import History, empty_requests
from harness.evidence.queries import AttemptSelection
from harness.evidence.tables import ATTEMPT, UNSEEN
from harness.scenario.model import Ending, Failure, Kind, Load, Scenario, Stream

LOAD = Load((Stream("chat", 0.0, 10.0, 4, timeout_s=2.0), Stream("updates", 0.0, 10.0, 2, kind=Kind.UPDATE)))
NAN = math.nan

REQUESTS = (
    # stream, key, status, failure, sent_s, end_s, patience_s
    (0, 0, 200, Failure.NONE, 0.0, 0.5, 2.0),
    (0, 1, 503, Failure.NONE, 0.1, 0.4, 2.0),
    (0, 0, 200, Failure.TRUNCATED, 0.2, 0.9, 2.0),
    (0, 2, 0, Failure.TIMEOUT, 0.3, 0.6, 0.3),
    (1, -1, 204, Failure.NONE, 0.4, 0.8, 10.0),
    (1, -1, 0, Failure.NOT_SENT, NAN, NAN, NAN),
)
ATTEMPTS = (
    # request, backend, status, ending, start_s, end_s
    (0, 0, 500, Ending.ANSWERED, 0.05, 0.15),
    (1, 1, 503, Ending.ANSWERED, 0.15, 0.35),
    (0, 1, 200, Ending.ANSWERED, 0.20, 0.45),  # a retry: it begins after the first attempt's end
    (2, 0, 0, Ending.CUT, 0.25, 0.30),
    (-1, 0, 200, Ending.ANSWERED, 0.30, 0.31),  # foreign
    (3, 1, 0, Ending.CLIENT_GONE, 0.35, 0.62),
    (2, 1, 200, Ending.CUT, 0.40, 0.80),
    (4, 0, 0, Ending.CLIENT_GONE, 0.45, 0.70),
    (4, 1, 204, Ending.ANSWERED, 0.50, 0.75),  # a hedge: it begins beside the first attempt
    (4, 0, 0, Ending.OPEN, 0.76, NAN),
)


def by_hand() -> History:
    requests = empty_requests(len(REQUESTS))
    for row, (stream, key, status, failure, sent_s, end_s, patience_s) in zip(requests, REQUESTS, strict=True):
        row["stream"], row["kind"], row["key"] = stream, stream, key
        row["status"], row["failure"], row["patience_s"] = status, failure, patience_s
        row["sent_s"], row["end_s"] = sent_s, end_s
        row["intended_s"] = row["number"] / 10
    attempts = np.zeros(len(ATTEMPTS), dtype=ATTEMPT)
    for row, (request, backend, status, ending, start_s, end_s) in zip(attempts, ATTEMPTS, strict=True):
        row["request"], row["backend"], row["status"], row["ending"] = request, backend, status, ending
        row["start_s"], row["end_s"] = start_s, end_s
        row["kind"] = Kind.UPDATE if request == 4 else Kind.INFERENCE
    return History(Scenario("by hand", backends=2, load=LOAD), 1, requests, attempts)


HISTORY = by_hand()
SENT = HISTORY.all_requests()
MADE = HISTORY.all_attempts()


def rows(selection: AttemptSelection) -> list[int]:
    return [int(row) for row in selection.rows]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (SENT.in_streams("chat"), [0, 1, 2, 3]),
        (SENT.in_streams("updates", "chat"), [0, 1, 2, 3, 4, 5]),
        (SENT.inference(), [0, 1, 2, 3]),
        (SENT.updates(), [4, 5]),
        (SENT.sent_between(0.1, 0.3), [1, 2]),
        (SENT.sent_after(0.2), [3, 4]),
        (SENT.due_between(0.3, 0.6), [3, 4, 5]),
        (SENT.with_keys({0, 2}), [0, 2, 3]),
        (SENT.with_status(503, 204), [1, 4]),
        (SENT.answered(), [0, 4]),
        (SENT.lost(), [1, 2, 3, 5]),
        (SENT.given_up_by_client(), [3]),
        (SENT.patient(), [0, 1, 2, 4, 5]),
        (SENT.reached(), [0, 1, 2, 3, 4]),
        (SENT.unreached(), [5]),
        (SENT.first_on("gpu-1"), [1, 3]),
        (SENT.first_on(0), [0, 2, 4]),
        (MADE.failed().requests(), [0, 1, 2]),
        (HISTORY.requests_in("chat").answered(), [0]),
    ],
)
def test_requests(selection: object, expected: list[int]) -> None:
    assert selection["number"].tolist() == expected  # type: ignore[index]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (MADE, [0, 1, 2, 3, 5, 6, 7, 8, 9]),
        (HISTORY.attempts_on("gpu-0"), [0, 3, 7, 9]),
        (MADE.on(0, 1), [0, 1, 2, 3, 5, 6, 7, 8, 9]),
        (MADE.inference(), [0, 1, 2, 3, 5, 6]),
        (MADE.updates(), [7, 8, 9]),
        (MADE.with_status(503), [1]),
        (MADE.started_between(0.15, 0.25), [1, 2]),
        (MADE.good(), [2, 8]),
        (MADE.failed(), [0, 1, 3, 6]),
        (MADE.dropped(), [3]),
        (MADE.broken_off(), [6]),
        (MADE.cancelled(), [5, 7]),
        (MADE.given_up_by_balancer(), [5, 7]),
        (MADE.unfinished(), [9]),
        (MADE.first(), [0, 1, 3, 5, 7]),
        (MADE.later(), [2, 6, 8, 9]),
        (MADE.hedges(), [8]),
        (MADE.followed(), [0, 3, 7, 8]),
        (SENT.with_keys({0}).attempts(), [0, 2, 3, 6]),
    ],
)
def test_attempts(selection: AttemptSelection, expected: list[int]) -> None:
    assert rows(selection) == expected


def test_selections_combine() -> None:
    assert rows(MADE.failed() & MADE.on("gpu-0")) == [0, 3]
    assert rows(MADE.failed() | MADE.updates()) == [0, 1, 3, 6, 7, 8, 9]
    assert rows(MADE.failed() - MADE.first()) == [6]
    assert rows(MADE.where(MADE["end_s"] > 0.7)) == [6, 8]


def test_columns_of_attempts_and_of_their_requests() -> None:
    assert MADE.updates()["start_s"].tolist() == [0.45, 0.5, 0.76]
    assert MADE.on("gpu-1").of_request("key").tolist() == [1, 0, 2, 0, -1]
    assert [float(row["end_s"]) for row in MADE.dropped()] == [0.3]
    assert MADE.turns().tolist() == [0, 0, 1, 0, 0, 1, 0, 1, 2]
    assert MADE.followers().tolist() == [2, UNSEEN, UNSEEN, 6, UNSEEN, UNSEEN, 8, 9, UNSEEN]
    assert rows(MADE.next_attempts()) == [2, 6, 8, 9]


def test_answers_about_requests() -> None:
    assert SENT.attempt_counts().tolist() == [2, 1, 2, 1, 3, 0]
    assert SENT.first_attempts().tolist() == [0, 1, 3, 5, 7, UNSEEN]
    assert SENT.first_backends().tolist() == [0, 1, 0, 1, 0, UNSEEN]
    np.testing.assert_allclose(SENT.reached_s(), [0.05, 0.15, 0.25, 0.35, 0.45, NAN])
    np.testing.assert_allclose(SENT.latencies_s(), [0.5, 0.3, 0.7, 0.3, 0.4, NAN])


def test_in_flight_counts_what_has_not_ended() -> None:
    assert SENT.in_flight_at(np.array([-0.1, 0.0, 0.35, 0.5, 2.0])).tolist() == [0, 1, 4, 3, 0]
    assert MADE.in_flight_at(np.array([0.05, 0.5, 5.0])).tolist() == [1, 4, 1]


def test_silences_at_a_backend() -> None:
    found = HISTORY.attempts_on("gpu-0").silences(0.0, 1.0, at_least_s=0.22)
    np.testing.assert_allclose(found, [(0.45, 0.76), (0.76, 1.0)])
    assert HISTORY.attempts_on("gpu-0").longest_silence_s(0.0, 0.5) == pytest.approx(0.2)
    assert MADE.where(np.zeros(len(MADE), dtype=bool)).silences(1.0, 2.0, at_least_s=0.5) == [(1.0, 2.0)]


def test_a_run_without_attempts() -> None:
    silent = History(HISTORY.scenario, 1, HISTORY.requests)
    assert silent.all_requests().first_backends().tolist() == [UNSEEN] * 6
    assert np.isnan(silent.all_requests().reached_s()).all()
    assert len(silent.attempts_on("gpu-0").hedges()) == len(silent.all_attempts().followed()) == 0
    assert silent.all_requests().attempt_counts().tolist() == [0] * 6


def test_wrong_names() -> None:
    with pytest.raises(KeyError, match=r"no stream 'chats' in this load; there are \['chat', 'updates'\]"):
        HISTORY.requests_in("chats")
    with pytest.raises(KeyError, match=r"no backend 'gpu-9' in this run; there are \['gpu-0', 'gpu-1'\]"):
        HISTORY.attempts_on("gpu-9")
    with pytest.raises(KeyError, match=r"no backend 2 in this run; there are \['gpu-0', 'gpu-1'\]"):
        HISTORY.attempts_on(2)
    assert len(HISTORY.attempts_on(int(np.int64(1)))) == len(HISTORY.attempts_on(np.int64(1)))  # type: ignore[arg-type]
