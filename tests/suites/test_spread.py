"""Spread on hand-written histories: exact for round robin, by the sequential test for the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.balancer.picking.policies import POLICIES
from harness.claims.features import SPREAD_POLICIES, Claims, HealthShare, Spread
from harness.evidence.history import History
from harness.judge import Judge, decide
from harness.property.findings import Sampled, undecided
from harness.property.verdict import Outcome
from harness.scenario.arrivals import Arrival
from harness.scenario.faults import Slow
from harness.scenario.model import Connections, Kind, UnsupportedError, World
from harness.sim.world import play
from harness.stats import ShareTest
from harness.targets.reference import SUITE_PROFILE, ReferenceTarget
from suites.spread import (
    CLEARLY_MORE,
    SALVO,
    SLOWNESS,
    UPDATE_S,
    loaded_avoided,
    loaded_zone,
    one_connection,
    one_connection_even,
    one_slow,
)
from tests.suites.histories import history_of, only, outcome, unreached

TURNS = Claims((Spread(policy="round_robin"),))
TWO_WORKERS = Claims((Spread(policy="round_robin", workers=2),))
TWO_CHOICES = Claims((Spread(policy="two_choices"),))


def turns(astray: int, claims: Claims = TURNS) -> History:
    """Each in turn, except for `astray` requests of gpu-1 that went to gpu-0."""

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
    sent = len(whole.requests)
    findings = one_connection_even(unreached(whole, 11), claims)
    assert findings == [undecided(f"only 11 of {sent} requests reached a backend")]
    assert decide(findings, whole).outcome is Outcome.INCONCLUSIVE


def test_half_is_no_sliver() -> None:
    assert outcome(one_connection_even, unreached(turns(0), 199), TURNS) is Outcome.INCONCLUSIVE
    assert outcome(one_connection_even, unreached(turns(0), 200), TURNS) is Outcome.PASS


@pytest.mark.parametrize("claims", [TURNS, TWO_CHOICES], ids=["round robin", "two choices"])
def test_no_attempt_no_finding(claims: Claims) -> None:
    assert one_connection_even(history_of(one_connection(claims), lambda arrival: None), claims) == []


# --- shares -----------------------------------------------------------------------------------------------


def shares(weights: list[int]) -> History:
    """Requests distributed by weight, mixed with a fixed stride so that every period has its share."""
    pack = [backend for backend, weight in enumerate(weights) for _ in range(weight)]
    return history_of(one_connection(TWO_CHOICES), lambda arrival: pack[arrival.number * 7 % len(pack)])


def test_even_shares_hold() -> None:
    findings = one_connection_even(shares([5, 5, 5, 5]), TWO_CHOICES)
    assert len(findings) == 4
    for number, found in enumerate(findings):
        assert isinstance(found, Sampled)
        assert (found.conform, found.violate) == ((0.25, 0.25), (0.15, 0.35))
        assert found.alpha == 1e-4 / 4
        sent = len(found.hits)
        assert found.note.startswith(f"gpu-{number} got ") and found.note.endswith(f" of {sent}")
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
    """Three fifths of the load is enough to judge, but not for the sequential test if shares lie in between."""
    whole = shares([6, 5, 5, 4])
    history = unreached(whole, len(whole.requests) * 3 // 5)
    verdict = decide(one_connection_even(history, TWO_CHOICES), history)
    assert verdict.outcome is Outcome.INCONCLUSIVE


# --- scenario ---------------------------------------------------------------------------------------------


def test_updates_come_over_one_connection() -> None:
    (stream,) = one_connection(TURNS).load.streams
    assert (stream.kind, stream.connections, stream.requests) == (Kind.UPDATE, Connections.ONE, 400)
    with pytest.raises(UnsupportedError, match="openai has no updates"):
        one_connection(Claims((Spread(),), protocol="openai"))


# --- every policy of the reference ------------------------------------------------------------------------

SMOOTH = Claims((Spread(policy="weighted_round_robin"),))
BY_LATENCY = Claims((Spread(policy="ewma"),))


@pytest.mark.parametrize("policy", POLICIES)
def test_the_reference_is_judged_with_each_of_its_policies(policy: str) -> None:
    target = ReferenceTarget(replace(SUITE_PROFILE, spread=policy))
    assert target.claims[Spread].policy == policy
    assert Judge(target, 1, {World.SIM: play}).judge(one_connection_even, World.SIM).outcome is Outcome.PASS


def test_the_policies_that_can_be_claimed_are_those_of_the_reference() -> None:
    assert SPREAD_POLICIES == POLICIES


def test_smooth_turns_are_exact_too() -> None:
    assert only(one_connection_even, turns(2, SMOOTH), SMOOTH).ok is False
    assert only(one_connection_even, turns(0, SMOOTH), SMOOTH).ok is True


def test_weights_that_follow_health_need_not_be_equal() -> None:
    with pytest.raises(UnsupportedError, match="follow health"):
        one_connection(Claims((Spread(policy="weighted_random"), HealthShare())))


@pytest.mark.parametrize(
    ("weights", "expected"),
    [([1, 1, 1, 1], Outcome.PASS), ([4, 2, 1, 1], Outcome.PASS), ([9, 1, 1, 1], Outcome.FAIL)],
)
def test_latency_may_favour_a_backend_up_to_twice_its_share(weights: list[int], expected: Outcome) -> None:
    pack = [backend for backend, weight in enumerate(weights) for _ in range(weight)]
    history = history_of(one_connection(BY_LATENCY), lambda arrival: pack[arrival.number * 7 % len(pack)])
    assert outcome(one_connection_even, history, BY_LATENCY) is expected


def test_by_latency_everything_may_go_to_one_of_two() -> None:
    with pytest.raises(UnsupportedError, match="one of two"):
        one_connection(Claims(BY_LATENCY.features, fixed_backends=2))


# --- load -------------------------------------------------------------------------------------------------


def with_a_slow_one(share: int, extra: int = SALVO) -> History:
    """Salvos go round, except for the first of each beyond `extra` at gpu-0; of the rest every `share`-th goes there.

    0: none does. gpu-0 takes as long as it is slow; the others answer almost at once.
    """
    scenario = one_slow(TWO_CHOICES)
    salvos: dict[int, int] = {}

    def place_of(arrival: Arrival) -> int:
        if arrival.stream:
            turn = salvos[arrival.stream] = salvos.get(arrival.stream, -1) + 1
            return 0 if turn % 4 == 0 and turn < 4 * extra else 1 + turn % 3
        return 0 if share and arrival.number % share == 0 else 1 + arrival.number % 3

    history = history_of(scenario, place_of)
    attempts = history.attempts.copy()
    slow = attempts["backend"] == 0
    attempts["end_s"] = attempts["start_s"] + np.where(slow, SLOWNESS * UPDATE_S, 0.0001)
    return replace(history, attempts=attempts)


def test_a_loaded_backend_that_gets_nothing_more() -> None:
    history = with_a_slow_one(0)
    (found,) = loaded_avoided(history, TWO_CHOICES)
    assert isinstance(found, Sampled)
    assert found.conform == pytest.approx((0.0, 0.15))
    assert found.violate[0] is None and found.violate[1] == pytest.approx(0.225)
    assert outcome(loaded_avoided, history, TWO_CHOICES) is Outcome.PASS


@pytest.mark.parametrize(("share", "expected"), [(20, Outcome.PASS), (4, Outcome.FAIL), (2, Outcome.FAIL)])
def test_what_a_loaded_backend_gets_is_judged_by_its_share(share: int, expected: Outcome) -> None:
    assert outcome(loaded_avoided, with_a_slow_one(share), TWO_CHOICES) is expected


def test_without_clearly_more_in_flight_there_is_nothing_to_judge() -> None:
    """Two are not clearly more than none."""
    assert loaded_avoided(with_a_slow_one(0, CLEARLY_MORE - 1), TWO_CHOICES) == []
    assert loaded_avoided(with_a_slow_one(0, CLEARLY_MORE), TWO_CHOICES) != []


def test_only_who_minds_load_can_be_judged_by_it() -> None:
    for policy in POLICIES:
        claims = Claims((Spread(policy=policy),))
        if policy in ("least_connections", "two_choices", "ewma"):
            assert one_slow(claims).timeline == (Slow("gpu-0", 0.05, SLOWNESS),)
        else:
            with pytest.raises(UnsupportedError, match=f"{policy} ignores load"):
                one_slow(claims)


def test_there_are_enough_requests_to_tell_picks_at_random() -> None:
    (steady,) = (stream for stream in one_slow(TWO_CHOICES).load.streams if stream.name == "steady")
    assert steady.requests >= 1.5 * ShareTest(*loaded_zone(4)).cap
