"""Properties of a leave and of a return on hand-written histories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.claims.features import Affinity, Claims, HealthChecks
from harness.evidence.history import History
from harness.property.declare import Property
from harness.property.findings import Undecided, undecided
from harness.property.verdict import Outcome
from harness.scenario.arrivals import Arrival
from harness.scenario.model import UnsupportedError
from suites.affinity.leave_and_return import leave_share, only_departed_keys_move, return_restores
from suites.scenarios import LEAVE_KEYS, leave_and_return, steady
from tests.suites.histories import PlaceOf, history_of, only, outcome

BEFORE, AFTER, RESTORED = 0, 1, 2
LEAVE_CHECKS = [only_departed_keys_move, leave_share, return_restores]


def claimed(algorithm: str = "ring") -> Claims:
    """Claims of an affinity by this algorithm."""
    return Claims((Affinity(algorithm=algorithm),))


def fourth(arrival: Arrival) -> int:
    """Key k belongs to backend k modulo 4."""
    return arrival.key % 4


def leaving(place_of: PlaceOf, algorithm: str = "ring") -> History:
    """The run in which a backend leaves and returns."""
    return history_of(leave_and_return(claimed(algorithm)), place_of)


def moved(survivors: int, owned: int = LEAVE_KEYS // 4, leaver: int = 0) -> PlaceOf:
    """`leaver` owns the first `owned` keys; these and the next `survivors` keys move while it is away."""
    others = [backend for backend in range(4) if backend != leaver]

    def place_of(arrival: Arrival) -> int:
        home = leaver if arrival.key < owned else others[arrival.key % 3]
        away = arrival.stream == AFTER and arrival.key < owned + survivors
        return others[(arrival.key + 1) % 3] if away else home

    return place_of


# --- few requests reached a backend -----------------------------------------------------------------------


@pytest.mark.parametrize("item", LEAVE_CHECKS, ids=lambda item: str(item.name))
@pytest.mark.parametrize("scarce", [BEFORE, AFTER, RESTORED])
def test_moves_of_too_few_keys_are_undecided(item: Property, scarce: int) -> None:
    history = leaving(lambda arrival: arrival.key % 4 if arrival.stream != scarce or arrival.key < 11 else None)
    findings = item(history, claimed())
    compared = scarce == BEFORE or (scarce == RESTORED) == (item is return_restores)
    assert (findings == [undecided("only 11 of 1000 requests reached a backend")]) == compared


@pytest.mark.parametrize("item", LEAVE_CHECKS, ids=lambda item: str(item.name))
def test_none_reached_no_finding(item: Property) -> None:
    assert item(leaving(lambda arrival: arrival.key % 4 if arrival.stream == BEFORE else None), claimed()) == []


# --- leave: only departed keys move -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "survivors", "allowed", "ok"),
    [
        ("ring", 0, 0, True),
        ("ring", 1, 0, False),
        ("rendezvous", 1, 0, False),
        ("maglev", 37, 37, True),
        ("maglev", 38, 37, False),
        ("any", 37, 37, True),
        ("any", 38, 37, False),
    ],
)
def test_keys_of_survivors(algorithm: str, survivors: int, allowed: int, ok: bool) -> None:
    found = only(only_departed_keys_move, leaving(moved(survivors), algorithm), claimed(algorithm))
    assert (found.ok, found.observed, found.bound, found.sample) == (ok, survivors, allowed, 750)
    assert found.exact
    assert found.note == f"gpu-0 left at 1.6 s: {survivors} of 750 keys of the survivors moved"


@pytest.mark.parametrize(("survivors", "ok"), [(0, True), (1, False)])
def test_jump_hashing_loses_its_last_backend(survivors: int, ok: bool) -> None:
    found = only(only_departed_keys_move, leaving(moved(survivors, leaver=3), "jump"), claimed("jump"))
    assert (found.ok, found.observed, found.bound, found.sample) == (ok, survivors, 0, 750)
    assert found.note.startswith("gpu-3 left at 1.6 s")


def test_without_survivors_no_finding() -> None:
    alone = leaving(lambda arrival: 1 if arrival.stream == AFTER else 0)
    assert only_departed_keys_move(alone, claimed()) == []


@pytest.mark.parametrize("item", [only_departed_keys_move, leave_share], ids=lambda item: str(item.name))
def test_a_leaver_that_still_gets_keys_is_undecided(item: Property) -> None:
    reason = "gpu-0 has left but still gets 250 keys: the mapping without it was not seen"
    assert item(leaving(fourth), claimed()) == [undecided(reason)]


@pytest.mark.parametrize("item", LEAVE_CHECKS, ids=lambda item: str(item.name))
def test_a_change_too_late_is_undecided(item: Property) -> None:
    """Each change takes effect 1 ms after the first request of the stream that follows it."""
    history = leaving(moved(0))
    starts_s = [stream.start_s for stream in history.scenario.load.streams]
    stream, start_s = ("restored", starts_s[2]) if item is return_restores else ("after", starts_s[1])
    late = tuple(
        replace(step, effective_s=first_s + 0.001) for step, first_s in zip(history.steps, starts_s[1:], strict=True)
    )
    in_time = tuple(
        replace(step, effective_s=first_s - 0.001) for step, first_s in zip(history.steps, starts_s[1:], strict=True)
    )
    reason = f"the change took effect at {start_s + 0.001:.2f} s, after the first request of '{stream}'"
    assert item(replace(history, steps=late), claimed()) == [undecided(reason)]
    assert outcome(item, replace(history, steps=late), claimed()) is Outcome.INCONCLUSIVE
    assert outcome(item, replace(history, steps=in_time), claimed()) is Outcome.PASS


@pytest.mark.parametrize("item", LEAVE_CHECKS, ids=lambda item: str(item.name))
def test_a_change_never_seen_is_undecided(item: Property) -> None:
    history = replace(leaving(moved(0)), steps=())
    assert item(history, claimed()) == [undecided("the change of membership was not seen to take effect")]


# --- leave: share -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "low", "high"),
    [("ring", 169, 342), ("any", 53, 556), ("rendezvous", 198, 304), ("maglev", 198, 304)],
)
def test_share_of_moved_keys(algorithm: str, low: int, high: int) -> None:
    for owned, survivors, ok in [(low - 1, 0, False), (low, 0, True), (250, high - 250, True)]:
        found = only(leave_share, leaving(moved(survivors, owned), algorithm), claimed(algorithm))
        assert (found.ok, found.observed) == (ok, (owned + survivors) / 1000)
        assert (found.bound, found.sample, found.alpha) == ((low / 1000, high / 1000), 1000, 1e-4)
        assert not found.exact
    assert not only(leave_share, leaving(moved(high - 249), algorithm), claimed(algorithm)).ok


# --- return -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("strays", "ok"), [(0, True), (1, False), (400, False)])
def test_return_brings_every_key_back(strays: int, ok: bool) -> None:
    def place_of(arrival: Arrival) -> int:
        home = (arrival.key + (arrival.stream == RESTORED and arrival.key < strays)) % 4
        return home or (arrival.stream == AFTER) * 1

    found = only(return_restores, leaving(place_of), claimed())
    assert (found.ok, found.observed, found.bound, found.sample, found.exact) == (ok, strays, 0, 1000, True)
    assert found.note == f"{strays} of 1000 keys are not where they were before"


def test_a_return_that_takes_effect_late_is_undecided() -> None:
    def place_of(arrival: Arrival) -> int:
        home = arrival.key % 4
        away = arrival.stream == AFTER or (arrival.stream == RESTORED and arrival.key < 400)
        return 1 if home == 0 and away else home

    (found,) = return_restores(leaving(place_of), claimed())
    assert isinstance(found, Undecided)
    assert "after its return had been answered" in found.why


def test_a_return_without_an_absence_is_undecided() -> None:
    assert return_restores(leaving(fourth), claimed()) == [
        undecided("gpu-0 was not seen to be away, so its return proves nothing")
    ]


@pytest.mark.parametrize("item", [only_departed_keys_move, return_restores], ids=lambda item: str(item.name))
def test_a_leaver_without_keys_yields_no_finding(item: Property) -> None:
    assert item(leaving(lambda arrival: 1), claimed()) == []


def test_a_returned_backend_that_gets_nothing_is_undecided() -> None:
    (found,) = return_restores(leaving(lambda arrival: arrival.key % 4 or (arrival.stream != BEFORE) * 1), claimed())
    assert found == undecided("gpu-0 has returned but gets nothing: the mapping with it was not seen")


@pytest.mark.parametrize(("off", "exact"), [({"health_checks"}, True), (set(), False)])
def test_not_exact_where_checks_stay_on(off: set[str], exact: bool) -> None:
    claims = Claims((Affinity(), HealthChecks(interval_s=0.1, timeout_s=0.02))).without(off)
    scenario = leave_and_return(claims)
    assert scenario.intervals_s == (() if exact else (0.1, 0.02))
    found = only(only_departed_keys_move, history_of(scenario, moved(1)), claims)
    assert (found.ok, found.exact) == (False, exact)


# --- scenarios --------------------------------------------------------------------------------------------


def test_leaving_needs_membership_and_three_backends() -> None:
    with pytest.raises(UnsupportedError, match="cannot change membership"):
        leave_and_return(replace(claimed(), can_join=False))
    with pytest.raises(UnsupportedError, match="needs 3 backends"):
        leave_and_return(replace(claimed(), fixed_backends=2))
    assert leave_and_return(replace(claimed(), fixed_backends=3)).backends == 3


def test_keys_travel_as_claimed() -> None:
    session = Claims((Affinity(key="session"),))
    assert {steady(session).load.key_carrier, leave_and_return(session).load.key_carrier} == {"session"}
    assert steady(Claims()).load.key_carrier == "header:x-model-id"


def test_changes_lie_between_the_sweeps() -> None:
    scenario = leave_and_return(claimed())
    streams = scenario.load.streams
    for step, before, after in zip(scenario.timeline, streams[:-1], streams[1:], strict=True):
        assert before.end_s < step.at_s < after.start_s
