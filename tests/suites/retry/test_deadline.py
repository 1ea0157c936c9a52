"""Deadlines and timeouts of retries on hand-written histories."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.claims.features import Claims, Retry
from harness.property.findings import Held, Within
from harness.property.verdict import Outcome
from harness.scenario.faults import Hang
from harness.scenario.model import Failure, Kind, UnsupportedError
from suites.margins import NOTICE_S
from suites.retry.deadline import BEGIN_S, deadline_holds, time_runs_out, timeout_only_claimed
from tests.suites.histories import outcome
from tests.suites.retry_histories import TriedRequest, Try, drop, left, refusal, written

DEADLINE_S = 2.0
CLAIMS = Claims((Retry(attempts=3, statuses=(503,), deadline_s=DEADLINE_S),))
SCENARIO = time_runs_out(CLAIMS)
FREED_S = BEGIN_S + 0.6 * DEADLINE_S


def hung(took_s: float, sent_s: float = 0.2) -> TriedRequest:
    """A request whose only attempt hangs until the balancer answers."""
    return TriedRequest((left(sent_s, sent_s + took_s, 1),), 504, sent_s=sent_s, end_s=sent_s + took_s)


def tried_again(took_s: float, sent_s: float = 0.2) -> TriedRequest:
    """A request that the first backend drops when its hang ends, and that then hangs at the second."""
    tries = (drop(sent_s), left(FREED_S + 0.02, sent_s + took_s, 1))
    return TriedRequest(tries, 504, sent_s=sent_s, end_s=sent_s + took_s)


def within_of(*requests: TriedRequest) -> list[Within]:
    """All findings of the deadline, which are times."""
    found = deadline_holds(written(SCENARIO, requests), CLAIMS)
    assert all(isinstance(item, Within) for item in found)
    return [item for item in found if isinstance(item, Within)]


def test_the_scenario_follows_the_claimed_deadline() -> None:
    assert SCENARIO.timeline == (Hang("gpu-0", 0.0, for_s=FREED_S), Hang("gpu-1", 0.0))
    assert {stream.timeout_s for stream in SCENARIO.load.streams} == {2 * DEADLINE_S}
    assert SCENARIO.intervals_s == (DEADLINE_S,)
    with pytest.raises(UnsupportedError, match="no deadline"):
        time_runs_out(Claims((Retry(),)))


def test_a_deadline_that_is_kept() -> None:
    alone, several, begun = within_of(hung(2.0), hung(1.9), tried_again(2.0))
    assert alone.observed_s == pytest.approx(2.0) and alone.sample == 2
    assert several.observed_s == pytest.approx(2.0) and several.sample == 1
    assert begun.observed_s == pytest.approx(FREED_S + 0.02 - 0.2) and begun.sample == 1
    assert {(item.low_s, item.high_s) for item in (alone, several, begun)} == {(0.0, DEADLINE_S + NOTICE_S)}


@pytest.mark.parametrize("make", [hung, tried_again])
def test_just_inside_and_just_outside(make: Callable[[float], TriedRequest]) -> None:
    def judged(took_s: float, slack_s: float = 0.0) -> Outcome:
        return outcome(deadline_holds, written(SCENARIO, [make(took_s)], slack_s), CLAIMS)

    assert judged(DEADLINE_S + NOTICE_S - 0.001) is Outcome.PASS
    assert judged(DEADLINE_S + NOTICE_S + 0.001) is Outcome.FAIL
    assert judged(DEADLINE_S + NOTICE_S + 0.001, slack_s=0.002) is Outcome.PASS
    assert judged(DEADLINE_S + NOTICE_S + 1.0, slack_s=0.41) is Outcome.INCONCLUSIVE


def test_quick_answers_do_not_put_it_to_the_test() -> None:
    assert within_of(hung(0.9 * DEADLINE_S - 0.001)) == []
    assert len(within_of(hung(0.9 * DEADLINE_S + 0.001))) == 1
    assert within_of(TriedRequest((), 503, sent_s=0.2, end_s=4.0)) == [], "nothing was sent to a backend"


def test_a_client_that_left_first_has_waited_too_long() -> None:
    left_first = TriedRequest((left(0.2, 4.2),), 0, failure=Failure.TIMEOUT, sent_s=0.2, end_s=4.2)
    assert outcome(deadline_holds, written(SCENARIO, [left_first]), CLAIMS) is Outcome.FAIL


def test_no_attempt_begins_after_the_deadline() -> None:
    """The client was answered in time, but the balancer continued."""
    late = TriedRequest((refusal(0.2), Try(2.4, 1)), 504, sent_s=0.2, end_s=2.2)
    several, begun = within_of(late)
    assert several.observed_s == pytest.approx(2.0)
    assert begun.observed_s == pytest.approx(2.2) and begun.observed_s > begun.high_s


# --- time limits ------------------------------------------------------------------------------------------


def limits(claims: Claims, *requests: TriedRequest) -> list[tuple[str, bool, object, int | None]]:
    """Findings about timeouts: kind, verdict, figure, sample."""
    found = timeout_only_claimed(written(SCENARIO, requests), claims)
    assert all(isinstance(item, Held) and item.exact for item in found)
    return [(item.note.split(":")[0], item.ok, item.observed, item.sample) for item in found if isinstance(item, Held)]


def given_up(kind: Kind, again: bool) -> TriedRequest:
    """A request whose first attempt timed out."""
    first = left(0.2, 0.7)
    return TriedRequest((first, left(0.72, 2.2, 1)) if again else (first,), 504, kind)


def test_what_ran_into_a_time_limit_is_left_alone() -> None:
    once = [given_up(kind, again=False) for kind in (Kind.INFERENCE, Kind.UPDATE)]
    assert limits(CLAIMS, *once) == [("updates", True, 0, 1), ("inference", True, 0, 1)]


@pytest.mark.parametrize(("kind", "name"), [(Kind.INFERENCE, "inference"), (Kind.UPDATE, "updates")])
def test_what_ran_into_a_time_limit_is_tried_again(kind: Kind, name: str) -> None:
    assert limits(CLAIMS, given_up(kind, again=True)) == [(name, False, 1, 2)]


def test_where_it_is_claimed_only_updates_are_judged() -> None:
    claims = Claims((Retry(statuses=(503,), on_timeout=True, deadline_s=DEADLINE_S),))
    both = [given_up(kind, again=True) for kind in (Kind.INFERENCE, Kind.UPDATE)]
    assert limits(claims, *both) == [("updates", False, 1, 2)]


def test_dropped_connections_and_impatient_clients_are_no_time_limits() -> None:
    assert limits(CLAIMS, TriedRequest((drop(0.2), Try(1.4, 0)))) == []
    assert limits(CLAIMS, TriedRequest((left(0.2, 4.2),), 0, failure=Failure.TIMEOUT)) == []
    again = TriedRequest((left(0.2, 2.0), left(2.1, 4.2, 1)), 0, failure=Failure.TIMEOUT)
    assert limits(CLAIMS, again) == [("inference", False, 1, 1)], "a client that left later excuses nothing"
