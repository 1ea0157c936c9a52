"""Queries of histories, on histories written by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.evidence.history import SEVERAL, History, StepSeen, empty_requests
from harness.evidence.records import REQUEST
from harness.evidence.tables import ATTEMPT, CONNECTION, HEALTH_CHECK, RESIDENCY, UNSEEN
from harness.scenario.model import Ending, Failure, Keys, Load, Residency, Scenario, Stream

LOAD = Load((Stream("warm", 0.0, 10.0, 2), Stream("sweep", 1.0, 10.0, 6, keys=Keys(4, "sweep"))))
SCENARIO = Scenario("by hand", backends=3, load=LOAD)
KEYS = [-1, -1, 0, 1, 2, 0, 1, 2]
"""Keys of the eight requests; the last of the sweep's four keys is never requested."""

FOREIGN = -1
TABLES = {
    "requests": REQUEST,
    "attempts": ATTEMPT,
    "health_checks": HEALTH_CHECK,
    "residency": RESIDENCY,
    "connections": CONNECTION,
}


def history_of(observed: Sequence[tuple[int, int]] = (), **fields: Any) -> History:
    """Eight answered requests, and attempts `observed` (request, backend) in order of time."""
    requests = empty_requests(8)
    requests["stream"] = [0, 0, 1, 1, 1, 1, 1, 1]
    requests["key"] = KEYS
    requests["intended_s"] = np.arange(8) * 0.1
    requests["end_s"] = requests["intended_s"] + 0.5
    requests["status"] = 200
    requests["failure"] = Failure.NONE
    rows = np.zeros(len(observed), dtype=ATTEMPT)
    for row, (request, backend) in zip(rows, observed, strict=True):
        row["request"], row["backend"] = request, backend
    return History(**{"scenario": SCENARIO, "seed": 1, "requests": requests, "attempts": rows, **fields})


# --- selections -------------------------------------------------------------------------------------------


def test_streams_are_found_by_name() -> None:
    assert history_of().in_stream("warm").tolist() == [True] * 2 + [False] * 6
    with pytest.raises(KeyError, match=r"no stream 'cold' in this load; there are .*'warm', 'sweep'"):
        history_of().in_stream("cold")


@pytest.mark.parametrize(
    ("status", "failure", "answered"),
    [
        (200, Failure.NONE, True),
        (299, Failure.NONE, True),
        (199, Failure.NONE, False),
        (300, Failure.NONE, False),
        (503, Failure.NONE, False),
        (0, Failure.NOT_SENT, False),
        (200, Failure.TRUNCATED, False),
        (200, Failure.TIMEOUT, False),
    ],
)
def test_answered_is_a_whole_answer_with_2xx(status: int, failure: Failure, answered: bool) -> None:
    history = history_of()
    history.requests["status"][3] = status
    history.requests["failure"][3] = failure
    assert history.answered()[3] == answered
    assert history.answered().sum() == 7 + answered


def test_the_first_attempt_is_the_earliest_of_the_requests_own() -> None:
    history = history_of([(3, 0), (FOREIGN, 2), (2, 1), (3, 2), (3, 1), (7, 2), (FOREIGN, 0)])
    assert history.first_attempts().tolist() == [-1, -1, 2, 0, -1, -1, -1, 5]
    assert history.first_backends().tolist() == [UNSEEN, UNSEEN, 1, 0, UNSEEN, UNSEEN, UNSEEN, 2]


def test_without_attempts_no_backend_saw_a_request() -> None:
    assert history_of().first_attempts().tolist() == [UNSEEN] * 8
    assert history_of().first_backends().tolist() == [UNSEEN] * 8
    assert history_of([(FOREIGN, 1)]).first_backends().tolist() == [UNSEEN] * 8


def test_owners() -> None:
    """Key 0 keeps to one backend, key 1 goes to two, key 2 has one attempt, key 3 none; retries do not count."""
    history = history_of([(2, 1), (3, 0), (3, 2), (5, 1), (5, 0), (6, 2), (FOREIGN, 0), (7, 0)])
    assert history.owners("sweep").tolist() == [1, SEVERAL, 0, UNSEEN]


