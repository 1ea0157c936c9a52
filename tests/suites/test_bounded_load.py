"""Bounded load on hand-written histories: requests in flight per backend, and the backends of a hot key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from harness.claims.features import BoundedLoad, Claims
from harness.evidence.history import History
from harness.property.declare import Property
from harness.property.findings import undecided
from harness.property.verdict import Outcome
from harness.scenario.arrivals import Arrival
from harness.scenario.fast_dataclass import scale_durations
from harness.scenario.model import Failure, Keys, Scenario, UnsupportedError
from suites.bounded_load import (
    QUIET_S,
    arrivals_under_pressure,
    bound_of,
    hot_key,
    hot_key_capped,
    spill_comes_home,
    spill_not_rejected,
)
from suites.margins import BOOKKEEPING_S
from tests.suites.histories import history_of, only, outcome

ALL = [hot_key_capped, spill_not_rejected, spill_comes_home]
ALONE, HOT, CROWD, AGAIN = 0, 1, 2, 3
HOME = 2

RUSH_S, APART_S = 2.0, 0.001
"""In the small run requests of the hot key come a millisecond apart, so that every place and time is known."""


def claimed(factor: float = 1.25) -> Claims:
    """Claims of a bound."""
    return Claims((BoundedLoad(factor=factor),))


def rushing(
    places: Sequence[int | None], took_s: float = 0.05, again: Sequence[int] = (HOME,) * 10, apart_s: float = APART_S
) -> History:
    """A small run: the hot key goes to these backends in turn, and after the rush to those of `again`."""
    whole = hot_key(claimed())
    alone, hot, crowd, after = whole.load.streams
    streams = (
        alone,
        replace(hot, start_s=RUSH_S, rate_per_s=1 / apart_s, requests=len(places), arrivals="constant"),
        replace(crowd, start_s=2.5, requests=1),
        after,
    )
    scenario = replace(whole, load=replace(whole.load, streams=streams))
    counts = dict.fromkeys(range(4), 0)
    turns = {ALONE: [HOME] * 10, HOT: places, CROWD: [0], AGAIN: again}

    def place_of(arrival: Arrival) -> int | None:
        stream = arrival.stream
        counts[stream] += 1
        return turns[stream][counts[stream] - 1]

    history = history_of(scenario, place_of)
    rush = history.requests["stream"] == HOT
    history.requests["end_s"][rush] = history.requests["sent_s"][rush] + took_s
    late = rush[history.attempts["request"]]
    history.attempts["end_s"][late] = history.attempts["start_s"][late] + took_s
    return history


EVEN = [0, 1, 2, 3] * 3
"""With a factor of 1.25 over four backends the bounds are 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4."""


# --- the scenario -------------------------------------------------------------------------------------------


def test_the_rush() -> None:
    scenario = hot_key(claimed())
    assert scenario.end_s == pytest.approx(3.95)
    hot, crowd = scenario.load.streams[HOT], scenario.load.streams[CROWD]
    assert (hot.requests, crowd.requests, hot.keys) == (480, 120, Keys(1, "sweep"))
    assert hot.output_tokens * scenario.server.decode_step_s == pytest.approx(0.05)
    assert scenario.intervals_s == (QUIET_S,)


def test_a_bound_that_would_not_be_reached_is_not_judged() -> None:
    """The hot key is 0.8 of all in flight; a backend may have at most 0.6 of it."""
    assert hot_key(claimed(2.4)).backends == 4
    with pytest.raises(UnsupportedError, match=r"with a factor of 2\.41 one of 4 backends may take nearly all load"):
        hot_key(claimed(2.41))
    with pytest.raises(UnsupportedError, match="needs 3 backends"):
        hot_key(replace(claimed(), fixed_backends=2))
    assert hot_key(replace(claimed(), fixed_backends=3)).backends == 3


# --- the bound ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "total", "backends", "bound"),
    [(1.25, 1, 4, 1), (1.25, 8, 4, 3), (1.25, 16, 4, 5), (1.25, 17, 4, 6), (1.1, 10, 1, 11), (1.1, 100, 10, 11)],
)
def test_bounds(factor: float, total: int, backends: int, bound: int) -> None:
    assert bound_of(factor, total, backends) == bound


def test_every_arrival_has_its_own_bound() -> None:
    found = arrivals_under_pressure(rushing(EVEN), claimed())
    assert [arrival.bound for arrival in found] == [1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert [arrival.in_flight for arrival in found] == [1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]
    assert [arrival.backend for arrival in found] == EVEN[1:]


@pytest.mark.parametrize(
    ("places", "above", "observed", "bound"),
    [
        (EVEN, 0, 1, 1),
        ([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2], 0, 1, 1),
        ([0, 1, 2, 0, 1, 2, 0, 0], 1, 4, 3),
        ([0, 1, 2, 2, 2], 1, 3, 2),
        ([0] * 12, 11, 12, 4),
    ],
)
def test_in_flight_and_bound(places: list[int], above: int, observed: int, bound: int) -> None:
    found = only(hot_key_capped, rushing(places), claimed())
    assert (found.ok, found.observed, found.bound) == (not above, observed, bound)
    assert found.sample == len(places) - 1 and not found.exact
    assert found.note.startswith(f"{above} of {len(places) - 1} arrivals above the bound")


def test_a_larger_factor_allows_more() -> None:
    assert outcome(hot_key_capped, rushing([0, 1, 2, 0, 1, 2, 0, 0]), claimed(2.0)) is Outcome.PASS


def test_who_has_ended_does_not_count() -> None:
    """Each takes 2.5 ms: one at a time at each of two backends is within the bound."""
    short = rushing([0, 1] * 20, took_s=0.0025)
    assert all(arrival.in_flight <= 2 for arrival in arrivals_under_pressure(short, claimed()))
    assert arrivals_under_pressure(rushing([0, 1] * 20), claimed())[-1].in_flight == 20


@pytest.mark.parametrize(("waits_s", "bound"), [(0.0, 4), (0.0001 - BOOKKEEPING_S, 4), (-0.0001 - BOOKKEEPING_S, 3)])
def test_a_client_that_was_just_answered_counts_among_all(waits_s: float, bound: int) -> None:
    """The last of twelve is sent at 2.011 s; three of the others were answered just then, or earlier."""
    history = rushing(EVEN)
    mine = np.flatnonzero(history.requests["stream"] == HOT)
    history.requests["end_s"][mine[:3]] = history.requests["sent_s"][mine[-1]] + waits_s
    assert arrivals_under_pressure(history, claimed())[-1].bound == bound


@pytest.mark.parametrize(("slack_s", "bound"), [(0.0, 3), (0.0095, 4)])
def test_slack_allows_a_late_count(slack_s: float, bound: int) -> None:
    """Three clients were answered 10 ms before the last of twelve was sent."""
    history = rushing(EVEN)
    mine = np.flatnonzero(history.requests["stream"] == HOT)
    history.requests["end_s"][mine[:3]] = history.requests["sent_s"][mine[-1]] - 0.01
    noisy = replace(history, slack_s=np.full(int(history.scenario.end_s) + 1, slack_s))
    assert arrivals_under_pressure(noisy, claimed())[-1].bound == bound


def test_who_was_answered_while_a_request_was_on_its_way_counts_among_all() -> None:
    """The last of twelve takes 30 ms to its backend; three others were answered 10 ms before its arrival."""
    history = rushing(EVEN)
    mine = np.flatnonzero(history.requests["stream"] == HOT)
    history.attempts["start_s"][history.attempts["request"] == mine[-1]] += 0.03
    history.requests["end_s"][mine[:3]] = history.requests["sent_s"][mine[-1]] + 0.02
    assert arrivals_under_pressure(history, claimed())[-1].bound == 4


def test_requests_that_were_never_sent_are_not_among_those_that_ended() -> None:
    history = rushing([*EVEN, None])
    number = np.flatnonzero(history.requests["status"] == 502)
    history.requests["sent_s"][number], history.requests["end_s"][number] = np.nan, 1.0
    assert arrivals_under_pressure(history, claimed()) == arrivals_under_pressure(rushing(EVEN), claimed())


def test_others_are_held_to_the_bound_as_well() -> None:
    history = rushing(EVEN)
    crowd = np.flatnonzero(history.requests["stream"] == CROWD)
    history.requests["sent_s"][crowd], history.requests["end_s"][crowd] = 2.02, 2.07
    theirs = np.isin(history.attempts["request"], crowd)
    history.attempts["start_s"][theirs], history.attempts["end_s"][theirs] = 2.02, 2.07
    last = arrivals_under_pressure(history, claimed())[-1]
    assert (last.at_s, last.backend, last.in_flight, last.bound) == (2.02, 0, 4, 5)


def test_requests_on_their_way_count_among_all() -> None:
    """Seven more clients have sent requests before the twelfth arrives, although no backend has seen them."""
    history = rushing(EVEN + [None] * 7)
    before = arrivals_under_pressure(history, claimed())[-1]
    late = history.attempts["start_s"] == history.attempts["start_s"][history.attempts["start_s"] < 2.4].max()
    history.attempts["start_s"][late] += 0.008
    after = arrivals_under_pressure(history, claimed())[-1]
    assert (before.bound, after.bound, after.in_flight) == (4, 6, 3)


def test_an_attempt_that_never_ends_stays_in_flight() -> None:
    history = rushing([0, 1] * 20, took_s=0.0025)
    rush = np.flatnonzero(history.attempts["start_s"] >= RUSH_S)
    history.attempts["end_s"][rush[:1]] = np.nan
    assert max(arrival.in_flight for arrival in arrivals_under_pressure(history, claimed())) == 3


def test_foreign_attempts_are_nobodys() -> None:
    history = rushing(EVEN)
    foreign = history.attempts[history.attempts["start_s"] >= RUSH_S][:4].copy()
    foreign["request"], foreign["backend"] = -1, 0
    more = replace(history, attempts=np.concatenate([history.attempts, foreign]))
    assert arrivals_under_pressure(more, claimed()) == arrivals_under_pressure(history, claimed())


def test_a_finding_for_each_second() -> None:
    """The hot key again one second later, when it goes to one backend only."""
    history = rushing(EVEN + [0] * 12)
    later = np.flatnonzero(history.requests["stream"] == HOT)[12:]
    for name in ("sent_s", "end_s"):
        history.requests[name][later] += 0.989
    moved = np.isin(history.attempts["request"], later)
    for name in ("start_s", "end_s"):
        history.attempts[name][moved] += 0.989
    found = hot_key_capped(history, claimed())
    assert [item.ok for item in found] == [True, False]  # type: ignore[union-attr]


@pytest.mark.parametrize("item", ALL, ids=lambda item: str(item.name))
def test_without_pressure_no_finding(item: Property) -> None:
    """51 milliseconds apart, and each ends within 50.5: never more than one at a time."""
    history = rushing(EVEN)
    rush = history.requests["stream"] == HOT
    for rows, mine in ((history.requests, rush), (history.attempts, rush[history.attempts["request"]])):
        for name in [name for name in ("sent_s", "start_s", "end_s") if name in (rows.dtype.names or ())]:
            rows[name][mine] += np.arange(12) * 0.05
    assert item(history, claimed()) == []
    assert outcome(item, history, claimed()) is Outcome.VACUOUS


@pytest.mark.parametrize("item", ALL, ids=lambda item: str(item.name))
def test_twice_as_long_is_judged_alike(item: Property) -> None:
    """The judge doubles every time of a scenario on a noisy machine. Some are just under pressure, one is not alone."""
    history = rushing(EVEN, apart_s=0.04)
    first_s = history.requests["sent_s"][history.requests["stream"] == AGAIN][0]
    history.requests["end_s"][history.requests["stream"] == CROWD] = first_s - 0.07
    longer: Scenario = scale_durations(history.scenario, 2.0)
    requests, attempts = history.requests.copy(), history.attempts.copy()
    for rows in (requests, attempts):
        for name in [name for name in rows.dtype.names or () if name.endswith("_s")]:
            rows[name] *= 2
    slow = replace(history, scenario=longer, requests=requests, attempts=attempts)
    (one,), (other,) = item(history, claimed()), item(slow, claimed())
    assert (one.ok, one.sample) == (other.ok, other.sample) == (True, one.sample)  # type: ignore[union-attr]


@pytest.mark.parametrize("item", ALL, ids=lambda item: str(item.name))
def test_noise_leaves_it_undecided(item: Property) -> None:
    noisy = replace(rushing(EVEN), slack_s=np.full(5, 0.2 * QUIET_S + 0.001))
    assert outcome(item, noisy, claimed()) is Outcome.INCONCLUSIVE
    assert outcome(item, replace(noisy, slack_s=np.full(5, 0.2 * QUIET_S - 0.001)), claimed()) is Outcome.PASS


# --- no request is rejected ---------------------------------------------------------------------------------


def test_all_of_the_rush_was_answered() -> None:
    found = only(spill_not_rejected, rushing(EVEN), claimed())
    assert (found.ok, found.observed, found.bound, found.sample) == (True, 0, 0, 13)


@pytest.mark.parametrize(
    ("status", "failure", "rejected"),
    [
        (503, Failure.NONE, 1),
        (429, Failure.NONE, 1),
        (0, Failure.TIMEOUT, 1),
        (0, Failure.REFUSED, 1),
        (0, Failure.NOT_SENT, 0),
        (0, Failure.STALE_CONNECTION, 0),
    ],
)
def test_one_that_no_backend_saw(status: int, failure: Failure, rejected: int) -> None:
    history = rushing([*EVEN, None])
    number = np.flatnonzero(history.requests["status"] == 502)
    history.requests["status"][number], history.requests["failure"][number] = status, failure
    found = only(spill_not_rejected, history, claimed())
    assert (found.ok, found.observed, found.sample) == (not rejected, rejected, 14)
    assert found.note == f"{rejected} of 14 requests were rejected in the rush"


def test_an_error_of_a_backend_is_no_rejection() -> None:
    history = rushing(EVEN)
    history.requests["status"][np.flatnonzero(history.requests["stream"] == HOT)[5]] = 500
    assert only(spill_not_rejected, history, claimed()).ok


def test_an_answer_whose_attempt_nobody_knows_is_no_rejection() -> None:
    history = rushing(EVEN)
    answered = np.flatnonzero(history.requests["stream"] == HOT)[5]
    unknown = replace(history, attempts=history.attempts[history.attempts["request"] != answered])
    assert only(spill_not_rejected, unknown, claimed()).ok


def test_errors_outside_the_rush_are_not_counted() -> None:
    history = rushing(EVEN)
    gone = np.flatnonzero(history.requests["stream"] == ALONE)[0]
    history.requests["status"][gone] = 503
    without = replace(history, attempts=history.attempts[history.attempts["request"] != gone])
    assert only(spill_not_rejected, without, claimed()).ok


# --- the spill comes home -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("again", "astray"), [([HOME] * 10, 0), ([HOME] * 9 + [3], 1), ([3] * 10, 10)])
def test_where_the_hot_key_goes_after_the_rush(again: list[int], astray: int) -> None:
    found = only(spill_comes_home, rushing(EVEN, again=again), claimed())
    assert (found.ok, found.observed, found.bound, found.sample) == (not astray, astray, 0, 10)
    assert found.at_s == pytest.approx(2.95) and found.until_s == pytest.approx(3.95)
    assert found.note == f"{astray} of 10 requests after the rush did not go home to gpu-2"


@pytest.mark.parametrize(("before_s", "sample"), [(QUIET_S - 0.001, 9), (QUIET_S + 0.001, 10)])
def test_only_a_request_that_was_alone_must_go_home(before_s: float, sample: int) -> None:
    """The first request after the rush spills, because another was in progress shortly before."""
    history = rushing(EVEN, again=[3] + [HOME] * 9)
    first_s = history.requests["sent_s"][history.requests["stream"] == AGAIN][0]
    history.requests["end_s"][history.requests["stream"] == CROWD] = first_s - before_s
    found = only(spill_comes_home, history, claimed())
    assert (found.ok, found.sample) == (sample == 9, sample)


def test_a_request_that_was_never_answered_leaves_nobody_alone() -> None:
    history = rushing(EVEN)
    history.requests["end_s"][history.requests["stream"] == CROWD] = np.nan
    assert spill_comes_home(history, claimed()) == []


def test_a_hot_key_without_a_home() -> None:
    history = rushing(EVEN)
    history.attempts["backend"][3] = 0
    expected = "the hot key went to 2 backends before the rush: it has no home"
    assert spill_comes_home(history, claimed()) == [undecided(expected)]


@pytest.mark.parametrize(("stream", "what"), [(ALONE, "before"), (AGAIN, "after")])
@pytest.mark.parametrize("alone", [4, 5])
def test_too_few_were_alone(stream: int, what: str, alone: int) -> None:
    """Each of the first requests takes so long that the next one is not alone."""
    history = rushing(EVEN)
    mine = np.flatnonzero(history.requests["stream"] == stream)
    history.requests["end_s"][mine[: 10 - alone]] += 0.05
    found = spill_comes_home(history, claimed())
    expected = f"only {alone} of 10 requests {what} the rush met an idle fleet"
    assert (found == [undecided(expected)]) == (alone == 4)
    assert outcome(spill_comes_home, history, claimed()) is (Outcome.INCONCLUSIVE if alone == 4 else Outcome.PASS)


@pytest.mark.parametrize("stream", [ALONE, AGAIN])
@pytest.mark.parametrize(("reached", "count"), [(0, 0), (4, 1), (5, 1)])
def test_too_few_were_seen(stream: int, reached: int, count: int) -> None:
    history = rushing(EVEN)
    mine = np.flatnonzero(history.requests["stream"] == stream)
    unseen = replace(history, attempts=history.attempts[~np.isin(history.attempts["request"], mine[reached:])])
    findings = spill_comes_home(unseen, claimed())
    assert len(findings) == count
    assert (findings == [undecided(f"only {reached} of 10 requests reached a backend")]) == (reached == 4)


def test_streams_are_as_the_checks_expect() -> None:
    names = [stream.name for stream in hot_key(claimed()).load.streams]
    assert [names[number] for number in (ALONE, HOT, CROWD, AGAIN)] == ["alone", "hot", "crowd", "again"]
