"""Shares by memory on hand-written histories: holds of the model, memory reports, and picks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.evidence.history import History
from harness.evidence.tables import HEALTH_CHECK, RESIDENCY
from harness.property.verdict import Outcome
from harness.scenario.model import Kind, Residency
from suites.health_share.scenarios import (
    DECODE_STEP_S,
    HOLD,
    HOLD_EVERY_S,
    HOLD_S,
    TOUCH,
    WARM,
    full_zone,
    one_holds_a_model,
    warm_zone,
)
from suites.health_share.shares import memory_by_its_weight, warm_even
from suites.margins import KNOWN_WITHIN_S
from tests.suites.health_share_histories import CLAIMS, SICK, rate, shared, why
from tests.suites.histories import outcome

SCENARIO = one_holds_a_model(CLAIMS)
FIRST_HOLD_S = SCENARIO.phase("full").start_s


def numbers(history: History, stream: str) -> list[int]:
    """Numbers of the requests of a stream, which are also the rows of their attempts."""
    return [int(number) for number in np.flatnonzero(history.in_stream(stream))]


def held(
    share: float = 0.5, warm: float = 0.5, trickle: float = 0.5, told_after_s: float = 0.3, hold_s: float = HOLD_S
) -> History:
    """gpu-1 loads the model, with one share while idle and another while held; a health check sees each hold."""
    holds = [name for name in (stream.name for stream in SCENARIO.load.streams) if name.startswith("full-")]
    shares = {name.replace("-", "_"): share for name in holds}
    history = shared(SCENARIO, **shares, warm=warm, trickle=trickle, touch=1.0, hold=1.0)
    attempts = history.attempts.copy()
    for number in numbers(history, HOLD):
        attempts["end_s"][number] = attempts["start_s"][number] + hold_s
    health_checks = [(SICK, 200, attempts["start_s"][number] + told_after_s) for number in numbers(history, HOLD)]
    loaded = [(SICK, Residency.LOADING, b"m", 0.2), (SICK, Residency.LOADED, b"m", 0.25)]
    return replace(
        history,
        attempts=attempts,
        health_checks=np.array(health_checks, dtype=HEALTH_CHECK),
        residency=np.array(loaded, dtype=RESIDENCY),
    )


def changed(history: History, stream: str, column: str, value: float) -> History:
    """`history` with this column of the first attempt of a stream set to `value`."""
    attempts = history.attempts.copy()
    attempts[column][numbers(history, stream)[0]] = value
    return replace(history, attempts=attempts)


# --- in use -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "due"), [(0.4, "pass"), (0.39, "pass"), (0.52, "fail"), (0.2, "fail"), (0.0, "fail")]
)
def test_a_share_by_the_memory_in_use(share: float, due: str) -> None:
    history = held(share)
    found = rate(memory_by_its_weight, history)
    assert (found.conform, found.violate) == full_zone(CLAIMS, 2)
    assert outcome(memory_by_its_weight, history, CLAIMS) == Outcome(due)


def test_each_hold_is_judged_from_its_report_to_its_end() -> None:
    found = rate(memory_by_its_weight, held())
    assert found.at_s == pytest.approx(FIRST_HOLD_S + 0.3 + KNOWN_WITHIN_S)
    assert found.until_s == pytest.approx(FIRST_HOLD_S + HOLD_EVERY_S + HOLD_S)
    sent_s = held().requests["sent_s"][held().requests["kind"] == Kind.UPDATE]
    starts_s = FIRST_HOLD_S + HOLD_EVERY_S * np.arange(2)
    inside = [(sent_s >= start_s + 0.4) & (sent_s < start_s + HOLD_S) for start_s in starts_s]
    assert len(found.hits) == np.count_nonzero(np.any(inside, axis=0))


def test_without_a_health_check_in_time_the_claimed_times_count() -> None:
    """A report is due after an interval and a timeout: 1.5 s of the 1.85."""
    found = rate(memory_by_its_weight, held(told_after_s=1.55))
    assert found.at_s == pytest.approx(FIRST_HOLD_S + 1.5 + KNOWN_WITHIN_S)
    assert memory_by_its_weight(held(told_after_s=1.55, hold_s=1.55), CLAIMS) == []


def test_only_its_own_health_checks_tell_of_a_backend() -> None:
    history = held()
    other = np.array([(0, 200, FIRST_HOLD_S + 0.1)], dtype=HEALTH_CHECK)
    found = rate(memory_by_its_weight, replace(history, health_checks=np.append(other, history.health_checks)))
    assert found.at_s == rate(memory_by_its_weight, history).at_s


def test_only_updates_count() -> None:
    history = held()
    before = rate(memory_by_its_weight, history).hits
    history.requests["sent_s"][numbers(history, HOLD)] += 0.5
    assert rate(memory_by_its_weight, history).hits == before


def test_a_hold_counts_once_its_model_is_loaded() -> None:
    """The health check at .3 s precedes the load, so the report is due 1.5 s after the load: too late for this hold."""
    early = rate(memory_by_its_weight, changed(held(), HOLD, "queue_wait_s", 0.2))
    assert early.at_s == rate(memory_by_its_weight, held()).at_s
    late = rate(memory_by_its_weight, changed(held(), HOLD, "queue_wait_s", 0.4))
    assert late.at_s == pytest.approx(FIRST_HOLD_S + HOLD_EVERY_S + 0.3 + KNOWN_WITHIN_S)


def test_two_holds_at_once_are_not_judged() -> None:
    longer = changed(held(), HOLD, "end_s", FIRST_HOLD_S + HOLD_EVERY_S + 0.5)
    found = rate(memory_by_its_weight, longer)
    assert len(found.hits) < len(rate(memory_by_its_weight, held()).hits) + 600 * 0.65
    without_end = changed(held(), HOLD, "end_s", float("nan"))
    assert rate(memory_by_its_weight, without_end).until_s == SCENARIO.end_s


def test_a_hold_at_another_backend_is_judged_there() -> None:
    history = held(0.4)
    moved = changed(history, HOLD, "backend", 0)
    moved.health_checks["backend"][0] = 0
    hits, before = rate(memory_by_its_weight, moved).hits, rate(memory_by_its_weight, held(0.4)).hits
    sent_s = history.requests["sent_s"][history.requests["kind"] == Kind.UPDATE]
    first = np.count_nonzero((sent_s >= FIRST_HOLD_S + 0.3 + KNOWN_WITHIN_S) & (sent_s < FIRST_HOLD_S + HOLD_S))
    assert np.not_equal(hits, before)[:first].all()
    assert hits[first:] == before[first:]


def test_a_hold_that_was_never_served_is_none() -> None:
    history = changed(held(), HOLD, "queue_wait_s", np.nan)
    assert len(rate(memory_by_its_weight, history).hits) < len(rate(memory_by_its_weight, held()).hits)


def test_without_holds_no_finding() -> None:
    history = held()
    gone = history.attempts[~np.isin(history.attempts["request"], numbers(history, HOLD))]
    assert memory_by_its_weight(replace(history, attempts=gone), CLAIMS) == []


def test_updates_that_reach_nobody_decide_nothing() -> None:
    history = held()
    own = history.attempts[np.isin(history.attempts["request"], numbers(history, HOLD))]
    assert why(memory_by_its_weight, replace(history, attempts=own)).startswith("only 0 of ")


# --- idle ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "due"), [(0.5, "pass"), (0.55, "pass"), (0.407, "fail"), (0.3, "fail")])
def test_a_warm_backend_has_its_share(share: float, due: str) -> None:
    history = held(warm=share, trickle=share)
    found = rate(warm_even, history)
    assert (found.conform, found.violate) == warm_zone(CLAIMS, 2)
    assert found.at_s == SCENARIO.phase(WARM).start_s
    assert found.until_s == SCENARIO.phase(WARM).end_s
    assert outcome(warm_even, history, CLAIMS) == Outcome(due)


@pytest.mark.parametrize(("end_s", "late_s"), [(0.4, 0.0), (0.7, 0.2)])
def test_it_is_judged_once_its_idle_model_is_reported(end_s: float, late_s: float) -> None:
    """Phase "warm" begins at 2.0 s; a report is due 1.5 s after the end of the request."""
    history = changed(held(), TOUCH, "end_s", end_s)
    assert rate(warm_even, history).at_s == pytest.approx(2.0 + late_s)


def test_a_model_in_use_to_the_end_is_no_occasion() -> None:
    assert warm_even(changed(held(), TOUCH, "end_s", float("nan")), CLAIMS) == []


def test_one_backend_alone_is_warm() -> None:
    history = held()
    both = np.append(history.residency, np.array([(0, Residency.LOADING, b"m", 2.0)], dtype=RESIDENCY))
    assert why(warm_even, replace(history, residency=both)) == "2 backends were warm, not one"
    both["at_s"][-1] = SCENARIO.phase(WARM).end_s
    assert rate(warm_even, replace(history, residency=both)).hits
    assert why(warm_even, replace(history, residency=both[:0])) == "0 backends were warm, not one"


def test_a_hold_is_as_long_as_it_says() -> None:
    (hold,) = (stream for stream in SCENARIO.load.streams if stream.name == HOLD)
    assert hold.output_tokens * DECODE_STEP_S == pytest.approx(HOLD_S)