def test_several_owners_stay_several() -> None:
    history = history_of([(number, backend) for number, backend in zip(range(2, 8), (0, 0, 0, 1, 1, 1), strict=True)])
    history.requests["key"][2:] = 2
    assert history.owners("sweep").tolist() == [UNSEEN, UNSEEN, SEVERAL, UNSEEN]
    alternating = history_of([(number, number % 2) for number in range(2, 8)])
    alternating.requests["key"][2:] = 2
    assert alternating.owners("sweep").tolist() == [UNSEEN, UNSEEN, SEVERAL, UNSEEN]


def test_owners_are_those_of_one_stream() -> None:
    history = history_of([(0, 2), (2, 1)])
    assert history.owners("warm").tolist() == []
    history.requests["key"][0] = 0
    assert history.owners("sweep").tolist() == [1, UNSEEN, UNSEEN, UNSEEN]


# --- steps and baselines ----------------------------------------------------------------------------------


def test_a_step_is_the_first_of_its_kind_that_took_effect() -> None:
    never = StepSeen("Kill", 1, 1.0, math.nan)
    other_kind, other_backend = StepSeen("Leave", 1, 1.5, 1.5), StepSeen("Kill", 0, 1.6, 1.7)
    first, second = StepSeen("Kill", 1, 2.0, 2.1), StepSeen("Kill", 1, 3.0, 3.1)
    history = history_of(steps=(never, other_kind, other_backend, first, second))
    assert history.step("Kill", "gpu-1") is first
    assert history.step("Leave", "gpu-1") is other_kind
    assert history.step("Kill", "gpu-2") is None
    assert history_of(steps=(never,)).step("Kill", "gpu-1") is None
    assert (never.took_effect, first.took_effect) == (False, True)


def test_baselines_are_attached_by_name() -> None:
    other = history_of()
    history = history_of().with_baselines({"random": other})
    assert history.baseline("random") is other
    with pytest.raises(KeyError):
        history.baseline("round_robin")


# --- figures ----------------------------------------------------------------------------------------------


