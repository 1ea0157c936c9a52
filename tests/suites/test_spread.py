"""Spread on hand-written histories: exact for round robin, by the sequential test for the others."""

from __future__ import annotations

import pytest

from harness.arrivals import Arrival
from harness.claims import Claims, Spread
from harness.history import History
from harness.judge import decide
from harness.model import Connections, Kind, UnsupportedError
from harness.property import Sampled, undecided
from harness.verdict import Outcome
from suites.spread import one_connection, one_connection_even
from tests.suites.histories import history_of, only, outcome, unreached

TURNS = Claims((Spread(policy="round_robin"),))
TWO_WORKERS = Claims((Spread(policy="round_robin", workers=2),))
TWO_CHOICES = Claims((Spread(policy="two_choices"),))


def turns(astray: int, claims: Claims = TURNS) -> History:
    """Each in turn, but for `astray` requests of gpu-1 that went to gpu-0."""

    def place_of(arrival: Arrival) -> int:
        backend = arrival.number % 4
        return 0 if backend == 1 and arrival.number < 4 * astray else backend

    return history_of(one_connection(claims), place_of)


@pytest.mark.parametrize(
    ("astray", "claims", "ok"),
    [(0, TURNS, True), (1, TURNS, True), (2, TURNS, False), (2, TWO_WORKERS, True), (3, TWO_WORKERS, False)],
)
def test_round_robin_may_be_off_by_one_for_each_worker(astray: int, claims: Claims, ok: bool) -> None:
    found = only(one_connection_even, turns(astray, claims), claims)
    assert (found.ok, found.observed, found.bound, found.sample) == (ok, astray, claims[Spread].workers, 400)
    assert found.exact
    assert found.note == f"requests by backend: {100 + astray}, {100 - astray}, 100, 100"


def test_a_backend_that_got_nothing_counts() -> None:
    found = only(one_connection_even, history_of(one_connection(TURNS), lambda arrival: arrival.number % 3), TURNS)
    assert (found.ok, found.observed) == (False, 100)


@pytest.mark.parametrize("claims", [TURNS, TWO_CHOICES], ids=["round robin", "two choices"])
def test_a_sliver_proves_nothing(claims: Claims) -> None:
    whole = history_of(one_connection(claims), lambda arrival: arrival.number % 4)
    asked = len(whole.requests)
    findings = one_connection_even(unreached(whole, 11), claims)
    assert findings == [undecided(f"only 11 of {asked} requests reached a backend")]
    assert decide(findings, whole).outcome is Outcome.INCONCLUSIVE


def test_half_is_no_sliver() -> None:
    assert outcome(one_connection_even, unreached(turns(0), 199), TURNS) is Outcome.INCONCLUSIVE
    assert outcome(one_connection_even, unreached(turns(0), 200), TURNS) is Outcome.PASS


@pytest.mark.parametrize("claims", [TURNS, TWO_CHOICES], ids=["round robin", "two choices"])
def test_no_attempt_no_finding(claims: Claims) -> None:
    assert one_connection_even(history_of(one_connection(claims), lambda arrival: None), claims) == []


# --- shares -----------------------------------------------------------------------------------------------


def shares(weights: list[int]) -> History:
    """Requests dealt out by weight, mixed by a fixed stride so that every stretch has its share."""
    pack = [backend for backend, weight in enumerate(weights) for _ in range(weight)]
    return history_of(one_connection(TWO_CHOICES), lambda arrival: pack[arrival.number * 7 % len(pack)])


def test_even_shares_hold() -> None:
    findings = one_connection_even(shares([5, 5, 5, 5]), TWO_CHOICES)
    assert len(findings) == 4
    for number, found in enumerate(findings):
        assert isinstance(found, Sampled)
        assert (found.conform, found.violate) == ((0.25, 0.25), (0.15, 0.35))
        assert found.alpha == 1e-4 / 4
        asked = len(found.hits)
        assert found.note.startswith(f"gpu-{number} got ") and found.note.endswith(f" of {asked}")
    verdict = decide(findings, shares([5, 5, 5, 5]))
    assert verdict.outcome is Outcome.PASS
    assert verdict.alpha == pytest.approx(1e-4)
    assert [row.ok for row in verdict.rows] == [True] * 4


@pytest.mark.parametrize(
    ("weights", "broken"),
    [
        ([5, 5, 7, 3], [False, False, True, True]),
        ([20, 0, 0, 0], [True] * 4),
        ([7, 5, 4, 4], [True, False, False, False]),
    ],
)
def test_shares_of_forty_per_cent_too_much_or_too_little_break_it(weights: list[int], broken: list[bool]) -> None:
    history = shares(weights)
    verdict = decide(one_connection_even(history, TWO_CHOICES), history)
    assert verdict.outcome is Outcome.FAIL
    assert [row.ok is False for row in verdict.rows] == broken
    assert verdict.decisive is not None
    assert verdict.decisive.bound == (0.15, 0.35)


def test_too_short_a_load_is_undecided() -> None:
    """Three fifths of the load is no sliver, but not enough for the sequential test where shares lie in between."""
    whole = shares([6, 5, 5, 4])
    history = unreached(whole, len(whole.requests) * 3 // 5)
    verdict = decide(one_connection_even(history, TWO_CHOICES), history)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert not verdict.by_slack


# --- scenario ---------------------------------------------------------------------------------------------


def test_updates_come_over_one_connection() -> None:
    (stream,) = one_connection(TURNS).load.streams
    assert (stream.kind, stream.connections, stream.requests) == (Kind.UPDATE, Connections.ONE, 400)
    with pytest.raises(UnsupportedError, match="openai has no updates"):
        one_connection(Claims((Spread(),), protocol="openai"))