def test_latencies_are_of_answered_requests_from_their_intended_time() -> None:
    history = history_of()
    history.requests["status"][0] = 503
    history.requests["sent_s"] = history.requests["intended_s"] + 0.4
    history.requests["end_s"][2] += 1.0
    assert history.all_requests().answered().latencies_s().tolist() == pytest.approx(
        [0.5, 1.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    )
    first_three = np.arange(8) < 3
    assert history.all_requests().where(first_three).answered().latencies_s().tolist() == pytest.approx([0.5, 1.5])


def test_cold_loads_and_unfinished_attempts_are_counted() -> None:
    residency = np.zeros(4, dtype=RESIDENCY)
    residency["event"] = [Residency.LOADING, Residency.LOADED, Residency.LOADING, Residency.EVICTED]
    history = history_of([(0, 0), (1, 0), (2, 0)], residency=residency)
    history.attempts["ending"] = [Ending.ANSWERED, Ending.OPEN, Ending.CLIENT_GONE]
    assert (history.cold_loads(), len(history.all_attempts().unfinished())) == (2, 1)
    assert (history_of().cold_loads(), len(history_of().all_attempts().unfinished())) == (0, 0)


@pytest.mark.parametrize(
    ("start_s", "end_s", "worst"),
    [
        (0.0, None, 0.1),
        (0.99, None, 0.1),
        (1.0, None, 0.4),
        (0.5, 0.9, 0.1),
        (0.5, 1.0, 0.4),
        (2.0, 2.9, 0.2),
        (0.0, 9.0, 0.4),
        (2.0, 9.0, 0.3),
        (9.0, None, 0.3),
        (9.0, 10.0, 0.3),
        (-1.0, None, 0.1),
        (-1.0, 0.5, 0.1),
        (2.5, 1.5, 0.2),
    ],
)
def test_worst_slack_is_of_the_seconds_touched(start_s: float, end_s: float | None, worst: float) -> None:
    history = history_of(slack_s=np.array([0.1, 0.4, 0.2, 0.3]))
    assert history.worst_slack_s(start_s, end_s) == worst


def test_without_slack_timings_are_exact() -> None:
    assert history_of().worst_slack_s(1.0, 2.0) == 0.0


# --- the digest -------------------------------------------------------------------------------------------


STEP = StepSeen("Kill", 1, 1.0, 1.1, 2.0)


def full_history() -> History:
    """A history with at least two rows in every table and a value in every field."""
    tables: dict[str, Any] = {name: np.zeros(2, dtype=dtype) for name, dtype in TABLES.items() if name != "requests"}
    return replace(history_of(slack_s=np.array([0.1, 0.2]), steps=(STEP,)), **tables)


def other_than(value: Any) -> Any:
    return value + b"x" if isinstance(value, bytes) else 1 if value != value else value + 1


def test_equal_histories_have_equal_digests() -> None:
    assert full_history().digest() == full_history().digest()
    assert len(full_history().digest()) == 64


@pytest.mark.parametrize(
    ("table", "column"), [(table, column) for table, dtype in TABLES.items() for column in dtype.names or ()]
)
def test_every_column_of_every_row_is_in_the_digest(table: str, column: str) -> None:
    digests = {full_history().digest()}
    for row in (0, -1):
        history = full_history()
        rows = getattr(history, table)
        rows[column][row] = other_than(rows[column][row])
        digests.add(history.digest())
    assert len(digests) == 3


def test_the_number_and_place_of_rows_is_in_the_digest() -> None:
    digests = {full_history().digest()}
    for table in TABLES:
        shorter: dict[str, Any] = {table: getattr(full_history(), table)[:-1]}
        digests.add(replace(full_history(), **shorter).digest())
    longer = replace(full_history(), slack_s=np.array([0.1, 0.2, 0.2]))
    swapped = replace(full_history(), slack_s=np.array([0.2, 0.1]))
    assert len(digests | {longer.digest(), swapped.digest()}) == 1 + len(TABLES) + 2


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"correlated": False},
        {"died": "exit status 3"},
        {"scenario": replace(SCENARIO, backends=4)},
        {"steps": ()},
        {"steps": (replace(STEP, kind="Down"),)},
        {"steps": (replace(STEP, backend=0),)},
        {"steps": (replace(STEP, asked_s=0.9),)},
        {"steps": (replace(STEP, effective_s=math.nan),)},
        {"steps": (replace(STEP, healed_s=math.nan),)},
    ],
)
def test_all_else_that_was_seen_is_in_the_digest(change: dict[str, Any]) -> None:
    assert replace(full_history(), **change).digest() != full_history().digest()


def test_equal_bytes_in_different_tables_are_told_apart() -> None:
    health_checks, connections = np.zeros(26, dtype=HEALTH_CHECK), np.zeros(7, dtype=CONNECTION)
    assert health_checks.nbytes == connections.nbytes
    assert history_of(health_checks=health_checks).digest() != history_of(connections=connections).digest()


def test_what_was_not_seen_is_not_in_the_digest() -> None:
    history = full_history()
    assert replace(history, facts={"machine": "slow"}).digest() == history.digest()
    assert history.with_baselines({"random": history_of()}).digest() == history.digest()


def test_rows_need_not_lie_together() -> None:
    history = full_history()
    doubled = np.repeat(history.requests, 2)
    assert replace(history, requests=doubled[::2]).digest() == history.digest()


def test_requests_that_were_never_sent() -> None:
    rows = empty_requests(3)
    assert rows["number"].tolist() == [0, 1, 2]
    assert all(np.isnan(rows[name]).all() for name in ("intended_s", "sent_s", "first_byte_s", "end_s"))
    assert all((rows[name] == -1).all() for name in ("key", "connection", "answered_by"))
    assert (rows["failure"] == Failure.NOT_SENT).all()
    assert not History(SCENARIO, 1, rows).answered().any()
